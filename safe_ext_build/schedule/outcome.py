"""Why a compiler ended: it compiled, the code is wrong, memory ran out, or somebody is stopping the build. Pure."""

from __future__ import annotations

import re
import signal
from typing import Literal

Outcome = Literal["compiled", "failed", "memory", "stopped"]

# nvcc 13.0: "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"
_NVCC_DIED = re.compile(r"^nvcc (?:error|fatal)\s*: '[^']+' died due to signal (\d+)", re.MULTILINE)
# gcc's driver (gcc.cc, in English whatever the compiled program says): "fatal error: Killed signal terminated program cc1plus"
_GCC_DIED = re.compile(
    r"(?:fatal error|error): (Killed|Terminated|Interrupt|Hangup) signal terminated program", re.MULTILINE
)
_GCC_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Interrupt": signal.SIGINT,
    "Hangup": signal.SIGHUP,
}
_OUT_OF_MEMORY = re.compile(
    r"(?:out of memory allocating|virtual memory exhausted|Cannot allocate memory|std::bad_alloc|^\s*Out of memory)",
    re.MULTILINE,
)
_STOPPING = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


def killed_by(status: int, tail: str) -> int:
    """The signal that ended the compiler or a tool of it; 0 when none did. `status` as from waitpid(2)."""
    if status & 0x7F:
        return status & 0x7F
    if status == 0:
        return 0
    if died := _NVCC_DIED.search(tail):
        return int(died[1])
    if died := _GCC_DIED.search(tail):
        return int(_GCC_SIGNALS[died[1]])
    return 0


def classify(status: int, tail: str, memory_was_short: bool) -> Outcome:
    """What an ended compile means. `memory_was_short`: the kernel has counted an OOM kill while it ran, or
    the budget was below its floor in the last two seconds. A compiler's own word is never enough to call
    it memory, and a kill that memory explains is never taken for somebody stopping the build."""
    if status == 0:
        return "compiled"
    number = killed_by(status, tail)
    if memory_was_short and (number == signal.SIGKILL or _OUT_OF_MEMORY.search(tail)):
        return "memory"
    if memory_was_short and status >> 8 == 128 + signal.SIGKILL:
        return "memory"  # a shell between us and the compiler turns the signal into an exit status
    return "stopped" if number in _STOPPING else "failed"


def first_error(output: str) -> str:
    """The first line that says what is wrong, for the summary; '' when none looks like it."""
    for line in output.splitlines():
        if re.search(r"\b(?:fatal )?error\b\s*:|\berror #\d+|\): error|: fatal\b", line):
            return line.strip()
    return ""
