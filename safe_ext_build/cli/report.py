"""`safe-ext-build report`: what a build did, as text, as a page, as JSON, or as a trace."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .. import ui
from ..errors import SafeExtBuildError
from ..report import shelf
from ..report.record import Record
from ..report.text import to_text
from ..supervise import workspace
from . import printing

_EPILOG = """
Each build that compiles leaves a record in the user's cache; the last 50 are kept. --trace prints what Perfetto
(https://ui.perfetto.dev) and chrome://tracing open.
"""
_HINT = "A record is left by each build that compiles, or written to a file of yours with report.path."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "show what the last build, or a given one, did"
    parser = commands.add_parser("report", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    parser.add_argument("build", metavar="FILE|ID", nargs="?", default="", help="a record, or a build's id")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="OUT", help="write one page to look at in a browser")
    form.add_argument("--json", action="store_true", help="print the record")
    form.add_argument("--trace", action="store_true", help="print a trace")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show it. Raises SafeExtBuildError where there is no such build."""
    record = read(arguments.build, workspace.cache_root(dict(os.environ), make=False))
    if arguments.html:
        _write(record, Path(arguments.html))
    elif arguments.json or arguments.trace:
        printing.out(shelf.render(record, ".json" if arguments.json else ".trace.json").rstrip("\n"))
    else:
        printing.out("\n".join(printing.folded(line, "  ") for line in to_text(record)))
    return 0


def read(build: str, cache: Path) -> Record:
    """The record in a file, or of a build by (the beginning of) its id; the last one for ''."""
    try:
        return shelf.load(Path(build) if is_file(build) else shelf.find(cache, build))
    except FileNotFoundError as error:
        if is_file(build):
            hint = "Name a file that exists, or the id of a build; without either, the last build is shown."
            raise SafeExtBuildError(f"{build} does not exist", code="SEB-8006", hint=hint) from None
        what = printing.shareable(str(error))
        raise SafeExtBuildError(what, code="SEB-8007", hint=_others(cache)) from None
    except OSError as error:
        what = f"{error.filename} cannot be read: {error.strerror}"
        raise SafeExtBuildError(what, code="SEB-8008", hint="Name a file that you may read.") from None
    except ValueError as error:
        raise SafeExtBuildError(str(error), code="SEB-8009", hint="Name the JSON record of a build.") from None


def is_file(build: str) -> bool:
    """Whether a file is meant, and not an id: by how it looks, or since there is one."""
    return os.sep in build or build.endswith(".json") or (bool(build) and Path(build).is_file())


def _others(cache: Path) -> str:
    known = shelf.ids(cache)[:5]
    return f"The last builds are {', '.join(known)}." if known else _HINT


def _write(record: Record, out: Path) -> None:
    page = out if out.suffix == ".html" else out.with_name(f"{out.name}.html")
    try:
        shelf.export(record, page)
    except OSError as error:
        what = f"{page} cannot be written: {error.strerror}"
        raise SafeExtBuildError(what, code="SEB-8010", hint="Name another file, or make the directory.") from None
    ui.say(f"report: {page}")
