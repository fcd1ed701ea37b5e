"""Processes as /proc shows them, and ending them without ever hitting a stranger. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..probe import MARKER as PROBE_VARIABLE
from .linux import pidfd_open, pidfd_send_signal

PAGE = os.sysconf("SC_PAGE_SIZE")
ID_VARIABLE = "SAFE_EXT_BUILD_ID"
JOB_VARIABLE = "SAFE_EXT_BUILD_JOB"
WARD_VARIABLE = "SAFE_EXT_BUILD_WARD"
"""Of a ward: what it looks after (the workspace's id), and process id and start time of its hook process."""


class Process(NamedTuple):
    """One line of /proc/PID/stat (proc_pid_stat(5)); `start` is in clock ticks since boot, `rss` in bytes."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    start: int
    rss: int


def parse_stat(text: str) -> Process:
    # The name is in parentheses and may hold blanks and parentheses itself.
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    return Process(
        int(pid),
        name,
        fields[0],
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        int(fields[19]),
        int(fields[21]) * PAGE,
    )


def read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, ValueError, IndexError):
        return None


def pids(rounds: int = 100) -> Iterator[int]:
    """Every process, those included that start while the caller looks at the others.

    A process that forks and ends would be missed in one listing: dead when it is looked at, and its child too
    young to be listed. So we list again until there is nothing new (or, on a machine that never rests, enough).
    """
    seen: set[int] = set()
    for _ in range(rounds):
        new = {int(name) for name in os.listdir("/proc") if name.isdigit()} - seen
        if not new:
            return
        yield from sorted(new)
        seen |= new


def snapshot() -> dict[int, Process]:
    """Every process."""
    found = (read(pid) for pid in pids())
    return {process.pid: process for process in found if process}


def descendants(root: int, table: dict[int, Process]) -> list[Process]:
    """What descends from `root`, parents before children, zombies included, `root` not."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    result = list(children.get(root, ()))
    for process in result:
        result.extend(children.get(process.pid, ()))
    return result


def send(process: Process, number: int) -> bool:
    """Signal this very process: its start time is checked through a pidfd, so a reused pid is never hit."""
    try:
        pidfd = pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read(process.pid)
        if now is None or now.start != process.start or now.state in "ZX":
            return False
        pidfd_send_signal(pidfd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(pidfd)


def reap() -> dict[int, int]:
    """Collect every child that has ended: pid -> wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def environment_value(pid: int, variable: str) -> str | None:
    """The value of `variable` in the environment that the process was started with."""
    prefix = f"{variable}=".encode()
    return next((os.fsdecode(entry[len(prefix) :]) for entry in _environ(pid) if entry.startswith(prefix)), None)


def inherited(variable: str) -> str:
    """What a variable holds here, or in who is above us: tox, or `env -i`, may have wiped ours. '' for none."""
    value, process = os.environ.get(variable), read(os.getppid())
    while not value and process and process.pid > 1:
        value, process = environment_value(process.pid, variable), read(process.parent)
    return value or ""


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def marked(build_id: str) -> list[Process]:
    """The live processes that carry this build's marker, wherever they have escaped to."""
    markers = {f"{variable}={build_id}".encode() for variable in (ID_VARIABLE, PROBE_VARIABLE)}
    carriers = (pid for pid in pids() if not markers.isdisjoint(_environ(pid)))
    found = (read(pid) for pid in carriers if pid != os.getpid())
    return [process for process in found if process and process.state not in "ZX"]


def forsaken_wards() -> dict[Process, str]:
    """The wards that somebody has stopped, whose hook process has died since; and what they looked after."""
    found = {}
    for ward in _stopped():
        build, _, hook = (environment_value(ward.pid, WARD_VARIABLE) or "").partition(" ")
        if build and not _lives(*map(int, hook.split())):
            found[ward] = build
    return found


def stopped_with(variable: str, value: str) -> list[Process]:
    """The processes that somebody has stopped, and that were started with this variable."""
    return [process for process in _stopped() if environment_value(process.pid, variable) == value]


def _stopped() -> list[Process]:
    found = (read(pid) for pid in pids())
    return [process for process in found if process and process.state in "Tt" and is_ours(process.pid)]


def wake(stopped: Iterable[Process]) -> None:
    """Let those go on who watch over a build, so that they see what has become of it, clear up and end."""
    for process in stopped:
        send(process, signal.SIGCONT)


def is_ours(pid: int) -> bool:
    """Whether a process is one of this user."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def _lives(pid: int, start: int) -> bool:
    process = read(pid)
    return process is not None and process.start == start and process.state not in "ZX"


def printing_to(sink: str) -> list[Process]:
    """The live processes whose standard output or error is the unnamed file that probe.run makes for a shelter."""
    found = (read(pid) for pid in pids() if pid != os.getpid() and f"/memfd:{sink} (deleted)" in _outputs(pid))
    return [process for process in found if process and process.state not in "ZX"]


def _outputs(pid: int) -> list[str]:
    try:
        return [os.readlink(f"/proc/{pid}/fd/{number}") for number in (1, 2)]
    except OSError:
        return []


def end_all(find: Callable[[], Iterable[Process]], patience: float = 10.0) -> list[Process]:
    """Kill until `find` finds nothing; returns what would not die within `patience` seconds.

    Only a process in uninterruptible sleep outlives SIGKILL. New processes may appear while we kill: the
    loop ends because a killed process starts no more. Zombies count until they are collected: the child of
    one may have been read while its parent, since collected, still stood between us and it.
    """
    deadline = time.monotonic() + patience
    while True:
        found = list(find())
        alive = [process for process in found if process.state not in "ZX"]
        if not found or time.monotonic() > deadline:
            return alive
        for process in alive:
            send(process, signal.SIGKILL)
        _collect(found)
        time.sleep(0.002)


def _collect(processes: Iterable[Process]) -> None:
    """Reap those that are our children, and no others: somebody else waits for what we have not killed."""
    for process in processes:
        if process.parent == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
