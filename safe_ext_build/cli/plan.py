"""`safe-ext-build plan`: what a build would do here, and why. Nothing is written, nothing of the project runs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import driver, preflight, settings, store
from ..errors import SafeExtBuildError
from ..here import here as current
from ..launcher.redact import redact
from ..machine import read_machine
from ..report.words import count, duration, name
from ..scene import naming
from ..schedule.history import History
from ..schedule.history_key import scope
from ..settings import Settings
from ..supervise import workspace
from ..supervise.turn import Turn
from ..toolchain.fingerprint import host_compiler
from . import printing
from .expected import Expected, expect
from .foresight import foreseen
from .project import OURS, Project
from .target import find_target
from .wheel import read_options

if TYPE_CHECKING:
    from ..farm.share import Share

_EPILOG = """
The lines are those that the build itself says. None of the project's code runs, and nothing is written. The exit
status is 1 where the build would end before its first compile.
"""


@dataclass(frozen=True)
class Outline:
    """What a build would do. `objects`: where they are kept, None for setuptools' own place below the project."""

    project: str
    directory: str
    backend: str
    decided: driver.Decisions
    objects: Path | None
    workspaces: Path
    expected: Expected | None


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "say what a build of a project would do here, and why"
    parser = commands.add_parser("plan", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    parser.add_argument("directory", metavar="DIR", nargs="?", default=".", help="the project's (default: .)")
    parser.add_argument("--json", action="store_true", help="the same as JSON, with the environment of the build")
    parser.add_argument(
        "--python", metavar="PYTHON", help="the Python of the environment that will import the result"
    )
    what = "a setting, or an option of the project's own backend (repeatable)"
    repeated: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("-C", "--config-setting", dest="options", metavar="KEY=VALUE", help=what, **repeated)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Decide as a build would, and print it. Raises what the build would end with."""
    directory = Path(arguments.directory)
    if not directory.is_dir():
        hint = "Name the directory of a project."
        raise SafeExtBuildError(f"{directory} is no directory", code="SEB-8003", hint=hint)
    named = find_target(arguments.python).variables if arguments.python else {}
    with _standing_in(directory, named):
        outline = outline_of(read_options(arguments.options))
    if arguments.json:
        printing.out_json(printing.shareable(document(outline)))
    else:
        printing.out("\n".join(map(printing.folded, render(outline))))
    if outline.decided.obstacle:
        raise outline.decided.obstacle
    return 0


@contextlib.contextmanager
def _standing_in(directory: Path, named: Mapping[str, str]) -> Iterator[None]:
    """In the directory where a frontend calls hooks, with the variables by which a target is named."""
    before, variables = os.open(".", os.O_RDONLY | os.O_DIRECTORY), dict(os.environ)
    try:
        os.chdir(directory)
        os.environ.update(named)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
        os.environ.clear()
        os.environ.update(variables)


def outline_of(options: dict[str, Any]) -> Outline:
    """What a build of the project in this directory would do. Raises SafeExtBuildError."""
    here = current()
    project = Project.read(here)
    chosen, _ = settings.load(here, project.with_backend(options, os.environ), os.environ)
    task = driver.Task("build_wheel", {}, compiles=True)
    decided = driver.decide(task, chosen, os.getpid(), cache=None)
    obstacle = decided.obstacle or foreseen(project, chosen, decided.torch)
    cache = workspace.cache_root(dict(os.environ), make=False)
    fields = naming(decided.torch, decided.cuda, decided.plan)
    lasts = preflight.unwritable(here) is None
    objects = store.where(here, task.hook, chosen.build_dir, cache, fields, lasts)
    place = objects if store.is_passing(here) and objects else here
    said, refusal = _turn(place, fields["project"], chosen).outlook()
    warnings = (*decided.warnings, *([said] if said else []))
    decided = dataclasses.replace(decided, warnings=warnings, obstacle=obstacle or refusal)
    return Outline(
        project=fields["project"],
        directory=str(here),
        backend=chosen.inner_backend if project.backend == OURS else project.backend,
        decided=decided,
        objects=objects,
        workspaces=_workspaces(chosen),
        expected=_expected(decided, cache, fields["project"], here),
    )


def _turn(place: Path, project: str, chosen: Settings) -> Turn:
    return Turn(place, project, chosen.on_running, chosen.source("on-running"), chosen.progress, os.environ, False)


def _workspaces(chosen: Settings) -> Path:
    return workspace.root(chosen.workspace.dir, dict(os.environ), make=False)


def _expected(decided: driver.Decisions, cache: Path, project: str, here: Path) -> Expected | None:
    history = History(cache / "history.sqlite").peek(scope(project))
    host = host_compiler({**os.environ, **decided.plan.environment})
    compilers = {host, decided.cuda.build if decided.cuda else host}

    def is_there(source: str) -> bool:
        return (here / source).is_file()

    return expect(history, compilers, is_there, decided.cuda, decided.plan, read_machine())


def render(outline: Outline) -> Iterator[str]:
    """The lines for people."""
    yield printing.shareable(f"{outline.project} in {outline.directory}, built by {outline.backend}")
    for line in outline.decided.lines:
        yield printing.shareable(f"- {line}")
    for line in outline.decided.warnings:
        yield printing.shareable(f"- {printing.paint('warning:', 'yellow')} {line}")
    where = f"in {outline.objects}" if outline.objects else "below the project, in its backend's build directory"
    yield printing.shareable(f"- objects are kept {where}; temporary files go to {outline.workspaces}")
    yield f"- {expected_line(outline.expected)}"


def expected_line(expected: Expected | None) -> str:
    """The time that the compiles will take, in words."""
    if expected is None:
        return "expected time: not known, as no build with these compilers has compiled this project yet"
    about = f"expected time: about {duration(expected.seconds)} for {count(expected.compiles, 'compile')}"
    longest = f"{name(expected.longest)} alone takes {duration(expected.longest_seconds)}"
    return f"{about}, if all are compiled anew ({longest}), as in earlier builds"


def farm_document(share: Share | None) -> dict[str, Any] | None:
    """What a build would have of a compile farm; no slots where it may have nothing, as a line says."""
    if share is None:
        return None
    return {"scheduler": redact(share.scheduler), "slots": share.slots, "fixed": share.fixed}


def document(outline: Outline) -> dict[str, Any]:
    """The plan as JSON has it."""
    decided = outline.decided
    facts = decided.torch.facts if decided.torch else None
    return {
        "project": outline.project,
        "directory": outline.directory,
        "backend": outline.backend,
        "lines": list(decided.lines),
        "warnings": list(decided.warnings),
        "error": str(decided.obstacle or ""),
        "hint": decided.obstacle.hint if decided.obstacle else "",
        "error_code": decided.obstacle.code if decided.obstacle else "",
        "torch": {"version": facts.version, "cuda": facts.cuda, "package": str(facts.package)} if facts else None,
        "toolkit": {"home": str(decided.cuda.home), "build": decided.cuda.build} if decided.cuda else None,
        "archs": decided.cuda.archs if decided.cuda else "",
        "jobs": {"most": decided.plan.most_jobs, "planned": decided.plan.jobs, "cpus": decided.plan.cpus},
        "farm": farm_document(decided.plan.farm),
        "environment": dict(decided.plan.environment),
        "objects": str(outline.objects) if outline.objects else None,
        "workspaces": str(outline.workspaces),
        "expected": dataclasses.asdict(outline.expected) if outline.expected else None,
    }
