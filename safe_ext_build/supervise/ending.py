"""Ends a build from outside, all that belongs to it, and looks whether anything is left.

What belongs to a build is told by descent from its supervisor, which is known by the socket that it listens on,
and by the build's marker in the environment. Nothing is told by a name; every signal goes through a pidfd to the
very process that was looked at.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import SupervisionError
from .processes import (
    ID_VARIABLE,
    Process,
    descendants,
    end_all,
    environment_value,
    marked,
    pids,
    read,
    send,
    snapshot,
)
from .protocol import ASKED_TO_END
from .registry import Line
from .workspace import abandoned, remove_if_free

PATIENCE = 5.0
"""Seconds for a supervisor, and then for its hook process, to do what they should; they promise three."""
_PAUSE = 0.02
SUPERVISOR = "seb-super"


@dataclass
class Outcome:
    """What has become of a build: processes that `ended`, and what is `left` of it, in words."""

    build: str
    ended: int = 0
    left: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """How it went, after "build"."""
        ended = f"{self.ended} {'process' if self.ended == 1 else 'processes'} ended"
        if self.left:
            return f"{self.build} is not all clear: {ended}, but {'; '.join(self.left)}"
        return f"{self.build} is all clear: {ended}, workspace removed"


def end(build: str, workspace: Path, reason: str = ASKED_TO_END) -> Outcome:
    """End a build that lives: ask its supervisor, wait for it, and do by force what it does not do.

    `reason` is what the build says of its end.
    """
    ours: dict[int, Process] = {}
    supervisor: Process | None = None
    hook: Process | None = None
    with suppress(OSError), Line(workspace) as line:
        supervisor = line.supervisor
        _note(ours, supervisor, build)
        hook = _hook(supervisor, workspace)
        if os.getpid() in ours or os.environ.get(ID_VARIABLE) == build:
            raise SupervisionError(
                f"this command runs inside build {build}, and would end itself",
                code="SEB-5006",
                hint="Give it in another terminal.",
            )
        if supervisor.state in "Tt":
            send(supervisor, signal.SIGCONT)
        line.end(reason)
        _wait_for(supervisor)
        _note(ours, supervisor, build)
    if supervisor and _lives(supervisor):
        force(supervisor)
    return _finish(build, workspace, ours, hook)


def _note(ours: dict[int, Process], supervisor: Process, build: str) -> None:
    """Take note of what belongs to the build."""
    tree = [supervisor, *descendants(supervisor.pid, snapshot())] if _lives(supervisor) else []
    ours.update({process.pid: process for process in [*tree, *marked(build)]})


def _hook(supervisor: Process, workspace: Path) -> Process | None:
    """The hook process: who has asked for the supervisor, and is still its parent."""
    try:
        asked = json.loads((workspace / "supervisor.json").read_text())["hook"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return read(supervisor.parent) if supervisor.parent == asked else None


def force(supervisor: Process) -> None:
    """End a supervisor that does not: first what is below it, so that nothing comes out from under it."""
    deadline = time.monotonic() + PATIENCE
    send(supervisor, signal.SIGSTOP)
    while time.monotonic() < deadline:
        below = [one for one in descendants(supervisor.pid, snapshot()) if one.state not in "ZX"]
        if not below:
            break
        for process in below:
            send(process, signal.SIGKILL)
        time.sleep(_PAUSE)
    send(supervisor, signal.SIGKILL)
    _wait_for(supervisor)


def _finish(build: str, workspace: Path, ours: dict[int, Process], hook: Process | None) -> Outcome:
    """What the hook process is there for: to clear away the rest. If it does not, we do."""
    if hook and hook.state in "Tt":
        send(hook, signal.SIGCONT)  # who has stopped it with ^Z asks for its end now
    ours.update({process.pid: process for process in marked(build)})
    end_all(lambda: marked(build), PATIENCE)
    _wait(lambda: remove_if_free(workspace), PATIENCE)
    left = [f"{one.name} (pid {one.pid}) lives" for one in ours.values() if _lives(one)]
    left += [f"{one.name} (pid {one.pid}) lives" for one in marked(build) if one.pid not in ours]
    if workspace.exists():
        holder = f", held by pid {hook.pid}" if hook and _lives(hook) else ""
        left.append(f"{workspace} is there{holder}")
    return Outcome(build, sum(not _lives(one) for one in ours.values()), left)


def _lives(process: Process) -> bool:
    now = read(process.pid)
    return now is not None and now.start == process.start and now.state not in "ZX"


def _wait_for(process: Process) -> None:
    _wait(lambda: not _lives(process), PATIENCE)


def _wait(until: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        time.sleep(_PAUSE)


# What nobody owns any more.


def end_lost(roots: Iterable[Path], living: Iterable[str]) -> list[Outcome]:
    """End the builds whose supervisor is lost: what carries the marker of none that is `living`, and the
    workspaces under `roots` whose lock is free. The one that we ourselves are part of is left alone."""
    ours = os.environ.get(ID_VARIABLE, "")
    outcomes = [outcome for root in roots for outcome in _end_abandoned(root, ours)]
    done = {outcome.build for outcome in outcomes}
    others = sorted(orphaned({*living, ours}) - done)
    return outcomes + [_finish(build, Path(os.devnull, build), _carriers(build), None) for build in others]


def _end_abandoned(root: Path, ours: str) -> list[Outcome]:
    try:
        with abandoned(root) as found:
            lost = [path for path in sorted(found) if path.name != ours]
            return [_finish(path.name, path, _carriers(path.name), None) for path in lost]
    except OSError:
        return []  # nothing was ever built there


def _carriers(build: str) -> dict[int, Process]:
    return {process.pid: process for process in marked(build)}


def orphaned(living: set[str]) -> set[str]:
    """The builds of this user that still have processes, but no supervisor above any of them.

    Processes come and go while we look, and with one that is missing in the middle all below it seem to have lost
    their supervisor. So it is the whole build that must have none, and twice.
    """
    lost = _without_supervisor(living)
    if lost:
        time.sleep(_PAUSE)
    return lost & _without_supervisor(living) if lost else lost


def _without_supervisor(living: set[str]) -> set[str]:
    table = snapshot()
    found = {pid: environment_value(pid, ID_VARIABLE) for pid in pids() if pid != os.getpid() and _is_ours(pid)}
    carriers = {pid: build for pid, build in found.items() if build and build not in living and pid in table}
    supervised = {build for pid, build in carriers.items() if _is_supervised(table[pid], table)}
    return set(carriers.values()) - supervised


def _is_ours(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    except OSError:
        return False


def _is_supervised(process: Process, table: dict[int, Process]) -> bool:
    """Whether a supervisor stands above a process: one that we may not know, in a container."""
    seen: Process | None = process
    while seen and seen.pid > 1:
        if seen.name == SUPERVISOR:
            return True
        seen = table.get(seen.parent)
    return False
