"""Puts a wheel where it was asked for once it has stood every check: whole, or not at all.

Until then nothing is touched there: an older wheel of the same name stays what it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

from .errors import BuildFailed

KEPT = 5
"""How many of the wheels that could not be delivered are kept."""


def make_directory(path: Path) -> None:
    """Make a directory that a user has named, in one that is there: a slip of the pen makes no tree of them.
    Raises OSError."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no directory {path.parent}")
    path.mkdir(exist_ok=True)


def try_out(directory: Path, hint: str) -> None:
    """Whether a wheel can be put there, found out before hours are spent on it: makes a file there, and leaves
    nothing behind. Raises BuildFailed."""
    is_new = not directory.exists()
    try:
        make_directory(directory)
        with tempfile.TemporaryFile(dir=directory, prefix=".safe-ext-build-") as file:
            file.write(b"-")
    except OSError as error:
        what = f"no wheel can be written to {directory}: {error.strerror or error}"
        raise BuildFailed(what, code="SEB-8005", hint=hint) from error
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                directory.rmdir()


def deliver(wheel: Path, directory: Path, hint: str, note: Path | None = None) -> Path:
    """Move a wheel into a directory, in one step; returns where it is. Raises BuildFailed.

    `note`: a symbolic link to make for as long as there is a half-written file, for who clears up after us.
    """
    if not wheel.is_file():
        raise BuildFailed(
            f"the backend says that it has built {wheel.name}, but there is no such file",
            code="SEB-7005",
            hint="It may have put it elsewhere: look at what it says above, and try a newer release of it.",
        )
    unfinished = directory / f".{wheel.name}.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if note:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.symlink_to(unfinished)
        shutil.move(wheel, unfinished)
        unfinished.replace(directory / wheel.name)
    except OSError as error:
        raise BuildFailed(
            f"the wheel was built, but cannot be written to {directory}: {error.strerror or error}",
            code="SEB-8005",
            hint=hint,
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return directory / wheel.name


def deliver_or_keep(wheel: Path, directory: Path, hint: str, cache: Path, note: Path | None = None) -> Path:
    """As `deliver`; a wheel that cannot go where it was asked for, and may have taken hours, is kept in the cache.
    Raises BuildFailed, which says where."""
    try:
        return deliver(wheel, directory, hint, note)
    except BuildFailed as error:
        with contextlib.suppress(BuildFailed, OSError):
            error.hint = f"It is kept: take it from {_keep(wheel, cache / 'wheels')}"
        raise


def _keep(wheel: Path, shelf: Path) -> Path:
    kept = deliver(wheel, shelf, hint="")
    os.utime(kept)  # how long it has lain there
    for old in sorted(shelf.glob("*.whl"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
    return kept
