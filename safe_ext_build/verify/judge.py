"""What is to be said of a build's extension modules, and whether it fails for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import BuildFailed
from . import causes
from .findings import Declared, Findings, Module
from .load import CRASHED, FAILED, LIBRARY, LOADED, UNDEFINED, UNSURE

_DRIVER = re.compile(r"lib(cuda|nvidia-ml)\.so")
_DRIVER_CALL = re.compile(r"cu[A-Z]")
_TORCH_ARCH = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")
_MOST_NAMES = 4
SKIPPED_HINT = (
    "The setup script may have skipped its CUDA sources: many do when torch.cuda.is_available() is false at build "
    "time (FORCE_CUDA=1 is a common way out), or when an option of their own is not given "
    '(-C --build-option="--name" passes one on).'
)

KEEP_HINT = "The wheel was removed; -C check=false builds it without this check."


@dataclass(frozen=True)
class Expected:
    """What the build was to make: for which torch ("torch 2.14.1+cu130 (CUDA 13.0)"), and with what."""

    torch: str = ""
    has_toolkit: bool = False
    require_cuda: str = ""
    """Who says that the result must have device code; '' when nobody does."""


@dataclass(frozen=True)
class Verdict:
    """`lines` are decisions, `warnings` what may not be wanted; with an `error` the build has failed."""

    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: BuildFailed | None = None


def judge(found: Findings, expected: Expected) -> Verdict:
    """Judge what a build has made."""
    if found.trouble and expected.require_cuda:
        what = f"it is not known whether the result has device code: {found.trouble}"
        hint = f"Mend that; or build without {expected.require_cuda}, which asks for device code."
        return Verdict(error=BuildFailed(what, code="SEB-7001", hint=hint))
    if found.trouble:
        return Verdict(warnings=(f"the extension modules were not checked: {found.trouble}",))
    error = _cuda_error(found, expected) or _symbol_error(found, expected)
    if error:
        return Verdict(error=error)
    lines = [*_optional(found), *_checked(found, expected), *_not_loaded(found)]
    return Verdict(tuple(lines), (*_missing(found), *_archs(found), *_no_code(found, expected), *_doubtful(found)))


def show_code(code: str) -> str:
    """`sm_90a` as it is, `compute_90` as `PTX 9.0`."""
    name = re.fullmatch(r"compute_(\d+)(\d)([af]?)", code)
    return f"PTX {name[1]}.{name[2]}{name[3]}" if name else code


def codes_of(arch_list: str) -> tuple[str, ...] | None:
    """The codes that torch's helper compiles for a TORCH_CUDA_ARCH_LIST; None where it is not all numbers."""
    found: list[str] = []
    for arch in filter(None, re.split(r"[;\s]+", arch_list)):
        number = _TORCH_ARCH.fullmatch(arch)
        if number is None:
            return None
        name = f"{number[1]}{number[2]}{number[3]}"
        found += [f"sm_{name}", *([f"compute_{name}"] if number[4] else [])]
    return tuple(found)


# --- what fails a build


def _cuda_error(found: Findings, expected: Expected) -> BuildFailed | None:
    if not expected.require_cuda:
        return None
    if absent := [one.name for one in _absent(found) if not one.optional]:
        return BuildFailed(
            f"{_names(absent)} {_was(absent)} not built, and {expected.require_cuda} says that this may not be",
            code="SEB-7002",
            hint="The reason stands in the output of the setup script, which went on without it.",
        )
    if any(module.codes for module in found.modules):
        return None
    what = "no extension modules" if not found.modules else "no device code"
    message = f"the result has {what}, and {expected.require_cuda} says that it must"
    return BuildFailed(message, code="SEB-7003", hint=SKIPPED_HINT)


def _symbol_error(found: Findings, expected: Expected) -> BuildFailed | None:
    for module in found.modules:
        if _surely_undefined(module):
            texts = [symbol.text for symbol in module.symbols]
            what = "undefined symbol" if len(texts) == 1 else "undefined symbols"
            against = f" with {expected.torch}" if module.cxx11_abi is not None else ""
            reasons = [causes.why(symbol, module) for symbol in module.symbols]
            return BuildFailed(
                f"{module.name} cannot be loaded{against}: {what} {', '.join(map(_short, texts))}",
                code=reasons[0].code,
                hint="\n".join([*dict.fromkeys(reason.text for reason in reasons), KEEP_HINT]),
            )
    return None


def _surely_undefined(module: Module) -> bool:
    """Whether nothing can bring the symbols: the driver's come with a driver, another package's with that."""
    if any(_DRIVER_CALL.match(symbol.name) for symbol in module.symbols):
        return False
    if module.outcome == UNSURE:
        return any(causes.is_of_torch(symbol.name) for symbol in module.symbols) and module.cxx11_abi is not None
    return module.outcome == UNDEFINED and any(map(causes.is_certain, module.symbols))


