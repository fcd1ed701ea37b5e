"""Which toolkit to take. Pure: it decides over what was found, and says why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from safe_ext_build.errors import ToolkitError

from .cuda import Rejected, Toolkit, is_variable
from .torch import REINSTALL

Mismatch = Literal["exact", "minor", "any"]


@dataclass(frozen=True)
class Choice:
    """The toolkit to compile with, and the line that says so."""

    toolkit: Toolkit
    line: str


def choose(
    torch_cuda: str,
    found: Sequence[Toolkit],
    rejected: Sequence[Rejected],
    mismatch: Mismatch,
    archs: Sequence[str],
    install: str = "",
) -> Choice:
    """Choose the toolkit for a torch built with CUDA `torch_cuda`.

    `found` and `rejected` stand in order of trust; `archs` are the wanted architectures (`8.6+PTX`). What
    the user named wins over all others, and is an error if it does not fit. `install` is how a fitting one
    is installed, for that error.
    """
    wanted = _version(torch_cuda)
    refused = next((one for one in rejected if one.candidate.required), None)
    if refused is not None:
        what = f"{refused.candidate.origin} is {refused.candidate.path}, which {refused.reason}"
        raise ToolkitError(what, code="SEB-2002", hint=_help(wanted, found, mismatch, None, install, looser=False))
    named_toolkit = next((toolkit for toolkit in found if toolkit.explicit), None)
    pool = [named_toolkit] if named_toolkit else list(found)
    fitting = [toolkit for toolkit in pool if _fits(toolkit.version, wanted, mismatch)]
    if not fitting:
        raise _no_match(wanted, found, rejected, mismatch, named_toolkit, install)
    best = min(fitting, key=lambda toolkit: _badness(toolkit, wanted, archs))
    return Choice(best, _line(best, wanted, rejected))


def _version(text: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)(?:\.(\d+))?", text)
    if numbers is None:
        raise ToolkitError(f"torch names its CUDA {text!r}, which is no version", code="SEB-3001", hint=REINSTALL)
    return int(numbers[1]), int(numbers[2] or 0)


def _fits(version: tuple[int, int], wanted: tuple[int, int], mismatch: Mismatch) -> bool:
    if mismatch == "any":
        return True
    return version == wanted or (mismatch == "minor" and version[0] == wanted[0])


def _badness(toolkit: Toolkit, wanted: tuple[int, int], archs: Sequence[str]) -> tuple[object, ...]:
    """Smaller is better; among equals the first, as the order of trust has it (`min` is stable)."""
    return (
        toolkit.version != wanted,
        toolkit.version[0] != wanted[0],
        not knows(toolkit, archs),
        toolkit.version > wanted,
        abs(toolkit.version[0] - wanted[0]),
        abs(toolkit.version[1] - wanted[1]),
        bool(toolkit.lacks),
        bool(toolkit.missing),
    )


def knows(toolkit: Toolkit, archs: Sequence[str]) -> bool:
    """Whether its nvcc compiles for all of `archs`; an nvcc that cannot tell is believed."""
    numbers = {re.sub(r"\D", "", arch.partition("+")[0]) for arch in archs} - {""}
    return not toolkit.archs or numbers <= set(toolkit.archs)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _line(toolkit: Toolkit, wanted: tuple[int, int], rejected: Sequence[Rejected]) -> str:
    skipped = [
        f"{one.candidate.origin} is {one.candidate.path}, which {one.reason}: not used. "
        for one in rejected
        if one.candidate.explicit
    ]
    why = "the CUDA of torch"
    if toolkit.version != wanted:
        kin = "same major version as" if toolkit.version[0] == wanted[0] else "another major version than"
        reason = "as it was named" if toolkit.explicit else "the best there is"
        why = f"{kin} torch's CUDA {_text(wanted)}, {reason}"
    return f"{''.join(skipped)}{toolkit.describe()}: {why}"


def _no_match(
    wanted: tuple[int, int],
    found: Sequence[Toolkit],
    rejected: Sequence[Rejected],
    mismatch: Mismatch,
    named: Toolkit | None,
    install: str,
) -> ToolkitError:
    looked_at = [f"\n  {toolkit.describe()}: {_verdict(toolkit, wanted, named)}" for toolkit in found]
    looked_at += [f"\n  {one.candidate.path} ({one.candidate.origin}): {one.reason}" for one in rejected]
    what = f"no CUDA toolkit fits torch's CUDA {_text(wanted)} (cuda.mismatch is {mismatch!r})"
    if named is not None:
        what = f"{named.describe()} does not fit torch's CUDA {_text(wanted)} (cuda.mismatch is {mismatch!r})"
    tail = f"; looked at:{''.join(looked_at)}" if looked_at else _NOWHERE
    hint = _help(wanted, found, mismatch, named, install)
    return ToolkitError(what + tail, code="SEB-2003" if named is None else "SEB-2004", hint=hint)


_NOWHERE = "; there is none on PATH, under /usr/local, /opt or /usr/lib, in conda, or among the wheels"


def _verdict(toolkit: Toolkit, wanted: tuple[int, int], named: Toolkit | None) -> str:
    if named is not None and toolkit is not named:
        return f"not considered, as {named.origin} names another"
    return "another minor version" if toolkit.version[0] == wanted[0] else "another major version"


def _help(
    wanted: tuple[int, int],
    found: Sequence[Toolkit],
    mismatch: Mismatch,
    named: Toolkit | None,
    install: str,
    *,
    looser: bool = True,
) -> str:
    """The ways out, the cheapest first: a variable, a package, a looser setting, if versions are the reason."""
    others = [one for one in found if one is not named and _fits(one.version, wanted, mismatch)]
    ways = []
    if others:
        best = min(others, key=lambda toolkit: _badness(toolkit, wanted, ()))
        fits = f"{best.home} is CUDA {_text(best.version)}, and fits"
        ways.append(f"{fits}: name that, or name none to have it found")
    else:
        ways += [f"{_without(named)} to have another one found or fetched"] if named else []
        ways += [install] if install else []
        ways += ["a toolkit in another place is named by CUDA_HOME=/its/directory"]
    same_major = any(one.version[0] == wanted[0] for one in found)
    if looser and found and mismatch != "any":
        taken = "minor" if mismatch == "exact" and same_major else "any"
        risk = "" if taken == "minor" else ", at the risk of what is built failing at run time"
        ways.append(f'cuda.mismatch = "{taken}" takes what was found{risk}')
    return "\n".join(ways)


def _without(named: Toolkit) -> str:
    if is_variable(named.origin):
        return f"unset {named.origin.partition(' ')[0]}"
    return f"leave {named.origin} out"


def lacking_line(toolkit: Toolkit, install: str) -> str:
    """What is to be said of a toolkit that cannot be completed; empty if it can."""
    if not toolkit.lacks:
        return ""
    what = f"{toolkit.describe()} lacks {', '.join(toolkit.lacks)}, and so do torch's wheels"
    return f"{what}: a source that includes torch's CUDA headers will not compile; {install}"


def driver_line(version: tuple[int, int], driver: tuple[int, int] | None) -> str:
    """What is to be said of a toolkit that is newer than the driver here; empty if it is not."""
    if driver is None or version <= driver:
        return ""
    what = f"CUDA {_text(version)} is newer than the driver here, which knows CUDA {_text(driver)}"
    if version[0] != driver[0]:
        return f"{what}: the result will not run on this machine until the driver is updated"
    return f"{what}: code compiled for these GPUs runs, PTX (+PTX in the list of architectures) does not"


def foreign_hint(build: str, torch_cuda: str) -> str:
    """What may be behind a failure with the nvcc `build` ("V14.0.88"); empty if it is of torch's major version.

    torch's own check ends with `(%s) mismatches ... (%s)`, and names neither.
    """
    ours = build.removeprefix("V").partition(".")[0]
    if ours == torch_cuda.partition(".")[0]:
        return ""
    return (
        f"nvcc is of CUDA {ours} and torch of CUDA {torch_cuda}, as cuda.mismatch allows; "
        "torch's BuildExtension refuses another major version"
    )
