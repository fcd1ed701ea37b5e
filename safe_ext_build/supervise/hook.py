"""H, the side of the frontend's hook process: starts the supervisor, passes signals on, clears up after it.

H is the second guard: a subreaper while the hook runs, so that what a killed supervisor leaves comes to us.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..apart import Apart
from ..errors import BuildFailed, HookMissing, SupervisionError
from ..here import here
from ..schedule.shim import MISSING
from ..stamp import Stamp
from . import blame, heartbeat, stall, terminal
from .backend import hook_hint
from .linux import is_subreaper, pidfd_open, set_subreaper
from .processes import ID_VARIABLE, Process, descendants, end_all, marked, read, snapshot
from .progress import Mode, Show
from .protocol import BUILDER_KILLED, CONTINUE, SIGNAL_BYTES, STOP, SupervisorRequest, Verdict
from .workspace import HINT as WORKSPACE_HINT
from .workspace import WITHIN_VARIABLE, Workspace, writing

_BYTES = {getattr(signal, name): byte for byte, name in SIGNAL_BYTES.items()}
MORE_PROCESSES = (
    "Raise the limit of processes (`ulimit -u`, or that of the container), or wait until there are fewer."
)
_BOOTSTRAP = "import sys; sys.path.append({root!r}); from {module} import main; main()"
# A frontend that dies may take our installation with it, and a hook process its workspace: what fails then is of
# interest to nobody. A directory that is being removed is gone a moment later.
_CHILD = """\
import os, sys, time
parent = {parent} or os.getppid()
def leave_if_nobody_waits():
    if os.getppid() != parent or not os.path.exists({package!r}):
        os._exit(1)
try:
    sys.path.append({root!r})
    from {module} import main
except (ImportError, OSError):
    for _ in range(50):
        leave_if_nobody_waits()
        time.sleep(0.02)
    raise
try:
    main()
except Exception:
    leave_if_nobody_waits()
    raise
"""


@dataclass(frozen=True)
class Tree:
    """What a supervisor has to know of the processes that it is to own: see SupervisorRequest. `progress`: see the
    setting of this name."""

    environ: Mapping[str, str]
    limits: dict[str, Any]
    compiles: dict[str, Any]
    neighbours: str
    progress: Mode = field(default="off", kw_only=True)


@dataclass(frozen=True)
class Build(Tree):
    """One hook of a backend to run in a supervised builder.

    `cwd`: the directory to run it in, which is the project's or a copy of it. `backend` is `module` or
    `module:object`, `backend_path` where it lies inside the project, if it does. `check`: how the builder is to
    look at what the hook has made (see verify.gather); None when it is not. `stamp`: what to add to the
    project's metadata. `apart`: where setuptools writes to, when that is not to be the project's directory.
    """

    hook: str
    arguments: dict[str, Any]
    backend: str
    backend_path: tuple[str, ...]
    cwd: str
    check: dict[str, Any] | None = None
    stamp: Stamp = field(default_factory=Stamp)
    apart: Apart | None = None


@dataclass
class Ending:
    """How it ended: what the supervisor says, the signal that we were sent, whether the frontend is gone."""

    verdict: Verdict | None = None
    signal: int = 0
    frontend_gone: bool = False
    supervisor: int = 0
    """The supervisor's own exit status, or minus the signal that it died by."""


def python_command(module: str, *arguments: str, isolated: bool) -> list[str]:
    """A Python that runs `main` of one of our modules. An isolated one starts fast and sees only the
    standard library and us: the package's parent comes last, so that nothing in it can shadow a module."""
    root = str(Path(__file__).resolve().parents[2])
    return _python(_BOOTSTRAP.format(root=root, module=module), *arguments, isolated=isolated)


def _python(code: str, *arguments: str, isolated: bool) -> list[str]:
    options = ["-I", "-S", "-E"] if isolated else []
    return [sys.executable, *options, "-c", code, *arguments]


