"""`safe-ext-build explain`: what an error means, and what to do about it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from ..catalogue import CATALOGUE, ROOMS, Entry
from ..errors import SafeExtBuildError
from . import printing

_EPILOG = """
Errors are printed as `safe-ext-build: error[SEB-2003]: ...`. The id may be given as SEB-2003, seb-2003 or 2003.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "say what an error means, and what to do; without an id, list all"
    parser = commands.add_parser("explain", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    parser.add_argument("error", metavar="ID", nargs="?", default="", help="the id of an error, such as SEB-2003")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print one, or all. Raises SafeExtBuildError for an id that is none."""
    lines = render(find(arguments.error)) if arguments.error else listing()
    printing.out("\n".join(map(printing.folded, lines)))
    return 0


def find(text: str) -> Entry:
    """The entry that is meant by what a user has typed. Raises SafeExtBuildError when there is none. Pure."""
    number = re.fullmatch(r"(?:error)?\[?(?:SEB)?[-_ ]?(\d{4})\]?:?", text.strip(), re.IGNORECASE)
    code = f"SEB-{number[1]}" if number else text.strip().upper()
    if code in CATALOGUE:
        return CATALOGUE[code]
    hint = "`safe-ext-build explain` lists all."
    if digits := re.search(r"\d+", text):
        near = sorted(CATALOGUE, key=lambda known: abs(int(known[4:]) - int(digits[0])))[:3]
        hint = f"Near to it are {', '.join(sorted(near))}; {hint}"
    raise SafeExtBuildError(f"there is no error with the id {text}", code="SEB-8017", hint=hint)


def render(entry: Entry) -> Iterator[str]:
    """An entry as lines, none of them folded. Pure."""
    yield printing.paint(f"{entry.code}: {entry.title}", "bold")
    yield ""
    yield entry.meaning
    yield ""
    yield f"What to do: {entry.remedy}"


def listing() -> Iterator[str]:
    """The ids and titles of all, by room. Pure."""
    for number, (digit, room) in enumerate(ROOMS.items()):
        if number:
            yield ""
        yield printing.paint(room, "bold")
        yield from (f"{code}  {entry.title}" for code, entry in CATALOGUE.items() if code[4] == digit)
