"""What commands print on standard output: into terminals of any width, pipes that close, and whatever encoding."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from typing import Any

from .. import ui
from ..errors import SafeExtBuildError
from ..launcher.redact import redact
from ..report.words import without_home

_STYLES = {"red": "\x1b[31m", "yellow": "\x1b[33m", "green": "\x1b[32m", "bold": "\x1b[1m"}
_NARROWEST = 20


def out(text: str) -> bool:
    """Print lines; false when nobody reads any more: who has seen enough (`| head`) ends it in silence. Raises
    SafeExtBuildError on a full disk."""
    stream = sys.stdout
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        _let_go()
        return False
    except OSError as error:
        _let_go()
        what = f"standard output cannot be written: {error.strerror}"
        hint = "Send it to a place with room, or to a program that reads it."
        raise SafeExtBuildError(what, code="SEB-8011", hint=hint) from None
    return True


def _let_go() -> None:
    """Python flushes standard output once more when it ends, and would then complain by itself."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def out_json(value: Any) -> None:
    """Print a document that other programs read."""
    out(json.dumps(value, indent=2))


def paint(text: str, style: str) -> str:
    """The text in a colour of `_STYLES`, where standard output shows colours."""
    return f"{_STYLES[style]}{text}\x1b[0m" if ui.use_color(sys.stdout) else text


def folded(text: str, indent: str = "") -> str:
    """The text in the terminal's width, `indent` before all lines but the first; in a pipe a line stays one."""
    if not sys.stdout.isatty():
        return text
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def shareable(value: Any) -> Any:
    """A document or a text with `~` for the home directory, and without what opens a shared cache: to be pasted
    where others read it."""
    if isinstance(value, str):
        home = os.path.expanduser("~")  # noqa: PTH111 - where there is none, Path raises
        return without_home(redact(value, os.environ), home)
    if isinstance(value, dict):
        return {key: shareable(item) for key, item in value.items()}
    return [shareable(item) for item in value] if isinstance(value, list | tuple) else value