# --- what is said


def _checked(found: Findings, expected: Expected) -> Iterator[str]:
    said = [module for module in found.modules if module.codes or module.outcome == LOADED]
    if not said:
        return
    codes = {code for module in said for code in module.codes}
    parts = [f"device code: {', '.join(map(show_code, sorted(codes, key=_order)))}"] if codes else []
    if loaded := [module for module in said if module.outcome == LOADED]:
        torch = f" with {expected.torch}" if any(module.cxx11_abi is not None for module in loaded) else ""
        verb = "loads" if len(loaded) == 1 else "load"
        parts.append(f"{verb}{torch}" if len(loaded) == len(said) else f"{len(loaded)} {verb}{torch}")
    yield f"{_names([module.name for module in said])}: {'; '.join(parts)}"


def _order(code: str) -> tuple[bool, int, str]:
    kind, _, arch = code.partition("_")
    return kind == "compute", int(arch.rstrip("af")), arch


def _absent(found: Findings) -> list[Declared]:
    there = {module.path for module in found.modules}
    return [one for one in found.declared if one.path not in there]


def _optional(found: Findings) -> Iterator[str]:
    if names := [one.name for one in _absent(found) if one.optional]:
        yield f"{_names(names)} {_was(names)} not built, which the setup script says is optional"


def _missing(found: Findings) -> Iterator[str]:
    if names := [one.name for one in _absent(found) if not one.optional]:
        yield (
            f"{_names(names)} {_was(names)} not built: the setup script declares "
            f"{'it' if len(names) == 1 else 'them'}, and went on without"
        )


def _archs(found: Findings) -> Iterator[str]:
    """Requested and compiled architectures, where torch's helper was to bring the one to the other."""
    asked = codes_of(found.archs)
    modules = {module.path: module for module in found.modules}
    for one in found.declared:
        module = modules.get(one.path)
        if not asked or module is None or not module.codes or not one.takes_archs:
            continue
        # Without the suffix: an older nvcc may not note it where this one does.
        there = {code.rstrip("af") for code in module.codes}
        if lacking := [show_code(code) for code in asked if code.rstrip("af") not in there]:
            has = ", ".join(map(show_code, sorted(module.codes, key=_order)))
            reason = f"; torch leaves its arch flags out because of {one.misread}" if one.misread else ""
            yield f"{module.name} has code for {has}, not for {', '.join(lacking)} as {found.archs!r} asks{reason}"


def _no_code(found: Findings, expected: Expected) -> Iterator[str]:
    if expected.has_toolkit and found.unbuilt:
        what = "no device code" if found.modules else "no extension modules"
        yield (
            f"the result has {what}, although the project has CUDA sources ({found.unbuilt}). {SKIPPED_HINT} "
            "With `require-cuda = true` this is an error."
        )


def _not_loaded(found: Findings) -> Iterator[str]:
    for module in found.modules:
        if module.outcome == LIBRARY and _DRIVER.match(module.detail):
            yield f"{module.name} was not loaded: it needs {module.detail} of the driver, and there is none here"
        elif module.outcome == FAILED:
            yield f"{module.name} was not loaded: {module.detail}"


def _doubtful(found: Findings) -> Iterator[str]:
    for module in found.modules:
        texts = ", ".join(_short(symbol.text) for symbol in module.symbols)
        if module.outcome == LIBRARY and not _DRIVER.match(module.detail):
            yield f"{module.name} needs {module.detail}, which was not found here: it loads only where that is"
        elif module.outcome == CRASHED:
            yield f"loading {module.name} here ended the process that did it ({module.detail})"
        elif module.outcome in (UNDEFINED, UNSURE) and module.symbols:
            detail = f" (importing its package: {module.detail})" if module.outcome == UNSURE else ""
            yield f"{module.name} does not load by itself: undefined symbol {texts}{detail}{_if_nobody(module)}"


def _if_nobody(module: Module) -> str:
    """What is behind it unless another module brings the symbols, which we cannot know: hence no error."""
    ours = [symbol for symbol in module.symbols if not _DRIVER_CALL.match(symbol.name)]
    if not ours:
        return ""
    reasons = [causes.why(symbol, module) for symbol in ours]
    texts = " ".join(dict.fromkeys(reason.text for reason in reasons))
    return f". Its import fails unless what is loaded before it brings that. {texts} [{reasons[0].code}]"


def _names(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + rest


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _short(text: str, most: int = 120) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
