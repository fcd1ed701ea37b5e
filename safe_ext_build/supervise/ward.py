"""The ward: a process that looks after a hook process from before its workspace is made until that is removed.

The supervisor does so, too, but only while it lives: before, nvcc and other tools are asked what they are, any
of which may hang, and afterwards a wheel is looked at. When the hook process dies, however it dies, the ward ends
what carries the workspace's marker, and removes the workspace; when the frontend is gone, it first ends the hook
process. Started as `python -I -S -E`; standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

from .linux import pidfd_open, set_name
from .processes import Process, end_all, forsaken_wards, marked, printing_to, read, send, stopped_with, wake
from .workspace import WITHIN_VARIABLE, inner, lives, remove_tree

GRACE = 2.0
"""Seconds for a hook process to end when it is asked to, its frontend being gone; its supervisor needs some."""
# A tool that was just being started shows its marker only once it runs.
_SETTLING = 0.05
READER = 0


def main() -> None:
    """Arguments: the workspace's path; process id and start time of the hook process and of the frontend, or 0."""
    place = Path(sys.argv[1])
    hook, hook_start, frontend, frontend_start = map(int, sys.argv[2:6])
    set_name("seb-ward")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if _is_orphaned(_known(hook, hook_start), frontend, frontend_start):
        clear(place)
        wake(forsaken_wards())


def _known(pid: int, start: int) -> Process | None:
    found = read(pid)
    return found if found and found.start == start else None


def _is_orphaned(hook: Process | None, frontend: int, frontend_start: int) -> bool:
    """Wait for the hook process to end, or for its word; whether it has died without one."""
    poll = select.poll()
    poll.register(READER, select.POLLIN)
    watched = _watch(poll, frontend, frontend_start) if frontend else -1
    if hook and frontend and watched < 0:
        _end(hook)
    while READER not in [descriptor for descriptor, _ in poll.poll()]:
        poll.unregister(watched)
        if hook:
            _end(hook)
    return not os.read(READER, 1)


def _watch(poll: select.poll, pid: int, start: int) -> int:
    """Have a process watched; -1 when it is gone."""
    try:
        descriptor = pidfd_open(pid)
    except OSError:
        return -1
    if not _known(pid, start):
        return -1
    poll.register(descriptor, select.POLLIN)
    return descriptor


def _end(hook: Process) -> None:
    """End a hook process that nobody waits for, even one that is stopped.

    The first that is heard of it may be its word, after which it waits for us to end.
    """
    send(hook, signal.SIGTERM)
    send(hook, signal.SIGCONT)
    if not select.select([READER], [], [], GRACE)[0]:
        send(hook, signal.SIGKILL)


def of(place: Path) -> list[Process]:
    """What carries the marker; and what was asked and has had its environment wiped, by what it prints to."""
    return [*marked(place.name), *printing_to(place.name)]


def clear(place: Path) -> None:
    """End every process that is of this place, then remove the directory with all that they have left in it.

    Builds inside of it may end by themselves first: they know best what belongs to them.
    """
    wake(stopped_with(WITHIN_VARIABLE, str(place)))  # a supervisor, or its guard
    deadline = time.monotonic() + GRACE
    while any(lives(one) for one in inner(place)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pause in (_SETTLING, 0.0):
        end_all(lambda: of(place))
        with contextlib.suppress(OSError):
            remove_tree(place)
        time.sleep(pause)
