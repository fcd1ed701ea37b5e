"""G, the guard: a fork of the supervisor that waits for the supervisor's death, and then clears up.

The hook process does the same; the guard is for when both are killed at once. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

from .linux import pidfd_open, set_name
from .processes import Process, end_all, marked, read, send
from .progress import Show
from .terminal import give_back
from .workspace import Workspace


def start(workspace: Workspace, hook: int, show: Show) -> tuple[int, int]:
    """Fork a guard; returns its pid and the pipe that must stay open: closing it sets the guard off. `hook`: the
    pid of the hook process. `show`: where a bar may have to be taken away."""
    supervisor = read(os.getpid())
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reader)
        return pid, writer
    try:
        _close_all_but({reader, workspace.lock, show.terminal})
        _watch(workspace, reader, hook, supervisor, show)
    finally:
        os._exit(0)


def _close_all_but(keep: set[int]) -> None:
    """Leases, the frontend's pipes: what the guard held open would not be seen to close."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _watch(workspace: Workspace, reader: int, hook: int, supervisor: Process | None, show: Show) -> None:
    os.setsid()
    set_name("seb-guard")
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _wait(reader, hook, supervisor)
    if os.read(reader, 1):
        return  # the supervisor has cleared up itself
    give_back(show)
    clear(workspace)


def _wait(reader: int, hook: int, supervisor: Process | None) -> None:
    """Wait for the supervisor's word, or its death. Somebody may have stopped it: when its hook process is gone,
    it has to go on, and see that."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    with contextlib.suppress(OSError):
        poll.register(pidfd_open(hook), select.POLLIN)
    while reader not in (ready := [descriptor for descriptor, _ in poll.poll()]):
        poll.unregister(ready[0])
        if supervisor:
            send(supervisor, signal.SIGCONT)


def clear(workspace: Workspace) -> None:
    """End every process that carries the build's marker, then remove the workspace."""
    end_all(lambda: marked(workspace.id))
    workspace.remove()
