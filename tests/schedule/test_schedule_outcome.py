"""What an ended compiler's status and words mean. The texts are what nvcc 13.0.88 and g++ 12.2 printed when a
tool of theirs was killed; `test_*_for_real` does it again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from safe_ext_build.schedule.outcome import classify, first_error, killed_by

KILLED = "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"
GERMAN = "g++: schwerwiegender Fehler: Signal Getötet hat Programm cc1plus beendet\nKompilierung beendet.\n"
HANGUP = (
    "g++: internal compiler error: Hangup signal terminated program cc1plus\nPlease submit a full bug report\n"
)
TERMINATED = "\nCompilation terminated.\n"
ERROR = 'a.cu(3): error: identifier "x" is undefined\n\n1 error detected in the compilation of "a.cu".\n'
CATASTROPHE = (
    'a.cu(1): catastrophic error: cannot open source file "x.h"\n\n'
    '1 catastrophic error detected in the compilation of "a.cu".\nCompilation terminated.\n'
)
SYNTAX = "a.cpp:1:5: error: expected unqualified-id\n"


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize(
    ("what", "status", "tail", "number"),
    [
        ("nvcc, cicc killed", exited(137), "Killed\n", 9),
        ("nvcc --threads 2, cicc killed", exited(255), "Killed\n", 9),
        ("nvcc, warnings before", exited(137), "a.cu(3): warning #177-D: unused\n\nKilled\n", 9),
        ("nvcc, cicc TERM or INT", exited(4), TERMINATED, 15),
        ("nvcc --threads 2, cicc TERM", exited(255), TERMINATED, 15),
        ("nvcc, cicc HUP", exited(129), "Hangup\n", 1),
        ("nvcc, ptxas TERM", exited(143), "Terminated\n", 15),
        ("nvcc, ptxas INT", exited(130), "", 2),
        ("nvcc TERM", exited(255), "nvcc: Terminated\n", 15),
        ("nvcc KILL", 9, "", 9),
        ("nvcc, its sh killed", exited(9), "nvcc error   : 'gcc' died due to signal 9 (Kill signal)\n", 9),
        ("nvcc, its sh TERM", exited(15), "nvcc error   : 'gcc' died due to signal 15 \n", 15),
        ("nvcc, cc1plus killed", exited(1), KILLED.replace("g++", "gcc"), 9),
        ("g++, cc1plus killed", exited(1), KILLED, 9),
        ("g++, as killed", exited(1), KILLED.replace("cc1plus", "as"), 9),
        ("g++, cc1plus TERM", exited(1), KILLED.replace("Killed", "Terminated"), 15),
        ("g++, cc1plus INT", exited(1), KILLED.replace("Killed", "Interrupt"), 2),
        ("g++, cc1plus QUIT", exited(1), KILLED.replace("Killed", "Quit"), 3),
        ("g++, cc1plus HUP", exited(4), HANGUP, 1),
        ("crashed with a core", 11 | 0x80, "", 11),
        ("compiled, and said so", 0, KILLED, 0),
        ("a compiler that returns 137 by itself", exited(137), "something\n", 0),
        ("one that says Killed", exited(1), "Killed\n", 0),
        ("an error in device code", exited(2), ERROR, 0),
        ("a header that is not there", exited(4), CATASTROPHE, 0),
        ("an error", exited(1), SYNTAX, 0),
    ],
)
def test_killed_by(what: str, status: int, tail: str, number: int) -> None:
    assert killed_by(status, tail) == number, what


@pytest.mark.parametrize(
    ("status", "tail", "without", "short"),
    [
        (0, "", "compiled", "compiled"),
        (exited(1), KILLED, "stopped", "memory"),
        (exited(137), "Killed\n", "stopped", "memory"),
        (exited(255), "Killed\n", "stopped", "memory"),
        (9, "", "stopped", "memory"),
        (15, "", "stopped", "stopped"),
        (2, "", "stopped", "stopped"),
        (11, "", "failed", "failed"),
        (exited(4), TERMINATED, "stopped", "stopped"),
        (exited(137), "", "failed", "memory"),
        (exited(1), "Killed\n", "failed", "failed"),
        (exited(1), GERMAN, "failed", "memory"),
        (exited(1), "cc1plus: out of memory allocating 65536 bytes\n", "failed", "memory"),
        (exited(1), "terminate called after throwing an instance of 'std::bad_alloc'\n", "failed", "memory"),
        (exited(1), "cc1plus: error: unrecognized command-line option '-x'\n", "failed", "failed"),
        (exited(1), "g++: fatal error: cannot execute 'cc1plus': execvp: No such file\n", "failed", "failed"),
        (exited(1), SYNTAX, "failed", "failed"),
        (exited(2), ERROR, "failed", "failed"),
        (exited(4), CATASTROPHE, "failed", "failed"),
    ],
)
def test_memory_needs_the_kernels_word_too(status: int, tail: str, without: str, short: str) -> None:
    assert classify(status, tail, memory_was_short=False) == without
    assert classify(status, tail, memory_was_short=True) == short


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("", ""),
        ("warning: errors ahead\nall is well\n", ""),
        ("In file included from a.cpp:1:\n" + SYNTAX, SYNTAX.strip()),
        (ERROR, 'a.cu(3): error: identifier "x" is undefined'),
        (CATASTROPHE, 'a.cu(1): catastrophic error: cannot open source file "x.h"'),
        ("nvcc fatal   : Unknown option '-MQ'\n", "nvcc fatal   : Unknown option '-MQ'"),
        ("x.h(4): error #20: no\n", "x.h(4): error #20: no"),
    ],
)
def test_first_error(output: str, line: str) -> None:
    assert first_error(output) == line


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_cc1plus_for_real(number: signal.Signals, tmp_path: Path) -> None:
    # It waits for its source in a FIFO that nobody fills, so there is no race.
    os.mkfifo(tmp_path / "a.cpp")
    environ = {**os.environ, "LC_ALL": "C"}
    compiler = subprocess.Popen(
        ["g++", "-c", "a.cpp", "-o", "a.o"], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
    )
    os.kill(_only_child(compiler.pid), number)
    _, tail = compiler.communicate(timeout=10)
    assert compiler.returncode > 0
    assert killed_by(exited(compiler.returncode), tail) == number


SCCACHE_SAYS = "sccache: Compiler killed by signal {}\n"


@pytest.mark.parametrize(
    ("tail", "number"),
    [
        # Steps of nvcc that have ended with 2 and 1: sccache 0.16 calls that a signal.
        (f"{ERROR}{SCCACHE_SAYS.format(2)}", 0),
        (f"ptxas a.ptx, line 60; error   : Unknown modifier '.instr'\n{SCCACHE_SAYS.format(1)}", 0),
        (SCCACHE_SAYS.format(2), 2),
        (f"{ERROR}{SCCACHE_SAYS.format(9)}", 9),
        (f"cicc terminated (signal: 2){SCCACHE_SAYS.format(2)}", 2),
    ],
)
def test_what_sccache_calls_a_signal(tail: str, number: int) -> None:
    assert killed_by(exited(254), tail) == number
    assert classify(exited(254), tail, False) == ("stopped" if number else "failed")


def _only_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for _ in range(1000):
        for child in children.read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "cc1plus":
                return int(child)
        time.sleep(0.005)
    raise AssertionError("g++ has not started cc1plus")
