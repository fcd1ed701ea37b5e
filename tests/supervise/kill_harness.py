"""Runs a build, hits something in it, and measures from outside what is left.

What belongs to a build is told by a marker of ours in the environment, or by the stand-in compiler that only
this session has: processes are never found, or ended, by their names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARKER = "SEB_KILL_TEST"
PROMISE = 3.0
"""Seconds within which nothing may be left: what the product promises."""
BYSTANDERS = ("ninja", "nvcc", "cicc", "ptxas")
STANDIN = Path(__file__).parents[1] / "projects" / "standin"
HOME = str(Path(__file__).parents[2])
# What pip, uv and pyproject_hooks leave behind when they are killed themselves.
FRONTEND_LEFTOVERS = re.compile(r"pip-.*|\.?uv.*|tmp[a-z0-9_]{8}")
OUTPUTS = ("build", "dist")
TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execvp(sys.argv[1], sys.argv[1:])"
)
PLAIN_VARIABLES = ("PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT")


def compile_c(text: Path | str, output: Path) -> Path:
    """A program from C source; `text` is a file, or the source itself."""
    given = ["-x", "c", "-"] if isinstance(text, str) else [str(text)]
    data = text if isinstance(text, str) else None
    subprocess.run(["gcc", "-O1", *given, "-o", str(output)], input=data, text=True, check=True)
    return output


def every_pid() -> Iterator[int]:
    """Those included that start while we look at the others: one that replaces itself must not be missed."""
    seen: set[int] = set()
    for _ in range(100):
        new = set(psutil.pids()) - seen
        yield from new
        seen |= new
        if not new:
            return


def mounts() -> str:
    """Why nothing can be mounted for a test alone; empty when it can."""
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip()


class Bystanders:
    """Innocent processes that bear the names of build tools, each in a session of its own."""

    def __init__(self, folder: Path) -> None:
        self.started = []
        for name in BYSTANDERS:
            program = compile_c("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n", folder / name)
            self.started.append(subprocess.Popen([program], start_new_session=True))

    def dead(self) -> list[str]:
        return [name for name, process in zip(BYSTANDERS, self.started, strict=True) if process.poll() is not None]

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Project:
    """A copy of the stand-in project, with a compiler and scratch directories of its own."""

    root: Path
    compiler: Path
    scratch: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def temp(self) -> Path:
        return self.scratch / "tmp"

    @property
    def workspaces(self) -> Path:
        return self.scratch / "workspaces"

    @property
    def runtime(self) -> Path:
        return self.scratch / "run"

    @property
    def wheels(self) -> Path:
        return self.scratch / "wheels"

    @property
    def objects(self) -> Path:
        return self.root / "build" / "objects"

    def environ(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in PLAIN_VARIABLES if name in os.environ},
            "TMPDIR": str(self.temp),
            "SAFE_EXT_BUILD_WORKSPACE_DIR": str(self.workspaces),
            "XDG_CACHE_HOME": str(self.scratch / "cache"),
            # Where builds of one user meet: these are not to share CPUs and memory with what else runs here.
            "XDG_RUNTIME_DIR": str(self.runtime),
            "UV_CACHE_DIR": str(self.scratch / "uv"),
            "STANDIN_COMPILER": str(self.compiler),
            "MAX_JOBS": "2",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            **self.variables,
        }

    def write_sources(self, sources: Mapping[str, str]) -> None:
        """`sources`: name -> what the stand-in does."""
        shutil.rmtree(self.root / "csrc", ignore_errors=True)
        (self.root / "csrc").mkdir()
        for name, plan in sources.items():
            (self.root / "csrc" / f"{name}.cu").write_text(f"//! {plan}\n")

    def pip(self, *options: str) -> list[str]:
        fixed = ["--no-build-isolation", "--no-deps", "-w", str(self.wheels)]
        return [sys.executable, "-m", "pip", "wheel", *fixed, *options, "."]

    def uv(self, *options: str) -> list[str]:
        program = Path(sys.executable).with_name("uv")
        found = str(program) if program.exists() else shutil.which("uv") or "uv"
        fixed = ["--wheel", "--no-build-isolation", "--python", sys.executable, "-o", str(self.wheels)]
        return [found, "build", *fixed, *options, "."]

    def frontend(self, name: str) -> list[str]:
        return self.pip() if name == "pip" else self.uv()

    def hook(self, name: str = "build_wheel") -> list[str]:
        """A hook called as a frontend's hook process calls it: this process is the hook process."""
        code = f"import sys; from safe_ext_build import build_meta; build_meta.{name}(sys.argv[1])"
        return [sys.executable, "-c", code, str(self.wheels)]

    def files(self) -> set[str]:
        """What the project holds, its outputs aside."""
        found = set()
        for folder, folders, names in os.walk(self.root):
            folders[:] = [f for f in folders if f not in OUTPUTS and not f.endswith(".egg-info")]
            found |= {os.path.relpath(Path(folder, name), self.root) for name in [*names, *folders]}
        return found

    def half_written(self) -> list[str]:
        """Objects under their final names that were not finished."""
        objects = self.root.glob("build/**/*.o")
        return [str(path) for path in objects if not is_whole(path.read_bytes())]