def child_command(module: str, *arguments: str, isolated: bool, parent: int = 0) -> list[str]:
    """The same, for a process that fails in silence when its parent, or our installation, is gone.

    `parent`: its pid, if it is known; else whoever it has when it starts."""
    package = Path(__file__).resolve().parents[1]
    places = {"root": str(package.parent), "package": str(package / "__init__.py")}
    return _python(_CHILD.format(module=module, parent=parent, **places), *arguments, isolated=isolated)


def leave_if_orphaned() -> None:
    """End now if our frontend was killed before we could look at it: nobody is waiting for what we build.

    Then our parent is whoever collects orphans, and no frontend: it is in another session, where a frontend's
    hook process runs in the frontend's own.
    """
    parent, ours = read(os.getppid()), read(os.getpid())
    if parent and ours and parent.session != ours.session and (parent.pid == 1 or parent.name == "systemd"):
        os._exit(1)


def run(build: Build, workspace: Workspace, signals: Signals, farewell: Callable[[], None] = lambda: None) -> Any:
    """Run a hook in a supervised builder and return its result.

    `signals` have been caught since before the workspace was made. Raises BuildFailed when the project's
    build failed, SupervisionError when the supervisor was lost; dies by the signal that it was sent, once
    the tree is gone, after `farewell`, which removes the workspace once it has read what it needs. Raises
    HookMissing when the backend does not have the hook.
    """
    request = {
        "hook": build.hook,
        "arguments": build.arguments,
        "backend": build.backend,
        "backend_path": build.backend_path,
        "path": sys.path,
        "cwd": build.cwd,
        "check": build.check,
        "stamp": asdict(build.stamp),
        "apart": asdict(build.apart) if build.apart else None,
    }
    with writing(workspace.path):
        (workspace.path / "request.json").write_text(json.dumps(request))
    command = child_command("safe_ext_build.supervise.builder", str(workspace.path), isolated=False)
    ending = _supervise(command, build, workspace, signals)
    if ending.frontend_gone or ending.signal:
        farewell()
        workspace.remove()
        die_by(ending.signal or signal.SIGTERM)
    return _answer(build, _ended_by_itself(ending, workspace), workspace)


def run_command(
    command: list[str], tree: Tree, workspace: Workspace, signals: Signals, *, stands_for_us: bool = False
) -> tuple[int, int]:
    """Run a program under supervision; returns its exit status, and the signal that we were sent, or 0.

    We are no frontend's here, so it is no reason to end when our parent does. `stands_for_us`: we end as the
    program does: where it dies by a signal, that is what is returned, and no error. Raises SafeExtBuildError.
    """
    ending = _supervise(command, tree, workspace, signals, frontend=False)
    number = ending.signal or (_died_by(ending.verdict) if stands_for_us else 0)
    if number:
        return 128 + number, number
    return _ended_by_itself(ending, workspace).builder_status >> 8, 0


def _died_by(verdict: Verdict | None) -> int:
    """The signal that ended the program, and nothing before it; else 0."""
    killed = verdict.builder_status & 0x7F if verdict else 0
    return killed if verdict and killed and verdict.reason == BUILDER_KILLED.format(killed) else 0


def _supervise(
    command: list[str], tree: Tree, workspace: Workspace, signals: Signals, frontend: bool = True
) -> Ending:
    before = {process.pid for process in descendants(os.getpid(), snapshot())}
    with _subreaper(), terminal.shown(tree.progress, os.environ, workspace.path) as show:
        try:
            supervisor, lifeline = _start(command, tree, workspace, frontend, show)
            ending = _wait(supervisor, lifeline, signals, frontend)
            ending.supervisor = supervisor.returncode
            ending.verdict = Verdict.load(workspace.path / "verdict.json")
        finally:
            _clear(workspace, before)
    return ending


