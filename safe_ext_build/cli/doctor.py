"""`safe-ext-build doctor`: whether this machine can build, what a build would find here, and what to mend."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator
from itertools import groupby

from ..here import here
from . import printing
from .checkup import Checkup, Finding, look
from .target import find_target

_EPILOG = """
Run it in the project's directory, with the Python that builds. Nothing is built, and torch is not imported. What
is printed can be shown to anybody: the home directory is written as ~, and of variables only those that are about
compilers are shown. The exit status is 0 when there is no problem, else 1.
"""
_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "red")}
_COLUMN = 9


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "say whether this machine can build, and what to mend"
    parser = commands.add_parser("doctor", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--python", metavar="PYTHON", help="the Python of the environment that will import the result"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Look, and print; 1 when there is a problem."""
    environ = dict(os.environ)
    if arguments.python:
        environ |= find_target(arguments.python).variables
    found = look(environ, here())
    if arguments.json:
        printing.out_json(printing.shareable(document(found)))
    else:
        printing.out("\n".join(render(found)))
    return 1 if found.problems else 0


def document(found: Checkup) -> dict[str, object]:
    """The checkup as JSON has it."""
    return {**dataclasses.asdict(found), "problems": found.problems}


def render(found: Checkup) -> Iterator[str]:
    """The lines of a report that one can paste."""
    yield printing.paint(f"safe-ext-build {found.version}", "bold")
    yield _line(f"Python {found.python}")
    yield _line(found.system)
    for topic, findings in groupby(found.findings, key=lambda finding: finding.topic):
        yield ""
        yield printing.paint(topic, "bold")
        for finding in findings:
            yield from _entry(finding)
    yield ""
    yield _verdict(found)


def _entry(finding: Finding) -> Iterator[str]:
    word, color = _MARKS[finding.status]
    indent = " " * (_COLUMN + 2)
    mark = printing.paint(word, color) + " " * (_COLUMN - len(word))
    # Folded without the colours, which have no width.
    code = f" [{finding.code}]" if finding.code else ""
    yield _line(f"  {word:{_COLUMN}}{finding.text}{code}", indent).replace(f"  {word:{_COLUMN}}", f"  {mark}", 1)
    for line in finding.fix.splitlines():
        yield _line(f"{indent}fix: {line}", indent + " " * 5)


def _line(text: str, indent: str = "") -> str:
    shown: str = printing.shareable(text)
    return printing.folded(shown, indent)


def _verdict(found: Checkup) -> str:
    if not found.problems:
        return printing.paint("No problem was found.", "green")
    return printing.paint(f"{found.problems} problem{'s' if found.problems > 1 else ''} to mend.", "red")