def is_whole(data: bytes) -> bool:
    """An object of a real compiler ends with its section headers (elf(5), 64 bits); the stand-in's says it."""
    if not data.startswith(b"\x7fELF"):
        return b"whole" in data
    offset, size, count = (int.from_bytes(data[at:to], "little") for at, to in ((40, 48), (58, 60), (60, 62)))
    return offset > 0 and len(data) >= offset + size * count


def make_project(folder: Path, compiler: Path, **variables: str) -> Project:
    root = folder / "project"
    shutil.copytree(STANDIN, root)
    project = Project(root, compiler, folder, variables)
    for place in (project.temp, project.workspaces, project.wheels, project.runtime):
        place.mkdir(mode=0o700)
    return project


class Build:
    """A build in a session of its own, or as the foreground job of a terminal of its own."""

    def __init__(self, project: Project, command: list[str], terminal: bool = False) -> None:
        self.project = project
        self.run = uuid.uuid4().hex
        self.files_before = project.files()
        self.output = b""
        self.hit_at = 0.0
        self.hit_frontend = False
        self._master = -1
        self._log = project.scratch / f"log-{self.run[:8]}"
        self.process = self._start(command, terminal)
        self.frontend = psutil.Process(self.process.pid)

    def _start(self, command: list[str], terminal: bool) -> subprocess.Popen[bytes]:
        environ = {**self.project.environ(), MARKER: self.run}
        where = self.project.root
        if not terminal:
            with self._log.open("wb") as log:
                return subprocess.Popen(
                    command, cwd=where, env=environ, stdout=log, stderr=log, start_new_session=True
                )
        self._master, slave = pty.openpty()
        fcntl.fcntl(self._master, fcntl.F_SETFL, os.O_NONBLOCK)
        try:
            full = [sys.executable, "-c", TERMINAL, *command]
            return subprocess.Popen(full, cwd=where, env=environ, stdin=slave, stdout=slave, stderr=slave)
        finally:
            os.close(slave)

    # Watching.

    def processes(self) -> list[psutil.Process]:
        """What lives of this build, zombies left out."""
        self._drain()
        self.process.poll()
        return [found for pid in every_pid() if (found := self._if_ours(pid))]

    def _if_ours(self, pid: int) -> psutil.Process | None:
        try:
            process = psutil.Process(pid)
            marked = process.environ().get(MARKER) == self.run or process.exe() == str(self.project.compiler)
            return process if marked and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def named(self, name: str) -> list[psutil.Process]:
        return [process for process in self.processes() if _name(process) == name]

    def names(self) -> list[str]:
        return sorted(_name(process) for process in self.processes())

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the build ended before {what}:\n{self.text()}"
            assert time.monotonic() < deadline, f"{what} never came: {self.names()}\n{self.text()}"
            time.sleep(0.03)

    def wait_for(self, name: str, count: int = 1) -> None:
        self.wait_until(lambda: len(self.named(name)) >= count, f"{count} x {name}")

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for the frontend; returns its status as subprocess has it."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            self._drain()
            assert time.monotonic() < deadline, f"the frontend did not end: {self.names()}\n{self.text()}"
            time.sleep(0.02)
        return self.process.returncode

    def text(self) -> str:
        self._drain()
        log = self._log.read_bytes() if self._log.exists() else b""
        return (self.output + log).decode(errors="replace").replace("\r\n", "\n")

    def _drain(self) -> None:
        while self._master >= 0:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return  # nothing more for now, or (EIO) nobody on the other side
            if not data:
                return
            self.output += data

    # Hitting.

    def victims(self, kind: str) -> list[int]:
        """`frontend`, `hook` (its child), or a process's name: one of that name. Several are joined by `+`."""
        if "+" in kind:
            return [pid for part in kind.split("+") for pid in self.victims(part)]
        if kind == "frontend":
            return [self.process.pid]
        if kind == "hook":
            return [self.frontend.children()[0].pid]
        return [self.named(kind)[0].pid]

    def hit(self, kind: str, number: int) -> None:
        """Send a signal; `group` is the frontend's process group."""
        pids = [] if kind == "group" else self.victims(kind)
        self.mark(kind)
        if kind == "group":
            os.killpg(self.process.pid, number)
        for pid in pids:
            os.kill(pid, number)

    def press(self, byte: bytes) -> None:
        """What the terminal turns into a signal to its foreground group: ^C, ^\\ or ^Z."""
        self.mark("group")
        os.write(self._master, byte)

    def resize(self, columns: int, rows: int) -> None:
        """What the window of a terminal does."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def hang_up(self) -> None:
        self.mark("group")
        os.close(self._master)
        self._master = -1

    def mark(self, kind: str) -> None:
        self.hit_frontend = kind == "group" or "frontend" in kind
        self.hit_at = time.monotonic()

    # What is left.

    def seconds_to_clear(self, limit: float = 10.0, frontend: bool = True) -> float:
        """From the hit until no process of the build lives; infinite when some live after `limit` seconds.

        `frontend=False` leaves out pip or uv itself, which may take its time to report a hook that has died.
        """
        apart = -1 if frontend else self.process.pid
        while time.monotonic() < self.hit_at + limit:
            if all(process.pid == apart for process in self.processes()):
                return time.monotonic() - self.hit_at
            time.sleep(0.02)
        return float("inf")

    def leftovers(self) -> list[str]:
        """Files that a build should not leave."""
        left = [
            f"temp: {path.name}"
            for path in self.project.temp.iterdir()
            if not (self.hit_frontend and FRONTEND_LEFTOVERS.fullmatch(path.name))
        ]
        left += [f"workspace: {path.name}" for path in self.project.workspaces.iterdir() if path.name != ".lock"]
        left += [f"project: {name}" for name in sorted(self.project.files() - self.files_before)]
        return left + [f"half written: {path}" for path in self.project.half_written()]

    def close(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.poll()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)


@contextlib.contextmanager
def started(project: Project, command: list[str], terminal: bool = False) -> Iterator[Build]:
    """A build that is ended, by its marker, whatever the test finds."""
    with default_signals(), without_core_files():
        build = Build(project, command, terminal)
    try:
        yield build
    finally:
        build.close()


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """A child keeps what is ignored, and who runs us in the background may have us ignore INT, QUIT and HUP."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def without_core_files() -> Iterator[None]:
    """SIGQUIT makes the kernel write one into the project; that is no file of the build's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def number_of(name: str) -> int:
    return int(getattr(signal, f"SIG{name}"))


def build_again(project: Project, hook: str = "build_wheel") -> str:
    """The next build, through the hook itself (a frontend would cost a second more); returns its output."""
    done = subprocess.run(
        project.hook(hook),
        cwd=project.root,
        env=project.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, text
    return text
