"""What a failed build is to be blamed on, when the project itself is at fault."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BuildFailed, CompileFailed
from .protocol import ASKED_TO_END, BUILDER_KILLED, REPLACED

AGAIN = "Finished objects are kept and used again."
MEMORY_HINT = "Compile for fewer GPU architectures (TORCH_CUDA_ARCH_LIST), set NVCC_THREADS=1, or add memory."
_ROOM_HINT = (
    "Free some room there. Temporary files can go to another disk: set workspace.dir (or "
    "SAFE_EXT_BUILD_WORKSPACE_DIR) to a directory on it."
)
_NAMED = 3
# How a shell, and a compiler's caller, say that a program could not be started.
_NOT_RUN = (126, 127)
_NO_HEADER = re.compile(
    r"fatal error: '?([^\s':]+)'?(?:: No such file or directory| file not found)"  # gcc, clang
    r'|cannot open source file "([^"]+)"'  # nvcc's own front end
)
# nvcc of its tools, gcc, and nvcc's own front end; gcc's word for a compiler that somebody has killed is another.
_CRASHED = re.compile(r"died due to signal|internal compiler error|internal error: assertion")
# The link under which an unpacked sdist is compiled, so that its objects can be used again (see schedule/shim.py).
_KEPT = re.compile(r"[^\s'\"]*/objects\d+/source/")


def missing_sources(names: Sequence[str], project: Path) -> BuildFailed:
    """The error for sources, relative to the project, that its build asks for and nobody has."""
    several = f"{', '.join(names[:_NAMED])}{' and more' if len(names) > _NAMED else ''}"
    who = "setup.py" if (project / "setup.py").is_file() else "the build"
    if (project / "PKG-INFO").is_file():  # only an sdist has one
        return BuildFailed(
            f"{who} names {several}, which this sdist does not contain",
            code="SEB-6007",
            hint="Report it to its authors, or build from its repository.",
        )
    hint = "Write it, or take it out of the list of sources."
    if (project / ".gitmodules").is_file():
        hint = "Is it part of a submodule? Run: git submodule update --init --recursive"
    return BuildFailed(f"{who} names {several}, which {project} does not contain", code="SEB-6006", hint=hint)


def stopped(reason: str) -> BuildFailed:
    """The error for a build that did not end by itself. `reason`: the supervisor's words."""
    message = f"the build was stopped: {reason}"
    if reason == ASKED_TO_END:
        return BuildFailed(message, code="SEB-5004", hint=AGAIN)
    if reason == REPLACED:
        return BuildFailed(message, code="SEB-5015", hint=AGAIN)
    if killed := re.fullmatch(BUILDER_KILLED.format(r"(\d+)"), reason):
        message = f"the process that ran the project's own code was killed by {_name(int(killed[1]))}"
        hint = f"It may have crashed in what it imports, or been ended by hand or for lack of memory. {AGAIN}"
        return BuildFailed(message, code="SEB-5005", hint=hint)
    hint = f"Somebody ended it, or a limit of time. {AGAIN}"
    return BuildFailed(message, code="SEB-5003", hint=hint)


def _name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def compile_failure(failure: dict[str, Any]) -> BuildFailed:
    """The error for a compile that failed; `failure` has the fields of broker.Failure."""
    source, error, status = failure["source"], failure["error"], failure["code"]
    if failure["memory"]:
        return BuildFailed(f"{source}: {error}", code="SEB-6004", hint=MEMORY_HINT)
    message = as_in_the_project(f"{source} does not compile: {error or _ended(status)}")
    if failure["situation"]:
        return CompileFailed(message, code=failure["situation"], hint=_ARCHS_HINT)
    if "No space left on device" in error:
        return BuildFailed(message, code="SEB-4011", hint=_ROOM_HINT)
    if _NO_HEADER.search(error):
        return CompileFailed(message, code="SEB-6008")
    if _CRASHED.search(error) or (not error and 128 < status <= 192):
        return CompileFailed(message, code="SEB-6002", hint=_CRASH_HINT)
    if not error and status in _NOT_RUN:
        hint = "The line above says why. CC, CXX and CUDA_HOME say which compiler is taken."
        return CompileFailed(message, code="SEB-6003", hint=hint)
    return CompileFailed(message, code="SEB-6001")


_ARCHS_HINT = (
    "Take -gencode and -arch out of the flags, and TORCH_CUDA_ARCH_LIST decides; "
    "or use a CUDA toolkit that knows them."
)
_CRASH_HINT = (
    "The compiler itself has broken down: build again, and if it does so again, use another release of it, or "
    "compile that source without optimization."
)


def _ended(status: int) -> str:
    if status in _NOT_RUN:
        return f"the compiler could not be run (exit status {status})"
    return f"the compiler ended with exit status {status}"


def missing_header(message: str) -> str:
    """What to do about a header that a compiler did not find; '' when it says nothing of that kind."""
    header = _NO_HEADER.search(message)
    if header is None:
        return ""
    name = header[1] or header[2]
    return f"Install what brings {name}, or add the directory that it lies in to include_dirs of the extension."


def missing_to_compiler(source: str, error: str) -> bool:
    """Whether a compiler that was called for a source has said that there is none: in the words of the one who
    runs it ("cc1plus: fatal error: x.cu: No such file or directory"; clang has "…directory: 'x.cu'")."""
    lower = error.lower()
    ends = (f": {source}: no such file or directory", f"no such file or directory: '{source}'")
    return bool(source) and lower.endswith(tuple(end.lower() for end in ends))


def as_in_the_project(text: str) -> str:
    """A compiler's words with the paths of an sdist's files as they are in the sdist."""
    return _KEPT.sub("", text)
