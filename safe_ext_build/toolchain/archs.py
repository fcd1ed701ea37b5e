"""GPU architectures: what was asked for, in torch's own form, cut to what nvcc and torch both know."""

from __future__ import annotations

import contextlib
import mmap
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from safe_ext_build.errors import SettingsError, ToolkitError

from .torch import TorchFacts

ALL, NATIVE = "all", "native"
_AUTO = "auto"  # what CMake calls native

_SEPARATORS = re.compile(r"[;,\s\u3001]+")
_FORM = re.compile(r"(sm_?|compute_?)?(\d{1,2})\.?(\d)([af]?)(\+ptx|-real|-virtual)?", re.IGNORECASE)
_NAMES = {
    "kepler+tesla": "3.7",
    "kepler": "3.5+PTX",
    "maxwell+tegra": "5.3",
    "maxwell": "5.0;5.2+PTX",
    "pascal": "6.0;6.1+PTX",
    "volta+tegra": "7.2",
    "volta": "7.0+PTX",
    "turing": "7.5+PTX",
    "ampere+tegra": "8.7",
    "ampere": "8.0;8.6+PTX",
    "ada": "8.9+PTX",
    "hopper": "9.0+PTX",
    "blackwell+tegra": "11.0",
    "blackwell": "10.0;10.3;12.0;12.1+PTX",
    "rubin": "10.7+PTX",
}
_ALLOWED = (
    "architectures are written like 8.6, 8.6+PTX, 9.0a, 86 or sm_86, by name (Volta, Turing, Ampere, Ada, "
    "Hopper, Blackwell), or as all or native; several are separated by ; or , or a blank"
)
_SUPPORTED = re.compile(r"supported_arches\s*=\s*\[([^\]]*)\]")
_FLAGS = re.compile(rb"\0((?:sm|compute)_\d+[af]?(?: (?:sm|compute)_\d+[af]?)+)\0")
# What the wheels of torch were built for, by their CUDA; used where the library itself does not tell.
_WHEELS = {
    (11, 0): "5.0 6.0 7.0 7.5 8.0 8.6 9.0",
    (12, 0): "5.0 6.0 7.0 7.5 8.0 8.6 9.0",
    (12, 8): "7.5 8.0 8.6 9.0 10.0 12.0+PTX",
    (13, 0): "7.5 8.0 8.6 9.0 10.0 12.0+PTX",
}


@dataclass(frozen=True)
class TorchArchs:
    """What a torch says about architectures."""

    name: str
    """The torch, for messages."""
    supported: tuple[str, ...]
    """What its extension helper accepts, such as `("8.0", "9.0a")`; empty if unknown."""
    default: tuple[str, ...]
    """What it was itself compiled for."""


def torch_archs(torch: TorchFacts) -> TorchArchs:
    """Read both lists from torch's files."""
    helper = torch.package / "utils" / "cpp_extension.py"
    supported = None
    with contextlib.suppress(OSError):
        supported = _SUPPORTED.search(helper.read_text("utf-8", errors="replace"))
    return TorchArchs(
        name=f"torch {torch.version}",
        supported=tuple(re.findall(r"\d+\.\d[a-z]?", supported[1])) if supported else (),
        default=_compiled_for(torch) or _wheel_default(torch.cuda),
    )


