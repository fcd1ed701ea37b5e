"""`safe-ext-build history`: what is remembered of earlier compiles, and how to forget it."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .. import ui
from ..errors import SafeExtBuildError
from ..report.words import count, duration, name, size
from ..schedule.forecast import Curve
from ..schedule.history import History
from ..schedule.history_key import read, scope
from ..supervise import workspace
from . import printing

_EPILOG = """
The history tells how much memory a compile will take, and for how long, so that the next build is planned well.
Without it a build is slower at first, and otherwise the same.
"""


@dataclass(frozen=True)
class Line:
    """A project, or one of its sources: `seconds` is the sum of what its compiles took alone, `peak` in bytes."""

    name: str
    compiles: int
    seconds: float
    peak: int


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "show or forget what earlier compiles have cost"
    parser = commands.add_parser("history", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    parser.add_argument("action", choices=("show", "clear"), nargs="?", default="show", help="(default: show)")
    parser.add_argument("project", metavar="PROJECT", nargs="?", default="", help="of one project only")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show it, or forget it. Raises SafeExtBuildError where it cannot be read."""
    told: list[str] = []
    path = workspace.cache_root(dict(os.environ), make=False) / "history.sqlite"
    history = History(path, told.append)
    prefix = scope(arguments.project) if arguments.project else ""
    known = history.peek(prefix)
    if arguments.action == "clear" and not told:
        gone = history.forget(prefix)
    if told:
        hint = f"Delete {path} to begin anew." if path.exists() else ""
        what = f"the history of compiles cannot be used: {told[0].partition(': ')[2]}"
        raise SafeExtBuildError(printing.shareable(what), code="SEB-8012", hint=printing.shareable(hint))
    if arguments.action == "clear":
        ui.say(f"forgotten: what {count(gone, 'compile')} took")
    elif arguments.json:
        printing.out_json([dataclasses.asdict(line) for line in summary(known, bool(prefix))])
    else:
        printing.out("\n".join(render(summary(known, bool(prefix)), arguments.project)))
    return 0


def summary(known: Mapping[str, Curve], by_source: bool) -> list[Line]:
    """A line for each project, or for each source of one; what took longest first. Pure."""
    groups: dict[str, list[Curve]] = {}
    for entry, curve in known.items():
        if parts := read(entry):
            groups.setdefault(parts.source if by_source else parts.project, []).append(curve)
    lines = [
        Line(key, len(curves), round(sum(curve.seconds for curve in curves), 1), max(map(_peak, curves)))
        for key, curves in groups.items()
    ]
    return sorted(lines, key=lambda line: (-line.seconds, line.name))


def _peak(curve: Curve) -> int:
    return curve.peak


def render(lines: list[Line], project: str) -> Iterator[str]:
    """A table for people. Pure."""
    if not lines:
        yield (
            f"nothing is known of {project}" if project else "nothing is known yet: no build has compiled anything"
        )
        return
    yield f"{'compiles':>8} {'time':>12} {'most memory':>12}  {'source' if project else 'project'}"
    for line in lines:
        yield f"{line.compiles:>8} {duration(line.seconds):>12} {size(line.peak):>12}  {name(line.name)}"
