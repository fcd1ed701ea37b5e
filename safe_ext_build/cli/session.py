"""What a command runs in: a directory that goes away with it, and children that end when it does.

Hooks are supervised by themselves: they watch us as they watch any frontend. Other programs run under a
supervisor of our own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from .. import probe, staging
from ..errors import SafeExtBuildError
from ..here import here
from ..schedule.broker import Naming
from ..schedule.policy import Limits
from ..supervise import hook, shelter, workspace

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Seconds for a hook process to end its tree; it does so within three, whether we wait or not.
_PATIENCE = 5.0
_INSTALL = "Install it: python -m pip install 'safe-ext-build[cli]'"


class Interrupted(BaseException):
    """We were sent a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class HookFailed(Exception):
    """A hook did not return. `reason` is '' when what has failed has been shown by the hook itself."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory for the duration of a command, which dies by the signal that it is sent once that is gone."""
    signals = _Signals()
    try:
        with signals:
            place = shelter.stage(root(), staging.shim_roots())
            try:
                tempfile.tempdir = str(place.path / "tmp")
                yield place.path
            finally:
                signals.raises = False
                tempfile.tempdir = None
                place.remove()
    finally:
        if signals.seen:
            hook.die_by(signals.seen)


class _Signals:
    """While it is entered, the first signal raises Interrupted; those after it would disturb the clearing up."""

    def __init__(self) -> None:
        self.seen = 0
        self.raises = True
        self._old: dict[signal.Signals, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self.seen
        self.seen = self.seen or number
        if first and self.raises:
            raise Interrupted(number)

    def __enter__(self) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def root() -> Path:
    """Where a command has its directory."""
    named = os.environ.get("SAFE_EXT_BUILD_WORKSPACE_DIR")
    return workspace.root(Path(named).absolute() if named else None, dict(os.environ))


def supervised(command: Sequence[str]) -> int:
    """Run a program; returns its exit status. Nothing of it survives us. Raises SafeExtBuildError."""
    with hook.Signals() as signals:
        place = shelter.stage(root(), staging.shim_roots())
        try:
            tree = hook.Tree(
                environ={**os.environ, "TMPDIR": str(place.path / "tmp")},
                limits=asdict(Limits(1, 1, False)),
                compiles=asdict(Naming({}, "", str(here()), {}, False)),
                neighbours="",
            )
            status, number = hook.run_command(list(command), tree, place, signals)
        finally:
            place.remove()
    if number:
        raise Interrupted(number)
    return status


class Hooks:
    """A backend's hooks, each in a process of its own."""

    def __init__(self, source: Path, backend: str, python: Path, environ: Mapping[str, str], place: Path) -> None:
        """`place`: the directory that they belong to: it stays until they have ended, however we do."""
        try:
            from pyproject_hooks import BuildBackendHookCaller
        except ImportError:
            what = "pyproject-hooks is not installed, which calls a package's build backend"
            raise SafeExtBuildError(what, code="SEB-8016", hint=_INSTALL) from None
        self._environ = {**environ, probe.MARKER: place.name, workspace.WITHIN_VARIABLE: str(place)}
        self._caller = BuildBackendHookCaller(
            str(source), backend, runner=self._run, python_executable=str(python)
        )

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call a hook; returns what it returns. Raises HookFailed."""
        try:
            return getattr(self._caller, hook)(**arguments)
        except subprocess.CalledProcessError as error:
            killed = f"the build was killed by {_name(-error.returncode)}" if error.returncode < 0 else ""
            raise HookFailed(killed) from None

    def _run(
        self, cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        child = None
        try:
            child = subprocess.Popen(cmd, cwd=cwd, env={**self._environ, **(extra_environ or {})})
            status = child.wait()
        except Interrupted as interrupted:
            if child:  # else it is too young to be known, and sees us end
                _end(child, interrupted.number)
            raise
        if status:
            raise subprocess.CalledProcessError(status, list(cmd))


def _end(hook: subprocess.Popen[bytes], number: int) -> None:
    """Hand a signal on to a hook process, and let it clear up."""
    hook.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        hook.wait(_PATIENCE)
    hook.kill()
    hook.wait()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
