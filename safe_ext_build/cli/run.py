"""`safe-ext-build run -- COMMAND`: any build command, under our plan and our supervision."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shlex
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

from .. import driver, preflight, settings, staging, store, ui
from ..errors import SafeExtBuildError, ToolkitError
from ..here import here
from ..scene import COMMAND, Scene, is_project
from ..settings import Settings
from ..supervise import hook, workspace
from ..supervise.turn import Taken, Turn
from ..toolchain import find
from ..toolchain.borrow import TorchSource
from ..toolchain.find import Cuda, Torch
from ..toolchain.host import Host, fit_host
from ..toolchain.target import Environment
from ..toolchain.torch import read_torch
from .target import find_target
from .wheel import read_options

_DEADLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_EPILOG = """
For projects whose pyproject.toml is not yours: `safe-ext-build run -- pip install --no-build-isolation NAME`.
The exit status is the command's, and so is the signal by which it died; 127 where there is no such command, 126
where it cannot be executed.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "run any build command with the toolkit, the scheduling and the supervision of a build of ours"
    parser = commands.add_parser("run", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    what = "the Python whose torch is built against (default: the command's own, else the first on PATH)"
    parser.add_argument("--python", metavar="PYTHON", help=what)
    what = "a setting (repeatable)"
    parser.add_argument(
        "-C", "--config-setting", dest="options", metavar="KEY=VALUE", action="append", default=[], help=what
    )
    parser.add_argument("command", metavar="COMMAND", nargs="+", help="after `--`: the command and its arguments")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run it; returns its exit status, or dies by its signal."""
    if platform.system() != "Linux":
        what = "`safe-ext-build run` needs Linux"
        raise SafeExtBuildError(what, code="SEB-5012", hint="Elsewhere, run the command as it is.")
    program = _program(arguments.command[0])
    chosen, _ = settings.load(here(), read_options(arguments.options), os.environ)
    with store.using(workspace.cache_root(dict(os.environ))):
        status, number = _run(chosen, _environment(arguments.python, program), program, arguments.command)
    if number in _DEADLY:
        hook.die_by(number)
    return status


def _run(chosen: Settings, environment: Environment, program: Path, command: list[str]) -> tuple[int, int]:
    """Run the command when it is its turn. In a directory that is no project nobody else is in its way."""
    place, source = here(), chosen.source("on-running")
    name, mode = store.name(place), chosen.on_running
    turn = Turn(place, name, mode, source, chosen.progress, os.environ, for_frontend=False)
    while True:
        if is_project(place):
            turn.await_it()
        scene = decide(chosen, environment, command)
        scene = replace(scene, turn=turn) if is_project(place) else scene
        with contextlib.suppress(Taken):
            return staging.run_command(scene, [str(program), *command[1:]])


def _program(name: str) -> Path:
    """The program that a word stands for. Raises SafeExtBuildError when there is none."""
    found = shutil.which(name)
    if found is None:
        raise _no_program(name)
    return Path(found).absolute()


class NotRun(SafeExtBuildError):
    """There is no such program: 127, as shells have it."""

    status = 127


class NotExecutable(NotRun):
    """It is there, and cannot be run: 126, as shells have it."""

    status = 126


def _no_program(name: str) -> SafeExtBuildError:
    path = Path(name)
    if os.sep in name and path.exists():
        what, hint = f"{name} is a directory", "Name a program: safe-ext-build run -- COMMAND..."
        if path.is_file():
            what = f"{name} may not be executed"
            hint = f"Make it a program (chmod +x {name}), or name its interpreter."
        return NotExecutable(what, code="SEB-8002", hint=hint)
    hint = "Name a program that is on PATH, or its path: safe-ext-build run -- COMMAND..."
    return NotRun(f"there is no command {name}", code="SEB-8002", hint=hint)


def _environment(named: str | None, program: Path) -> Environment:
    """The environment that the result is for."""
    if named:
        return find_target(named).environment
    candidates = [interpreter(program), shutil.which("python"), sys.executable]
    found = []
    for python in filter(None, candidates):
        try:
            found.append(find_target(python).environment)
        except SafeExtBuildError:
            continue
        if found[-1].torch:
            return found[-1]
    return found[0]


def interpreter(program: Path) -> str | None:
    """The Python that a program is, or, for a script such as pip, that its first line names."""
    if program.name.startswith("python"):
        return str(program)
    with program.open("rb") as file:
        first = file.readline(4096)
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    return words[0] if words and Path(words[0]).name.startswith("python") else None


def decide(chosen: Settings, environment: Environment, command: list[str]) -> Scene:
    """Make the plan, and say it. Raises SafeExtBuildError."""
    torch = _torch(environment)
    cuda = find.find_cuda(chosen, torch, os.environ, workspace.cache_root(dict(os.environ)))
    planned = driver.make_plan(chosen, cuda, torch.source.line, _host(torch, cuda))
    for line in planned.lines:
        ui.say(line)
    for line in preflight.check(chosen, torch.facts is not None):
        ui.warn(line)
    label = "" if is_project(here()) else shlex.join(command)[:100]
    return Scene(COMMAND, {}, chosen, torch, cuda, planned, compiles=True, label=label)


def _torch(environment: Environment) -> Torch:
    """The torch of an environment, which the command finds there by itself: nothing is lent."""
    if environment.torch is None:
        source = TorchSource("none", None, f"no torch to build against in {environment.prefix}")
        return Torch(source, environment, None, environment)
    facts = read_torch(environment.torch, [Path(entry) for entry in environment.path])
    source = TorchSource("own", environment.torch, f"building against {facts.describe()} of {environment.prefix}")
    return Torch(source, environment, facts, environment)


def _host(torch: Torch, cuda: Cuda | None) -> Host | None:
    """The host compilers. A command may compile nothing, so it is none of our errors when there is none."""
    if torch.facts is None:
        return None
    try:
        return fit_host(torch.facts, cuda.home if cuda else None, cuda.build if cuda else "", os.environ)
    except ToolkitError as error:
        ui.warn(str(error))
        return None