def _start(
    command: list[str], tree: Tree, workspace: Workspace, frontend: bool, show: Show
) -> tuple[subprocess.Popen[bytes], int]:
    reader, writer = os.pipe()
    parent = read(os.getppid())
    request = SupervisorRequest(
        workspace=str(workspace.path),
        lock=workspace.lock,
        lifeline=reader,
        hook=os.getpid(),
        frontend=os.getppid() if frontend else 0,
        frontend_start=parent.start if parent else 0,
        command=command,
        environ={**tree.environ, **terminal.lent(show), **_marks(workspace)},
        limits=tree.limits,
        compiles=tree.compiles,
        neighbours=tree.neighbours,
        patience=stall.PATIENCE,
        heartbeat=heartbeat.INTERVAL,
        show=asdict(show),
    )
    with writing(workspace.path):
        request.save(workspace.path / "supervisor.json")
    order = str(workspace.path / "supervisor.json")
    start = child_command("safe_ext_build.supervise.supervisor", order, isolated=True, parent=os.getpid())
    try:
        inherited = [descriptor for descriptor in (reader, workspace.lock, show.terminal) if descriptor >= 0]
        told = {**os.environ, WITHIN_VARIABLE: str(workspace.path)}  # for a build below it whose own was wiped
        supervisor = subprocess.Popen(start, env=told, pass_fds=inherited, start_new_session=True)
    except OSError as error:
        os.close(writer)
        what = f"the process that watches over a build cannot be started: {error.strerror}"
        raise SupervisionError(what, code="SEB-5013", hint=MORE_PROCESSES) from error
    finally:
        os.close(reader)
    return supervisor, writer


def _marks(workspace: Workspace) -> dict[str, str]:
    """The variables that tell whose a process is, and a build inside of this one where to register."""
    return {ID_VARIABLE: workspace.id, WITHIN_VARIABLE: str(workspace.path)}


def _wait(supervisor: subprocess.Popen[bytes], lifeline: int, signals: Signals, watch_parent: bool) -> Ending:
    """Wait for the supervisor's end; meanwhile pass on what we are told."""
    ending = Ending()
    pidfd, frontend = pidfd_open(supervisor.pid), _open_parent() if watch_parent else -1
    poll = select.poll()
    for descriptor in (pidfd, frontend, signals.reader):
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    try:
        while supervisor.poll() is None:
            for descriptor, _ in poll.poll():
                if descriptor == frontend:
                    ending.frontend_gone = True
                    poll.unregister(frontend)
                elif descriptor == signals.reader:
                    _pass_on(signals.take(), lifeline, ending)
            if ending.frontend_gone or ending.signal:
                supervisor.send_signal(signal.SIGCONT)  # somebody may have stopped it
    finally:
        for descriptor in (pidfd, frontend, lifeline):
            if descriptor >= 0:
                os.close(descriptor)
    return ending


def _open_parent() -> int:
    try:
        return pidfd_open(os.getppid())
    except OSError:
        return -1


