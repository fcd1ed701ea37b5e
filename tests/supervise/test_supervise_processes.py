"""Processes as /proc shows them, and that only the right ones are signalled and reaped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from safe_ext_build.supervise import linux, processes
from safe_ext_build.supervise.processes import Process

TAIL = "S 10 20 20 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} 1234 {rss} 18446744073709551615"


@pytest.mark.parametrize(
    "name", ["ninja", "a b", "(sd-pam)", "tmux: server", "a) S 1 1", "x (y) z", "", ")", "(", "nvcc) Z 7 7 7 ("]
)
def test_parse_stat(name: str) -> None:
    found = processes.parse_stat(f"4711 ({name}) " + TAIL.format(start=987654, rss=25))
    assert found == Process(4711, name, "S", 10, 20, 20, 987654, 25 * processes.PAGE)


@pytest.mark.parametrize("text", ["", "1", "1 (a", "1 (a) S 1", "x (a) " + TAIL.format(start=1, rss=1)])
def test_a_damaged_line_is_no_process(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((ValueError, IndexError)):
        processes.parse_stat(text)


def test_descendants() -> None:
    def process(pid: int, parent: int) -> Process:
        return Process(pid, "", "S", parent, 0, 0, 0, 0)

    table = {pid: process(pid, parent) for pid, parent in [(1, 0), (5, 1), (3, 5), (9, 3), (4, 5), (7, 1)]}
    assert [found.pid for found in processes.descendants(5, table)] == [3, 4, 9]
    assert processes.descendants(9, table) == []


@pytest.fixture(params=["os", "syscall"])
def pidfd_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As this Python has them, and as conda's has them not."""
    if request.param == "syscall":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _known(process: subprocess.Popen[bytes]) -> Process:
    found = processes.read(process.pid)
    assert found
    return found


@pytest.mark.usefixtures("pidfd_calls")
def test_send(sleeper: subprocess.Popen[bytes]) -> None:
    assert processes.send(_known(sleeper), signal.SIGTERM)
    assert sleeper.wait(5) == -signal.SIGTERM


@pytest.mark.usefixtures("pidfd_calls")
def test_send_does_not_hit_a_stranger_with_the_same_pid(sleeper: subprocess.Popen[bytes]) -> None:
    other = _known(sleeper)._replace(start=_known(sleeper).start - 1)
    assert not processes.send(other, signal.SIGKILL)
    assert sleeper.poll() is None


@pytest.mark.usefixtures("pidfd_calls")
def test_send_to_what_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    known = _known(sleeper)
    sleeper.kill()
    while _known(sleeper).state != "Z":
        time.sleep(0.005)
    assert not processes.send(known, signal.SIGTERM)
    sleeper.wait()
    assert not processes.send(known, signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        linux.pidfd_open(known.pid)


def test_marked() -> None:
    environ = {**os.environ, processes.ID_VARIABLE: "0123456789ab"}
    with subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True) as process:
        try:
            assert [found.pid for found in processes.marked("0123456789ab")] == [process.pid]
            assert processes.marked("0123456789a") == []
            assert processes.marked("") == []
        finally:
            process.kill()
    assert processes.marked("0123456789ab") == []


RESPAWNER = """
import os, time
os.setsid()
while True:
    time.sleep({pause})
    if os.fork():
        os._exit(0)
"""


@pytest.mark.parametrize("pause", [0.05, 0.002])
def test_end_all_beats_what_replaces_itself(pause: float) -> None:
    """In a process of its own, whose children must not be this one's."""
    code = f"""
import os, subprocess, sys, time
from safe_ext_build.supervise import linux, processes
linux.set_subreaper(True)
for _ in range(4):
    subprocess.Popen([sys.executable, "-S", "-c", {RESPAWNER.format(pause=pause)!r}])
time.sleep(0.5)
def ours():
    return processes.descendants(os.getpid(), processes.snapshot())
assert len(ours()) >= 4
assert processes.end_all(ours) == []
time.sleep(0.3)
assert ours() == [], ours()
"""
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_end_all_reaps_only_what_it_is_to_end(sleeper: subprocess.Popen[bytes]) -> None:
    """Somebody else in this process waits for the other."""
    with subprocess.Popen(["sh", "-c", "exit 7"]) as other:
        while _known(other).state != "Z":
            time.sleep(0.005)

        def find() -> list[Process]:
            found = processes.read(sleeper.pid)
            return [found] if found else []

        assert processes.end_all(find) == []
        assert processes.read(sleeper.pid) is None
        assert other.wait() == 7


def test_end_all_gives_up_on_what_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """In uninterruptible sleep, as far as `end_all` can tell."""
    stuck = Process(1 << 22, "cp", "D", 1, 1, 1, 1, 0)
    monkeypatch.setattr(processes, "send", lambda *_: False)
    started = time.monotonic()
    assert processes.end_all(lambda: [stuck], patience=0.2) == [stuck]
    assert 0.2 <= time.monotonic() - started < 1
