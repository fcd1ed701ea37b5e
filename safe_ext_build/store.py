"""Where the objects of a project are kept between builds."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from .errors import SettingsError


def is_unpacked_sdist(project: Path) -> bool:
    """Whether this is a copy that a frontend has unpacked for one build: only an sdist holds a PKG-INFO."""
    return (project / "PKG-INFO").is_file()


def name(project: Path) -> str:
    """What the project is called in caches: an sdist by its own name, a directory of the user's by its."""
    return _sdist_name(project) if is_unpacked_sdist(project) else _plain(project.name)


def place(project: Path, hook: str, build_dir: Path | None, cache: Path, fingerprint: str) -> Path | None:
    """The directory to keep objects in; None to leave them where setuptools puts them, below the project.

    An unpacked sdist is deleted after the build, and for an editable install setuptools compiles in a
    temporary directory: those go to the cache.
    """
    if build_dir:
        try:
            build_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"build-dir is {build_dir}, which cannot be made: {error.strerror}",
                hint="Name a directory that you can write.",
            ) from error
        return build_dir
    if is_unpacked_sdist(project):
        return cache / "objects" / _sdist_name(project) / fingerprint
    if hook == "build_editable":
        digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:12]
        return cache / "objects" / f"{_plain(project.name)}-{digest}" / fingerprint
    return None


def _sdist_name(project: Path) -> str:
    text = (project / "PKG-INFO").read_text(errors="replace")
    found = re.search(r"^Name:\s*(\S+)", text, re.MULTILINE)
    return _plain(found[1]) if found else "unnamed"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)