def _pass_on(numbers: list[int], lifeline: int, ending: Ending) -> None:
    for number in numbers:
        if number == signal.SIGTSTP:
            _tell(lifeline, STOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            _tell(lifeline, CONTINUE)
        elif number in _BYTES:
            ending.signal = ending.signal or number
            _tell(lifeline, _BYTES[signal.Signals(number)])


def _tell(lifeline: int, byte: bytes) -> None:
    with contextlib.suppress(OSError):  # the supervisor has just ended
        os.write(lifeline, byte)


def _clear(workspace: Workspace, before: set[int]) -> None:
    """End what a killed supervisor left to us (nothing, after an orderly end), and what carries our marker."""

    def ours() -> list[Process]:
        table = {pid: process for pid, process in snapshot().items() if pid not in before}
        return descendants(os.getpid(), table)

    end_all(ours)
    if not (workspace.path / "verdict.json").exists():
        end_all(lambda: marked(workspace.id))


def die_by(number: int) -> NoReturn:
    """End as the signal ends a process, so that our parent sees the truth."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    sys.exit(128 + number)


def _ended_by_itself(ending: Ending, workspace: Workspace) -> Verdict:
    """The verdict on what has ended by itself; raises SafeExtBuildError for every other end."""
    verdict = ending.verdict
    if verdict is None:
        raise _without_a_verdict(ending.supervisor, workspace.path)
    if verdict.stuck:
        raise SupervisionError(
            f"the build has ended, but {', '.join(verdict.stuck)} is stuck in the kernel and cannot be killed",
            code="SEB-5002",
            hint="Such a process waits for a disk or a network file system; it ends when that answers.",
        )
    if verdict.reason:
        raise blame.stopped(verdict.reason)
    return verdict


def _without_a_verdict(status: int, place: Path) -> SupervisionError:
    """Why a supervisor that ended with this status, or minus the signal, has not said how the build ended."""
    again = "Nothing of it is left running; start the build again, and finished objects are used again."
    if status < 0:
        what = f"the process that watches over the build was killed (signal {-status}), so the build was ended"
        return SupervisionError(what, code="SEB-5001", hint=again)
    if not place.is_dir():
        what = f"{place}, which held the build's temporary files, was deleted while it ran, so the build was ended"
        return SupervisionError(what, code="SEB-5016", hint=f"A setup script may have done so. {again}")
    free = f"{shutil.disk_usage(place).free >> 20} MiB free there"
    if status == 0:
        what = f"how the build ended cannot be written to {place} ({free})"
        return SupervisionError(what, code="SEB-4011", hint=WORKSPACE_HINT)
    what = f"the process that watches over the build has failed (exit status {status}; {place}: {free})"
    return SupervisionError(what, code="SEB-5017", hint=again)


def _answer(build: Build, verdict: Verdict, workspace: Workspace) -> Any:
    try:
        answer = json.loads((workspace.path / "result.json").read_text())
    except (OSError, ValueError):
        status = verdict.builder_status >> 8
        raise BuildFailed(
            f"the setup script ended the process that ran it (exit status {status})",
            code="SEB-6103",
            hint="What it said stands above; look for os._exit or exec in it, or in what it imports.",
        ) from None
    if "value" in answer:
        return answer["value"]
    if "missing" in answer:
        raise HookMissing(
            f"the build backend {build.backend} has no hook {build.hook}",
            code="SEB-1016",
            hint=hook_hint(build.backend),
        )
    if missing := _missing_sources(verdict, workspace):
        raise blame.missing_sources(missing, here())
    if verdict.failure:
        raise blame.compile_failure(verdict.failure)
    raise BuildFailed(answer["error"], code=answer["code"], hint=answer.get("hint", ""))


def _missing_sources(verdict: Verdict, workspace: Workspace) -> list[str]:
    """What ninja was to compile and could not find; or what a compiler was."""
    try:
        return list(dict.fromkeys((workspace.path / MISSING).read_text(errors="replace").splitlines()))
    except OSError:
        failure = verdict.failure
        missing = failure and blame.missing_to_compiler(failure["source"], failure["error"])
        return [failure["source"]] if failure and missing else []


@contextlib.contextmanager
def _subreaper() -> Iterator[None]:
    before = is_subreaper()
    set_subreaper(True)
    try:
        yield
    finally:
        set_subreaper(before)


class Signals:
    """Signals as numbers on a pipe, while a hook runs; afterwards every handler is what it was, and gets those
    that nobody has taken: a signal must end us neither before the workspace has an owner nor before it is gone.

    Signals that are ignored (nohup) stay ignored. Outside of the main thread Python cannot handle signals:
    there we leave them alone, and the supervisor still sees us end.
    """

    def __enter__(self) -> Signals:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._old: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return self
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*_BYTES, signal.SIGTSTP, signal.SIGCONT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, _note)
        return self

    def take(self) -> list[int]:
        try:
            return list(os.read(self.reader, 256))
        except BlockingIOError:
            return []

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._old.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        late = self.take()
        os.close(self.reader)
        os.close(self._writer)
        for number in late:
            if number in self._old and number != signal.SIGCONT:
                os.kill(os.getpid(), number)


def _note(number: int, frame: FrameType | None) -> None:
    """The number is already on the pipe."""
