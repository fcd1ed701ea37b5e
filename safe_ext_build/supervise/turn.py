"""Whose turn it is to build a project: one build has it, and another one waits, ends it, or gives up.

A symbolic link, TURNS/KEY -> workspace, says who has the turn, and the lock of that workspace whether he lives:
a build that has died, in whatever way, has no turn any more, and nothing has to be cleared away for the next one.
Who removes a workspace removes its link. The builds of one user on one machine meet here, as in the registry.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import ui
from ..errors import BuildRunning, SupervisionError
from ..machine.neighbours import living, neighbours_root
from . import ending, registry, shelter, terminal
from .heartbeat import duration, progress
from .hook import Signals, die_by, leave_if_orphaned
from .processes import read
from .progress import Mode as ProgressMode
from .protocol import REPLACED
from .registry import Found
from .workspace import CLAIM, Workspace, lives

Mode = Literal["wait", "replace", "fail"]
INTERVAL = 30.0
"""Seconds between two lines of a build that waits."""
PATIENCE = 5.0
"""Seconds for a build that has just begun to start its supervisor, and for a lock that is held for a moment."""
_TURNS = "turns"
_TICK = 0.2
_PAUSE = 0.01


class Taken(Exception):
    """Another build has got the turn since it was looked at."""


@dataclass(frozen=True)
class Holder:
    """The build that has the turn, and since when (seconds since the epoch)."""

    workspace: Path
    since: float

    @property
    def build(self) -> str:
        return self.workspace.name


@dataclass(frozen=True)
class Turn:
    """A turn to build what is kept at `place`: a project's directory, or the store of an unpacked sdist.

    `project`: its name; `mode`: what to do while another build has it; `source`: who says so; `progress`: the
    setting of this name. `for_frontend`: whether nobody needs the build once our parent has gone. A build inside
    of one that has a turn never waits, for it might be waited for itself.
    """

    place: Path
    project: str
    mode: Mode
    source: str
    progress: ProgressMode
    environ: Mapping[str, str]
    for_frontend: bool = True

    def await_it(self) -> bool:
        """Wait until no other build has the turn, or end the one that has it, as `mode` says; whether one had it.

        Raises BuildRunning, and SupervisionError when a build could not be ended. Dies by the signal that it is
        sent.
        """
        found = self._holder()
        if found is None or found.build in _above(self.environ):
            return False
        described = self._describe(found)
        if self.mode == "fail":
            raise self._refusal(found, described)
        if self.mode == "replace":
            _replace(found, described)
        elif _is_inside_of_a_turn(self.environ):
            ui.warn(f"{described}; this build is part of another one, and does not wait for it")
            return False
        else:
            self._wait(found, described)
        return True

    def outlook(self) -> tuple[str, BuildRunning | None]:
        """What a build would do about the one that has the turn now, in words, and the error that it would end
        with; ("", None) where none has it."""
        found = self._holder()
        if found is None or found.build in _above(self.environ):
            return "", None
        described = self._describe(found)
        if self.mode == "fail":
            return "", self._refusal(found, described)
        would = "end it" if self.mode == "replace" else "wait for its end"
        return f"{described}; this one would {would} (on-running)", None

    def _refusal(self, found: Holder, described: str) -> BuildRunning:
        return BuildRunning(
            described,
            code="SEB-5014",
            hint=f"Wait until it has ended, or end it: safe-ext-build kill {found.build}\n"
            f'({self.source} is "fail"; on-running = "wait" waits for it, "replace" ends it)',
        )

    def claim(self, workspace: Workspace) -> None:
        """Take the turn, for as long as the workspace is locked. Raises Taken.

        Where it cannot be written down, the build goes on as if it were alone.
        """
        with contextlib.suppress(OSError), _locked_turns(self.environ) as turns:
            link = turns / self._key
            found = _read(link)
            if found and not (found.build in _above(self.environ) or _is_inside_of_a_turn(self.environ)):
                raise Taken
            if found is None:
                (workspace.path / CLAIM).symlink_to(link)
                unfinished = turns / f".{workspace.id}"
                unfinished.symlink_to(workspace.path)
                unfinished.replace(link)

    @property
    def _key(self) -> str:
        return hashlib.sha256(os.fsencode(os.path.realpath(self.place))).hexdigest()[:16]

    def _holder(self) -> Holder | None:
        root = neighbours_root(self.environ)
        return _read(root / _TURNS / self._key) if root else None

    def _describe(self, found: Holder) -> str:
        return f"{self.project} is being built already: {_state(found, self.environ, PATIENCE / 5)}"

    def _wait(self, found: Holder, described: str) -> None:
        if self.for_frontend:
            leave_if_orphaned()
        shelter.fold()
        self._tell(f"{described}; waiting for its end (safe-ext-build kill {found.build} brings it about)")
        with Signals() as signals:
            deadly = self._watch(found, signals)
        if deadly:
            die_by(deadly)

    def _watch(self, found: Holder, signals: Signals) -> int:
        """Return 0 once nobody has the turn; or the signal that we are to die by, with nothing to clear away."""
        frontend = os.getppid()
        begun = told = time.monotonic()
        while current := self._holder():
            now = time.monotonic()
            if current.build != found.build or now - told >= INTERVAL:
                found, told = current, now
                ui.say(f"still waiting: {_state(found, self.environ)}")
            if deadly := _pause(signals):
                return deadly
            if self.for_frontend and os.getppid() != frontend:
                return signal.SIGTERM
        waited = duration(time.monotonic() - begun)
        self._tell(f"the other build has ended, after {waited} of waiting: it is our turn")
        return 0

    def _tell(self, text: str) -> None:
        """Say it where it is seen."""
        ui.say(text)
        terminal.tell(self.progress, text)


def _state(found: Holder, environ: Mapping[str, str], patience: float = 0.0) -> str:
    """Who has the turn, since when, and how far he is. `patience`: seconds for a supervisor that only starts."""
    deadline = time.monotonic() + patience
    while (known := _look(found, environ)) is None or known.status is None:
        if time.monotonic() >= deadline or (known and _is_stopped(known.record.pid)):
            break
        time.sleep(_PAUSE)
    since = duration(time.time() - found.since)
    if known is None:
        return f"build {found.build}, for {since}"
    what = progress(known.status) if known.status else "it does not answer"
    if known.status and (known.status.expected or 0) >= 1:
        what += f", at least {duration(known.status.expected or 0)} to go"
    if _is_stopped(known.record.pid):
        what = "it is stopped, and goes on when it is continued (fg, kill -CONT)"
    return f"build {found.build} (pid {known.record.pid}), for {since}: {what}"


def _look(found: Holder, environ: Mapping[str, str]) -> Found | None:
    record = next((record for record in living(environ) if record.build == found.build), None)
    return registry.look(record) if record else None


def _is_stopped(pid: int) -> bool:
    process = read(pid)
    return process is not None and process.state in "Tt"


def _pause(signals: Signals) -> int:
    """Wait for a moment; returns the first signal that is to end us, or 0. One that is to stop us has done so."""
    poll = select.poll()
    poll.register(signals.reader, select.POLLIN)
    poll.poll(_TICK * 1000)
    for number in signals.take():
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number != signal.SIGCONT:
            return number
    return 0


def _replace(found: Holder, described: str) -> None:
    """End a build. Raises SupervisionError when something of it is left."""
    ui.say(f'{described}; ending it, since on-running is "replace"')
    deadline = time.monotonic() + PATIENCE
    while lives(found.workspace) and not Workspace(found.workspace, -1).socket.exists():
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
    outcome = ending.end(found.build, found.workspace, REPLACED)
    if outcome.left:
        raise SupervisionError(
            f"the earlier build {outcome.sentence}",
            code="SEB-5009",
            hint=f"End it by hand: safe-ext-build kill {found.build}",
        )
    ui.say(f"the earlier build {outcome.sentence}")


# Who is who.


def _read(link: Path) -> Holder | None:
    """Who has a turn; None when nobody has who lives."""
    try:
        found = Holder(Path(os.readlink(link)), link.lstat().st_mtime)
    except OSError:
        return None
    return found if lives(found.workspace) else None


def _above(environ: Mapping[str, str]) -> set[str]:
    """The builds that we are part of: their supervisors are among our ancestors, whatever became of what stood
    between us, and of the environment."""
    ancestors = set()
    process = read(os.getppid())
    while process and process.pid not in ancestors:
        ancestors.add(process.pid)
        process = read(process.parent)
    return {record.build for record in living(environ) if record.pid in ancestors}


def _is_inside_of_a_turn(environ: Mapping[str, str]) -> bool:
    root = neighbours_root(environ)
    above = _above(environ)
    held = (_read(link) for link in (root / _TURNS).glob("[0-9a-f]*")) if root and above else ()
    return any(found.build in above for found in held if found)


@contextlib.contextmanager
def _locked_turns(environ: Mapping[str, str]) -> Iterator[Path]:
    """The directory of turns, for us alone. Raises OSError where there is none, or it is not to be had."""
    root = neighbours_root(environ)
    if root is None:
        raise FileNotFoundError("no directory in which the builds of a user meet")
    deadline = time.monotonic() + PATIENCE
    while (descriptor := _lock(root / _TURNS)) < 0:
        if time.monotonic() > deadline:  # who holds it was stopped
            raise TimeoutError(root)
        time.sleep(_PAUSE)
    try:
        yield root / _TURNS
    finally:
        os.close(descriptor)


def _lock(directory: Path) -> int:
    """A descriptor of the locked directory, or -1: somebody has it, or has just removed it, since it was empty."""
    directory.mkdir(0o700, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    os.close(descriptor)
    return -1
