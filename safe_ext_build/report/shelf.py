"""Where records are kept: the last 50 builds in the user's cache (64 MiB at most), and what `report.path` names.

Nothing here fails a build: what cannot be written costs a warning.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..delivery import make_directory
from .record import Record, dump, parse

KEPT = 50
MOST_BYTES = 64 << 20
STALE = 3600.0
SUFFIXES = (".trace.json", ".json", ".html")


def directory(cache: Path) -> Path:
    """Where the records of the user's builds lie; `cache` is the user's cache for safe-ext-build."""
    return cache / "reports"


def keep(record: Record, cache: Path) -> Path:
    """Put a record on the shelf, and take the oldest down. Raises OSError."""
    place = directory(cache)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    when = "".join(letter for letter in record.started if letter.isdigit())[:14]
    path = place / f"{when}-{record.id}.json"
    _write(path, dump(record))
    _prune(place)
    return path


def ids(cache: Path) -> list[str]:
    """What may be given to `find`, the newest first."""
    return [path.stem.partition("-")[2] for path in _kept(directory(cache))]


def find(cache: Path, id: str = "") -> Path:
    """The record of the build `id` (its beginning is enough), or of the last one. Raises FileNotFoundError."""
    for path in _kept(directory(cache)):
        if path.stem.partition("-")[2].startswith(id):
            return path
    what = f"no build whose id begins with {id}" if id else "no build"
    raise FileNotFoundError(f"{what} has left a record in {directory(cache)}")


def load(path: Path) -> Record:
    """The record in a file. Raises OSError, or ValueError where it is no record."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be shown: it is not a record of a build, and no text") from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be shown: {error}") from error


def render(record: Record, suffix: str) -> str:
    """The record as `.json`, `.html` or `.trace.json`."""
    if suffix == ".json":
        return dump(record)
    if suffix == ".trace.json":
        from .trace import to_trace

        return to_trace(record)
    from .html import to_html

    return to_html(record)


def export(record: Record, path: Path) -> None:
    """Write a record to a file of the user's, in the form that its suffix asks for; its directory may be new, in
    one that is there. Raises OSError."""
    suffix = next(suffix for suffix in SUFFIXES if path.name.endswith(suffix))
    make_directory(path.parent)
    _write(path, render(record, suffix))


def conclude(record: Record, cache: Path, wanted: Path | None, say: Callable[[str], None]) -> str:
    """Keep a record and write the file that was wanted; returns the line that says where, if anybody needs it.

    `say` gets the warnings.
    """
    kept = _attempt(lambda: keep(record, cache), "the record of this build is not kept", say)
    if wanted and _attempt(lambda: _exported(record, wanted), f"no report in {wanted}", say):
        return f"report: {wanted}"
    return f"report of this build: {kept}" if kept and record.outcome == "failed" else ""


def _exported(record: Record, path: Path) -> Path:
    export(record, path)
    return path


def _attempt(action: Callable[[], Path], what: str, say: Callable[[str], None]) -> Path | None:
    try:
        return action()
    except OSError as error:
        say(f"{what}: {error.strerror or error}")
    return None


def _kept(place: Path) -> list[Path]:
    return sorted(place.glob("*-*.json"), reverse=True)


def _write(path: Path, text: str) -> None:
    """In one step: who reads sees the old file or the new one. Names that are not UTF-8 are spelt out."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _surplus(place: Path) -> Iterator[Path]:
    total = 0
    for number, path in enumerate(_kept(place)):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
            if number and (number >= KEPT or total > MOST_BYTES):
                yield path


def _prune(place: Path) -> None:
    """Take down the oldest, and what a build that was killed has half written. Another build may do the same."""
    old = list(_surplus(place))
    now = time.time()
    for path in place.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < now - STALE:
                old.append(path)
    for path in old:
        with contextlib.suppress(OSError):
            path.unlink()
