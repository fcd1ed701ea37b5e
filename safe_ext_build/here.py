"""The directory that a hook or a command works in, which may be gone."""

from __future__ import annotations

from pathlib import Path

from .errors import PlaceError


def here() -> Path:
    """The current directory. Raises PlaceError where it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise PlaceError(
            "the current directory does not exist any more: somebody has deleted it",
            code="SEB-4014",
            hint="Change into the project's directory, and start again.",
        ) from None
