"""Unpacks an sdist, and nothing outside of where it was told to."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from ..errors import SafeExtBuildError

SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")


class SdistError(SafeExtBuildError):
    """An archive that is no sdist, or a hostile one."""


def unpack(archive: Path, place: Path) -> Path:
    """Unpack an sdist into `place`, which is made; returns its one directory. Raises SdistError."""
    if archive.suffix == ".whl":
        what = f"{archive.name} is a wheel already"
        raise SdistError(what, code="SEB-8201", hint="Install it, or name its sdist.")
    if not archive.is_file():
        hint = "Name a package, an sdist or a directory (./DIR)."
        raise SdistError(f"{archive} does not exist", code="SEB-8202", hint=hint)
    if not (zipfile.is_zipfile(archive) or _is_tar(archive)):
        raise _no_archive(archive)
    place.mkdir()
    try:
        _extract(archive, place)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise SdistError(
            f"{archive.name} cannot be unpacked: {error}",
            code="SEB-8203",
            hint="It is damaged or hostile, or the disk is full: fetch it again from where you trust it.",
        ) from error
    return _only_directory(archive, place)


def _is_tar(archive: Path) -> bool:
    try:
        return tarfile.is_tarfile(archive)
    except (EOFError, OSError, ValueError):  # a damaged one, for its name says that it is one
        return archive.name.endswith(SUFFIXES)


def _no_archive(archive: Path) -> SdistError:
    """A file that is something else, as its name may say; or damaged from its beginning on."""
    if archive.name.endswith(SUFFIXES):
        what = f"{archive.name} cannot be unpacked: it is damaged, or no archive at all"
        return SdistError(what, code="SEB-8203", hint="Fetch it again from where you trust it.")
    hint = "Name an sdist (NAME-VERSION.tar.gz), or a project's directory"
    if archive.name in ("setup.py", "pyproject.toml"):
        hint += f": safe-ext-build wheel {archive.parent}{os.sep}"
    what = f"{archive.name} is no sdist: it is neither a tar nor a zip archive"
    return SdistError(what, code="SEB-8204", hint=hint)


def _extract(archive: Path, place: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                _check(name)
            opened.extractall(place)
        return
    if not hasattr(tarfile, "data_filter"):
        raise ValueError("this Python is too old to do it safely (3.10.12, 3.11.4 and later can)")
    with tarfile.open(archive) as opened_tar:
        for name in opened_tar.getnames():
            _check(name)
        opened_tar.extractall(place, filter="data")


def _check(name: str) -> None:
    """The data filter and zipfile make such names harmless; whoever writes them is up to no good."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"it holds the path {name!r}, which lies outside of it")


def _only_directory(archive: Path, place: Path) -> Path:
    found = sorted(path for path in place.iterdir() if path.name != "pax_global_header")
    if len(found) != 1 or not found[0].is_dir():
        names = ", ".join(path.name for path in found[:5]) or "nothing"
        raise SdistError(
            f"{archive.name} is no sdist: at its top stands {names}, where an sdist has one directory",
            code="SEB-8204",
            hint="Name the sdist of a package (NAME-VERSION.tar.gz), or its directory.",
        )
    return found[0]
