"""What we say, and how it looks: one line each, on standard error, with our name before it."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from .errors import CompileFailed, SafeExtBuildError

PREFIX = "safe-ext-build: "
_RED, _YELLOW, _RESET = "\x1b[31m", "\x1b[33m", "\x1b[0m"


def use_color(stream: TextIO) -> bool:
    """NO_COLOR (https://no-color.org) wins over FORCE_COLOR, which wins over what the stream is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def _write(kind: str, text: str, color: str) -> None:
    stream = sys.stderr
    if stream is None:  # it was closed before Python started
        return
    if kind:
        kind = f"{color}{kind}{_RESET} " if use_color(stream) else f"{kind} "
    try:
        stream.write(f"{PREFIX}{kind}{text}\n")
        stream.flush()
    except (OSError, ValueError):
        # Nobody reads us any more (EPIPE, a closed stream, a full disk); a build never fails for that.
        pass


def say(text: str) -> None:
    """Say a decision."""
    _write("", text, "")


def warn(text: str) -> None:
    """Say a decision that the user may not have wanted."""
    _write("warning:", text, _YELLOW)


def show_error(error: SafeExtBuildError) -> None:
    """Show an expected failure and its way out."""
    _write(f"error[{error.code}]:", str(error), _RED)
    hint = error.hint
    if not hint and not isinstance(error, CompileFailed):  # what a compiler says is to stay the last
        hint = f"`safe-ext-build explain {error.code}` says what to do"
    for line in hint.splitlines():
        _write("hint:", line, _YELLOW)
