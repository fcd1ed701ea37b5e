"""Why a compiler ended: it compiled, the code is wrong, memory ran out, somebody is stopping the build. Pure."""

from __future__ import annotations

import re
import signal
from typing import Literal

Outcome = Literal["compiled", "failed", "memory", "stopped", "returned"]

# What is left of a killed tool in what nvcc 13.0.88 and gcc 12.2 print and return (all seen, none guessed).
# nvcc, when the shell that runs its tools is killed: "nvcc error   : 'gcc' died due to signal 9 (Kill signal)"
_NVCC_DIED = re.compile(r"^nvcc (?:error|fatal)\s*: '[^']+' died due to signal (\d+)", re.MULTILINE)
# nvcc itself, which handles TERM and exits with 255: "nvcc: Terminated"
_NVCC_ENDED = re.compile(r"^nvcc: (Killed|Terminated|Interrupt|Hangup|Quit)$", re.MULTILINE)
# gcc's driver: "g++: fatal error: Killed signal terminated program cc1plus"; an "internal compiler error" for HUP
_GCC_DIED = re.compile(r"error: (Killed|Terminated|Interrupt|Hangup|Quit) signal terminated program", re.MULTILINE)
# The same in any language: "g++: schwerwiegender Fehler: Signal Getötet hat Programm cc1plus beendet"
_GCC_NAMES_TOOL = re.compile(r"^\S*(?:g\+\+|gcc|c\+\+|cc)[\w.-]*: .*\bcc1(?:plus|obj)?\b(?!')", re.MULTILINE)
# sccache 0.16 runs compilers in its server: "sccache: Compiler killed by signal 9"; and nvcc's tools apart:
# "cicc terminated (signal: 9)", without an end of line.
_SCCACHE_DIED = re.compile(r"^sccache: Compiler killed by signal (\d+)", re.MULTILINE)
_STEP_DIED = re.compile(r"\b[\w+]+ terminated \(signal: (\d+)\)")
# It calls a signal what was the exit status of a step of nvcc (its nvcc.rs, exit_status): 1 of gcc, 2 of cudafe++
# and cicc, which then have said what is wrong.
_EXIT_STATUSES = (1, 2)
# cicc and cudafe++ handle INT and TERM, say this and nothing else; nvcc exits with 4, or 255 with --threads.
_EDG_TERMINATED = re.compile(r"^Compilation terminated\.$", re.MULTILINE)
_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Interrupt": signal.SIGINT,
    "Hangup": signal.SIGHUP,
    "Quit": signal.SIGQUIT,
}
_OUT_OF_MEMORY = re.compile(
    r"out of memory allocating|virtual memory exhausted|Cannot allocate memory|std::bad_alloc|^\s*Out of memory",
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
    if died := _GCC_DIED.search(tail) or _NVCC_ENDED.search(tail):
        return int(_SIGNALS[died[1]])
    if died := _STEP_DIED.search(tail):
        return int(died[1])
    if died := _SCCACHE_DIED.search(tail):
        more = _SCCACHE_DIED.sub("", tail).strip()
        return 0 if more and int(died[1]) in _EXIT_STATUSES else int(died[1])
    return _killed_in_shell(status >> 8, tail)


def _killed_in_shell(code: int, tail: str) -> int:
    """nvcc starts its tools through `sh -c`, which turns a signal into an exit status and a word (none for INT);
    with --threads it exits with 255. Both are asked for: a status of 137 alone may be a program's own."""
    last = tail.strip().rpartition("\n")[2]
    if code == 128 + signal.SIGINT and "error" not in tail.lower():
        return int(signal.SIGINT)
    number = _SIGNALS.get(last)
    if number and code in (128 + number, 255):
        return int(number)
    silent = "error" not in tail.lower() and not _OUT_OF_MEMORY.search(tail)
    return int(signal.SIGTERM) if code in (4, 255) and silent and _EDG_TERMINATED.search(tail) else 0


def classify(status: int, tail: str, memory_was_short: bool) -> Outcome:
    """What an ended compile means. `memory_was_short`: the kernel has counted an OOM kill while it ran, or
    the budget was below its floor in the last two seconds. A compiler's own word is never enough to call
    it memory, and a kill that memory explains is never taken for somebody stopping the build."""
    if status == 0:
        return "compiled"
    number = killed_by(status, tail)
    if memory_was_short and (number == signal.SIGKILL or _sounds_like_memory(status >> 8, tail)):
        return "memory"
    return "stopped" if number in _STOPPING else "failed"


def _sounds_like_memory(code: int, tail: str) -> bool:
    """Whether it may have been memory: enough only beside what the kernel says."""
    died = code == 128 + signal.SIGKILL or (_GCC_NAMES_TOOL.search(tail) and not _GCC_DIED.search(tail))
    return bool(died or _OUT_OF_MEMORY.search(tail))


def first_error(output: str) -> str:
    """The first line that says what is wrong, for the summary; '' when none looks like it."""
    for line in output.splitlines():
        if re.search(r"\b(?:error|fatal)\s*:|\berror #\d+|: fatal\b", line):
            return line.strip()
    return ""
