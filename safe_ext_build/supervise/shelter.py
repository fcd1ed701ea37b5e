"""What a hook process does before it has a supervisor is sheltered: a workspace that the ward looks after.

It is made when it is first needed: when a tool is asked something, or when a build is staged, which goes on in it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .. import probe
from ..errors import SupervisionError
from .hook import MORE_PROCESSES, leave_if_orphaned, python_command
from .processes import WARD_VARIABLE, end_all, read
from .ward import of
from .workspace import Workspace, furnish, make, temporary

_PATIENCE = 1.0


class Ward:
    """The ward of one directory: see the module of that name."""

    def __init__(self, place: Path, frontend: bool) -> None:
        reader, self._writer = os.pipe()
        ours, parent = read(os.getpid()), read(os.getppid()) if frontend else None
        pids = [number for one in (ours, parent) for number in ((one.pid, one.start) if one else (0, 0))]
        command = python_command(f"{__package__}.ward", str(place), *map(str, pids), isolated=True)
        told = f"{place.name} {pids[0]} {pids[1]}"
        try:
            self._process = subprocess.Popen(
                command,
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, WARD_VARIABLE: told},
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._writer)
            what = f"the process that watches over a build cannot be started: {error.strerror}"
            raise SupervisionError(what, code="SEB-5013", hint=MORE_PROCESSES) from error
        finally:
            os.close(reader)

    def end(self) -> None:
        """See workspace.Watch."""
        if self._writer < 0:
            return
        with contextlib.suppress(OSError):
            os.write(self._writer, b"q")
        os.close(self._writer)
        self._writer = -1
        self._process.send_signal(signal.SIGCONT)  # somebody may have stopped it
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Shelter:
    """One workspace for what a process asks, and for the build that it may stage afterwards.

    `root`: where workspaces go; None for a command that only asks, and leaves not even that. `frontend`: this
    process is a frontend's hook process, and ends when that is gone.
    """

    def __init__(self, root: Callable[[], Path] | None, frontend: bool) -> None:
        self.root = root
        self._frontend = frontend
        self._workspace: Workspace | None = None
        self._failed = False

    def workspace(self) -> Workspace:
        """The workspace, not furnished yet. Raises SupervisionError."""
        if self._workspace is None:
            if self._frontend:
                leave_if_orphaned()
            self._workspace = make(self.root(), self._watch) if self.root else temporary(self._watch)
        return self._workspace

    def renewed(self) -> Workspace:
        """The workspace, or another one when that is gone: an earlier build has removed it."""
        if self._workspace is not None and not self._workspace.path.exists():
            self._workspace = None
        return self.workspace()

    def _watch(self, place: Path) -> Ward:
        return Ward(place, self._frontend)

    def variables(self) -> Mapping[str, str]:
        """The variables of what is asked. Where no workspace can be made there are none: if one is needed, the
        build will say so, and better."""
        if self._failed:
            return {}
        try:
            place = self.workspace()
        except SupervisionError:
            self._failed = True
            return {}
        scratch = place.path / "tmp"
        return {probe.MARKER: place.id, "TMPDIR": str(scratch)} if scratch.is_dir() else {}

    def close(self) -> None:
        """End what was asked and still runs, and remove the workspace."""
        if self._workspace is None:
            return
        if self._workspace.path.exists():  # else a supervised build has done so
            place = self._workspace.path
            end_all(lambda: of(place))
        self._workspace.remove()
        self._workspace = None


_open: list[Shelter] = []


@contextlib.contextmanager
def sheltered(root: Callable[[], Path] | None, frontend: bool = True) -> Iterator[None]:
    """A shelter for what this process asks meanwhile; within another one, that one."""
    if _open or sys.platform != "linux":
        yield
        return
    shelter = Shelter(root, frontend)
    _open.append(shelter)
    try:
        with probe.sheltered(shelter.variables):
            yield
    finally:
        _open.clear()
        shelter.close()


def fold() -> None:
    """Remove the workspace of the shelter that we are in, until something is asked again: who waits keeps none."""
    for shelter in _open:
        shelter.close()


def stage(root: Path, shim_roots: list[Path], frontend: bool = False) -> Workspace:
    """A furnished workspace that is looked after: that of the shelter we are in, if it is one for builds."""
    shelter = _open[-1] if _open and _open[-1].root else None
    place = (shelter or Shelter(lambda: root, frontend)).renewed()
    furnish(place, shim_roots)
    return place
