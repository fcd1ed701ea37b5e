"""`safe-ext-build kill`: ends builds from outside, and proves that nothing of them is left."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .. import ui
from ..errors import SafeExtBuildError, SupervisionError
from ..machine.neighbours import Record, living
from ..supervise import ending, workspace
from ..supervise.ending import Outcome

_EPILOG = """
Only your own builds are ended. What belongs to one is told by descent from its supervisor and by a marker in
the environment, never by a name. Finished objects are kept, and the next build uses them.
"""
SHORTEST = 4
"""Letters of an id that are enough: `kill 1` is a slip, or means a process id."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "end a build and all that belongs to it, and prove that nothing is left"
    parser = commands.add_parser("kill", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    which = parser.add_mutually_exclusive_group()
    what = f"as `safe-ext-build builds` lists it, or its beginning ({SHORTEST} letters at least)"
    which.add_argument("build", metavar="ID", nargs="?", help=what)
    which.add_argument("--all", action="store_true", help="all of your builds on this machine, lost ones included")
    which.add_argument("--stale", action="store_true", help="only what builds left whose supervisor was lost")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """End what was named; 0 when nothing of it is left."""
    records = [record for record in living(os.environ) if record.workspace]
    chosen = [] if arguments.stale else records if arguments.all else [choose(records, arguments.build)]
    status = max([_report(_end(record)) for record in chosen], default=0)
    if arguments.all or arguments.stale:
        outcomes = ending.end_lost(_roots(), [record.build for record in living(os.environ)])
        status = max([status, *map(_report, outcomes)])
        if not outcomes and not chosen:
            ui.say("all clear: there was nothing to end")
    return status


def choose(records: list[Record], named: str | None) -> Record:
    """The build that is meant. Raises SafeExtBuildError when that is none, or may be more than one: without an id
    it may be, since the only one that runs now need not be the one that was looked at."""
    if named and len(named) < SHORTEST and all(record.build != named for record in records):
        what = f"{named} is too short for the id of a build: give {SHORTEST} letters of it at least"
        raise SafeExtBuildError(what, code="SEB-5008", hint=_listed(records))
    found = [record for record in records if record.build.startswith(named or "")]
    if named and len(found) == 1:
        return found[0]
    which = f" whose id begins with {named}" if named else ""
    if not found:
        hint = "`safe-ext-build builds` lists those that run; --stale ends what lost ones left."
        raise SafeExtBuildError(f"no build of yours runs here{which}", code="SEB-5007", hint=hint)
    how_many = "1 build of yours runs" if len(found) == 1 else f"{len(found)} builds of yours run"
    what = f"{how_many} here{which}: name it by its id, or say --all"
    raise SafeExtBuildError(what, code="SEB-5008", hint=_listed(found))


def _listed(records: list[Record]) -> str:
    running = "\n".join(f"{record.build}  {record.project}" for record in records)
    return running or "No build of yours runs here; `safe-ext-build builds` lists those that do."


def _end(record: Record) -> Outcome:
    outcome = ending.end(record.build, Path(record.workspace))
    if any(other.build == record.build for other in living(os.environ)):
        outcome.left.append(f"its supervisor (pid {record.pid}) lives")
    return outcome


def _report(outcome: Outcome) -> int:
    """Say how it went; returns the exit status that this makes."""
    if outcome.left:
        hint = "Give the command once more; what waits for a disk or a network ends when that answers."
        ui.show_error(SupervisionError(f"build {outcome.sentence}", code="SEB-5009", hint=hint))
        return 1
    ui.say(f"build {outcome.sentence}")
    return 0


def _roots() -> list[Path]:
    """Where workspaces of this user may be, as far as can be told without knowing the projects."""
    named = os.environ.get("SAFE_EXT_BUILD_WORKSPACE_DIR")
    environ = dict(os.environ)
    usual = [workspace.default_root(environ), Path(f"/var/tmp/safe-ext-build-{os.getuid()}")]
    usual.append(workspace.cache_root(environ) / "workspaces")
    roots = [Path(named).absolute()] if named else usual
    return list(dict.fromkeys(roots))
