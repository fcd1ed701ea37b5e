"""Puts a wheel where it was asked for once it has stood every check: whole, or not at all.

Until then nothing is touched there: an older wheel of the same name stays what it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from .errors import BuildFailed


def try_out(directory: Path, hint: str) -> None:
    """Whether a wheel can be put there, found out before hours are spent on it: makes a file there, and leaves
    nothing behind. Raises BuildFailed."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory, prefix=".safe-ext-build-") as file:
            file.write(b"-")
    except OSError as error:
        what = f"no wheel can be written to {directory}: {error.strerror or error}"
        raise BuildFailed(what, code="SEB-8005", hint=hint) from error
    finally:
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()


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
        unfinished.unlink(missing_ok=True)
    return directory / wheel.name
