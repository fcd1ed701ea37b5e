"""Where the objects of a project are kept between builds, and how long what is in the cache stays there."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import SettingsError
from .schedule.ninjafile import can_name

UNUSED = 90 * 86400.0
"""How long what no build has used stays in the cache (seconds)."""
UNCLAIMED = 14 * 86400.0
"""How long a wheel that could not be delivered is kept for who comes to take it (seconds)."""
_DAILY = 86400.0
# The directories in which pip clones and unpacks, and in which uv clones.
_OF_FRONTENDS = re.compile(r"pip-(req-build|install)-.+|git-v\d+")
_NAMES = (
    ("PKG-INFO", r"^Name:[ \t]*(\S+)"),
    ("pyproject.toml", r"^\[project\](?:(?!^\[).)*?^name[ \t]*=[ \t]*[\"']([^\"'\n]+)"),
    ("setup.cfg", r"^\[metadata\](?:(?!^\[).)*?^name[ \t]*=[ \t]*(\S+)"),
    ("setup.py", r"\bname[ \t]*=[ \t]*[\"']([^\"'\n]+)[\"']"),
)


def is_passing(project: Path) -> bool:
    """Whether this is a copy that was made for one build: an sdist, which alone holds a PKG-INFO, or what pip or
    uv have cloned or unpacked."""
    return (project / "PKG-INFO").is_file() or any(map(_OF_FRONTENDS.fullmatch, project.parts))


def name(project: Path) -> str:
    """What the project is called in caches: a copy made for one build by the project's own name, a directory of
    the user's by its."""
    return _own_name(project) if is_passing(project) else _plain(project.name)


def place(
    project: Path, hook: str, build_dir: Path | None, cache: Path, fields: Mapping[str, str], lasts: bool = True
) -> Path | None:
    """As `where`; a `build-dir` is made."""
    found = where(project, hook, build_dir, cache, fields, lasts)
    return _made(found) if found and build_dir else found


def where(
    project: Path, hook: str, build_dir: Path | None, cache: Path, fields: Mapping[str, str], lasts: bool = True
) -> Path | None:
    """The directory to keep objects in; None to leave them where setuptools puts them, below the project.

    `fields`: what may stand in braces in `build-dir`, the fingerprint among it. A copy made for one build is
    deleted after it, for an editable install setuptools compiles in a temporary directory, and a build in a
    copy (`lasts` is false) leaves nothing behind: those objects go to the cache, and those of a project whose
    path a build.ninja cannot hold.
    """
    if build_dir:
        return fill(build_dir, fields)
    if is_passing(project):
        return cache / "objects" / _own_name(project) / fields["fingerprint"]
    if hook == "build_editable" or not lasts or not can_name(str(project)):
        return of_directory(project, cache, fields)
    return None


def of_directory(project: Path, cache: Path, fields: Mapping[str, str]) -> Path:
    """The place in the cache for what is made of a directory of the user's."""
    digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:12]
    return cache / "objects" / f"{_plain(project.name)}-{digest}" / fields["fingerprint"]


def fill(build_dir: Path, fields: Mapping[str, str]) -> Path:
    """The directory that a `build-dir` with fields in braces names in this build."""
    return Path(re.sub(r"\{(\w+)\}", lambda found: fields.get(found[1], found[0]), str(build_dir)))


def _made(build_dir: Path) -> Path:
    try:
        build_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"build-dir is {build_dir}, which cannot be made: {error.strerror}",
            code="SEB-4006",
            hint="Name a directory that you can write.",
        ) from error
    return build_dir


def _own_name(project: Path) -> str:
    """What a project calls itself; where it does not say it in a file, what its setup script tells it by."""
    for file, pattern in _NAMES:
        if found := re.search(pattern, _text(project / file), re.MULTILINE | re.DOTALL):
            return _plain(found[1])
    script = hashlib.sha256(_text(project / "setup.py").encode()).hexdigest()[:12]
    return f"unnamed-{script}"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


@contextlib.contextmanager
def using(cache: Path) -> Iterator[None]:
    """Hold the cache for as long as a build may use what is in it: nothing is removed meanwhile.

    Once a day, a build that finds no other one first removes what has long been unused.
    """
    try:
        lock = os.open(cache / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield  # no cache, nothing in it
        return
    try:
        with contextlib.suppress(OSError):  # others are building, or a file system that has no locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _prune_daily(cache, time.time())
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


def mark_used(path: Path, cache: Path) -> None:
    """Note that a build uses what lies at `path`, if that is in the cache."""
    entry = next((entry for entry in (path, *path.parents) if _is_entry(entry, cache)), None)
    if entry:
        with contextlib.suppress(OSError):  # not there yet
            os.utime(entry)


def _prune_daily(cache: Path, now: float) -> None:
    stamp = cache / ".pruned"
    with contextlib.suppress(OSError):
        if now - stamp.stat().st_mtime < _DAILY:
            return
    prune(cache, now)
    with contextlib.suppress(OSError):
        stamp.touch()


def prune(cache: Path, now: float) -> list[Path]:
    """Remove what no build has used for UNUSED seconds, and wheels that nobody has taken for UNCLAIMED; returns
    what that was. The cache must be held."""
    entries = [*cache.glob("objects/*/*"), *cache.glob("toolkits/*")]
    old = [path for path in entries if _is_entry(path, cache) and now - _last_used(path) > UNUSED]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    wheels = [path for path in cache.glob("wheels/*") if now - _last_used(path) > UNCLAIMED]
    for path in wheels:
        with contextlib.suppress(OSError):
            path.unlink()
    for project in cache.glob("objects/*"):
        with contextlib.suppress(OSError):  # it still holds something
            project.rmdir()
    return [*old, *wheels]


def _is_entry(path: Path, cache: Path) -> bool:
    """Whether this is what is kept or removed as one: a project's objects of one fingerprint, or a toolkit."""
    return path.parent.parent == cache / "objects" or path.parent == cache / "toolkits"


def _last_used(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return float("inf")