def _compiled_for(torch: TorchFacts) -> tuple[str, ...]:
    """What `torch.cuda.get_arch_list()` would say: a string in one of torch's libraries."""
    with (
        contextlib.suppress(OSError, ValueError),
        (torch.package / "lib" / "libtorch_python.so").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        flags = _FLAGS.search(content)
        if flags is not None:
            return tuple(_of_flags(flags[1].decode("ascii").split()))
    return ()


def _of_flags(flags: Sequence[str]) -> list[str]:
    return _merged([arch for flag in flags for arch in _one(flag) or []])


def _wheel_default(cuda: str | None) -> tuple[str, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", cuda or "")[:2]]
    known = [version for version in _WHEELS if version <= tuple(numbers)]
    return tuple(_WHEELS[max(known)].split()) if known else ()


def normalise_archs(value: str, source: str) -> list[str]:
    """Split a list of architectures, and write each as torch does: `8.6`, `8.6+PTX`, `9.0a`, `12.0f`.

    `all` and `native` stay as they are. Raises SettingsError for what is no architecture.
    """
    found: list[str] = []
    # What is typed on an East Asian keyboard may be as wide as its neighbours, separators and digits alike.
    plain = unicodedata.normalize("NFKC", value).strip().strip("\"'")
    for word in _SEPARATORS.split(re.sub(r"\s*\+\s*(?=ptx)", "+", plain, flags=re.IGNORECASE)):
        archs = _one(word) if word else []
        if archs is None:
            what = f"{source} is {value!r}, in which {word!r} is no architecture"
            raise SettingsError(what, code="SEB-1008", hint=_ALLOWED)
        found += archs
    return _merged(found)


def _one(word: str) -> list[str] | None:
    lower = word.lower()
    if lower in (ALL, NATIVE, _AUTO):
        return [NATIVE if lower == _AUTO else lower]
    name = _NAMES.get(lower) or _NAMES.get(lower.removesuffix("+ptx"))
    if name is not None:
        return name.split(";")
    form = _FORM.fullmatch(word)
    if form is None:
        return None
    kind, major, minor, variant, suffix = form.groups()
    # compute_86 is the virtual architecture; torch has no word for it alone.
    ptx = (suffix or "").lower() in ("+ptx", "-virtual") or (kind or "").lower().startswith("compute")
    return [f"{int(major)}.{minor}{variant.lower()}{'+PTX' if ptx else ''}"]


def _merged(archs: Sequence[str]) -> list[str]:
    """Each architecture once, with PTX if it was asked for anywhere."""
    with_ptx: dict[str, bool] = {}
    for arch in archs:
        base, _, ptx = arch.partition("+")
        with_ptx[base] = with_ptx.get(base, False) or bool(ptx)
    return [f"{base}+PTX" if ptx else base for base, ptx in with_ptx.items()]


def select_archs(
    requested: Sequence[str] | None,
    source: str,
    nvcc_archs: Sequence[str],
    torch: TorchArchs,
    gpus: Sequence[str],
) -> tuple[str, list[str]]:
    """Decide TORCH_CUDA_ARCH_LIST; returns it and the lines that say what was decided.

    `requested` comes from `normalise_archs` (None or empty: nothing was asked for), `nvcc_archs` from
    `nvcc --list-gpu-arch` (`86`), `gpus` are the compute capabilities of the GPUs here (`8.6`). Raises
    ToolkitError when nothing of what was asked for can be compiled.
    """
    known = _Known(tuple(nvcc_archs), torch)
    if not requested:
        return _by_default(known, gpus)
    wanted: list[str] = []
    lines: list[str] = []
    for arch in requested:
        if arch == NATIVE:
            native, said = _by_default(known, gpus, f"{source} is native: ")
            wanted += native.split(";")
            lines += said
        else:
            wanted += known.everything() if arch == ALL else [arch]
    return _cut(_merged(wanted), source, known, lines)


@dataclass(frozen=True)
class _Known:
    """What can be compiled: an empty list means that nobody could tell, and all is believed."""

    nvcc: tuple[str, ...]
    torch: TorchArchs

    def objection(self, arch: str) -> str:
        """Why `arch` cannot be compiled; empty if it can."""
        base = arch.partition("+")[0]
        if self.nvcc and re.sub(r"\D", "", base) not in self.nvcc:
            return "nvcc"
        return self.torch.name if self.torch.supported and base not in self.torch.supported else ""

    def everything(self) -> list[str]:
        """All that nvcc and torch know, without the variants (`9.0a`); PTX of the newest."""
        plain = [f"{number[:-1]}.{number[-1]}" for number in self.nvcc] or [*self.torch.default]
        usable = [arch for arch in plain if not self.objection(arch)]
        return [*usable[:-1], *(f"{arch.partition('+')[0]}+PTX" for arch in usable[-1:])]

    def newest_for(self, gpu: str) -> str | None:
        """The newest architecture whose PTX runs on `gpu`."""
        older = [arch for arch in self.everything() if _number(arch) <= _number(gpu)]
        return max(older, key=_number, default=None)


def _number(arch: str) -> tuple[int, int]:
    major, _, minor = arch.partition("+")[0].partition(".")
    return int(major), int(re.sub(r"\D", "", minor))


def _by_default(known: _Known, gpus: Sequence[str], prefix: str = "") -> tuple[str, list[str]]:
    if not gpus:
        value, lines = _cut([*known.torch.default], f"the list of {known.torch.name}", known, [])
        return value, [f"{prefix}no GPU here, so for what {known.torch.name} was built for: {value}", *lines]
    usable = sorted({gpu for gpu in gpus if not known.objection(gpu)}, key=_number)
    lines = []
    for gpu in sorted(set(gpus) - set(usable), key=_number):
        older = known.newest_for(gpu)
        blame = known.objection(gpu)
        if older is None:
            lines.append(f"the GPU here of architecture {gpu} is left out: {blame} does not know it")
            continue
        usable.append(older.partition("+")[0])
        lines.append(f"{blame} does not know the GPU here, {gpu}: PTX of {usable[-1]} is built for it")
    archs = sorted(set(usable), key=_number)
    if not archs:
        raise ToolkitError(f"nothing to compile for: {lines[-1]}", code="SEB-2008", hint=_hint(known))
    # As torch does it: PTX of the newest lets the result run on what comes later.
    value = ";".join([*archs[:-1], f"{archs[-1]}+PTX"])
    return value, lines or [f"{prefix}for the GPUs here: {value}"]


def _cut(archs: Sequence[str], source: str, known: _Known, lines: list[str]) -> tuple[str, list[str]]:
    objections = {arch: known.objection(arch) for arch in archs}
    kept = [arch for arch, who in objections.items() if not who]
    dropped = [f"{arch} ({who} does not know it)" for arch, who in objections.items() if who]
    if not kept:
        named = ", ".join(dropped) or "nothing"
        raise ToolkitError(f"{source}: no architecture is left of {named}", code="SEB-2007", hint=_hint(known))
    if dropped:
        lines = [*lines, f"{source}: dropped {', '.join(dropped)}"]
    return ";".join(kept), lines


def _hint(known: _Known) -> str:
    usable = ", ".join(arch.partition("+")[0] for arch in known.everything())
    variants = [arch for arch in known.torch.supported if arch[-1].isalpha() and not known.objection(arch)]
    named = f"; {', '.join(variants)} too" if variants else ""
    return f"choose from what this nvcc and {known.torch.name} both know: {usable}{named}"
