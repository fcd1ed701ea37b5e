"""A wheel that was built for its metadata, and is handed over when the frontend asks for the wheel itself.

An inner backend need not say what a wheel's metadata will be (meson-python does not): then the wheel has to be
built to learn of it, and must not be built twice.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from .errors import BuildFailed

_MARKER = "safe-ext-build-built-{hook}"


def keep(directory: Path, wheel: str, hook: str) -> str:
    """Unpack the dist-info of a wheel that `hook` has built in this metadata directory; returns its name."""
    with zipfile.ZipFile(directory / wheel) as archive:
        roots = {name.partition("/")[0] for name in archive.namelist()}
        infos = [root for root in roots if root.endswith(".dist-info")]
        if len(infos) != 1:
            what = f"{wheel} has {len(infos)} dist-info directories, where a wheel has one"
            hint = "The project's own build backend has made it: try a newer release of that, or tell its authors."
            raise BuildFailed(what, code="SEB-7004", hint=hint)
        archive.extractall(directory, [name for name in archive.namelist() if name.startswith(f"{infos[0]}/")])
    (directory / _MARKER.format(hook=hook)).write_text(wheel)
    return infos[0]


def take(metadata: Path, target: Path, hook: str) -> str:
    """Put the wheel that was kept beside this dist-info directory into `target`; '' when none was."""
    try:
        wheel = (metadata.parent / _MARKER.format(hook=hook)).read_text()
        shutil.copy(metadata.parent / wheel, target)
    except OSError:
        return ""
    return wheel
