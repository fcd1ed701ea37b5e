"""What compiles have cost in earlier builds: a small SQLite file in the user's cache.

Only the hook process uses it, before a build and after it: the supervisor never waits for a home directory.
Nothing here raises: a history that cannot be read or written costs time, not the build.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from .. import ui
from .forecast import POINTS, Curve

SCHEMA = 1
ROWS = 20_000
BUSY = 5.0

_POINTS = struct.Struct(f"<{POINTS}q")
_LONGEST_KEY = 2000
_MOST_BYTES = 1 << 62
_MOST_SECONDS = 1e9
_BROKEN = ("no such table", "no such column", "no column named", "malformed", "not a database")
_TABLE = """
CREATE TABLE IF NOT EXISTS curves (
    key TEXT PRIMARY KEY, seconds REAL NOT NULL, points BLOB NOT NULL, used INTEGER NOT NULL
) WITHOUT ROWID
"""
_KEEP = "INSERT OR REPLACE INTO curves (key, seconds, points, used) VALUES (?, ?, ?, ?)"
_PRUNE = "DELETE FROM curves WHERE key IN (SELECT key FROM curves ORDER BY used DESC, key LIMIT -1 OFFSET ?)"

_Run = tuple[str, Curve]
_T = TypeVar("_T")


def merge(old: Curve, new: Curve) -> Curve:
    """The estimate after one more run: half of what was known, half of what is new; a higher peak at once."""
    points = [(before + now) // 2 for before, now in zip(old.points, new.points, strict=True)]
    top, seen = max(points), max(new.points)
    if seen > top > 0:
        # The whole curve, not the one point: a peak is wide, and may come a little later the next time.
        points = [min(seen, -(-point * seen // top)) for point in points]
    return Curve((old.seconds + new.seconds) / 2, tuple(points))


class History:
    """The curves of one user. `tell` is given each line that the user should read, at most once."""

    def __init__(self, path: Path, tell: Callable[[str], None] = ui.say, rows: int = ROWS) -> None:
        self.path = path
        self._tell = tell
        self._rows = rows
        self._told: set[str] = set()

    def lookup_all(self, prefix: str) -> dict[str, Curve]:
        """Every known curve whose key begins with `prefix` (see `history_key.scope`)."""
        if not _inode(self.path):
            return {}
        return self._attempt("rw", lambda database: _select(database, prefix)) or {}

    def peek(self, prefix: str = "") -> dict[str, Curve]:
        """As `lookup_all`, for who must not write: a broken file stays where it is. Who could not read is told."""
        if not _inode(self.path):
            return {}
        return self._attempt("ro", lambda database: _select(database, prefix)) or {}

    def forget(self, prefix: str = "") -> int:
        """Drop every curve whose key begins with `prefix`; how many that were."""
        if not _inode(self.path):
            return 0
        return self._attempt("rw", lambda database: _drop(database, prefix)) or 0

    def record(self, runs: Iterable[_Run], now: float | None = None) -> bool:
        """Remember what compiles have cost; a curve that makes no sense is left out. Whether it was written."""
        used = int(time.time() if now is None else now)
        sensible = [(key, curve) for key, curve in runs if _is_sensible(key, curve)]
        if not sensible:
            return True
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            self._go_without(error)
            return False
        return bool(self._attempt("rwc", lambda database: _store(database, sensible, used, self._rows)))

    def _attempt(self, mode: str, action: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Do it, again when a broken file has been moved out of the way; None when it could not be done."""
        for _ in range(2):
            inode = _inode(self.path)
            try:
                with closing(_connect(self.path, mode)) as database:
                    return action(database)
            except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
                if mode == "ro" or not _is_broken(error):
                    self._go_without(error)
                    return None
            if not self._set_aside(inode) or mode == "rw":
                return None
        return None

    def _set_aside(self, inode: int) -> bool:
        """Move a broken file away, unless another build has done so and begun a new one."""
        try:
            with _locked(self.path.parent):
                if _inode(self.path) == inode:
                    aside = _move_aside(self.path)
                    self._say(f"the memory history was damaged and is learned anew; the old one is {aside}")
        except (OSError, ValueError) as error:
            self._go_without(error)
            return False
        return True

    def _go_without(self, error: Exception) -> None:
        self._say(f"no memory history in this build: {self.path}: {error}")

    def _say(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """`mode` is SQLite's: `ro` writes nothing, `rw` makes no file, and can also read one that must not be written.

    The journal stays the default one: homes lie on network file systems, where WAL does not work.
    """
    where = f"{path.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(where, uri=True, timeout=BUSY, isolation_level=None)
    # What damage has made of a key is still a text: it is found by nobody, and falls out in time.
    database.text_factory = lambda data: data.decode(errors="replace")
    return database


def _known_version(database: sqlite3.Connection) -> int:
    """The schema of the file, 0 when it is new; raises ValueError when it is newer than we are."""
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA:
        raise ValueError(f"a newer safe-ext-build has written it (schema {version}; this one knows {SCHEMA})")
    return version


def _select(database: sqlite3.Connection, prefix: str) -> dict[str, Curve]:
    if not _known_version(database):
        return {}
    query = "SELECT key, seconds, points FROM curves WHERE key >= ? AND key < ?"
    rows = database.execute(query, (prefix, prefix + "\U0010ffff")).fetchall()
    curves = ((key, _unpacked(seconds, points)) for key, seconds, points in rows)
    return {key: curve for key, curve in curves if curve}


def _drop(database: sqlite3.Connection, prefix: str) -> int:
    if not _known_version(database):
        return 0
    query = "DELETE FROM curves WHERE key >= ? AND key < ?"
    return database.execute(query, (prefix, prefix + "\U0010ffff")).rowcount


def _store(database: sqlite3.Connection, runs: Sequence[_Run], used: int, rows: int) -> bool:
    database.execute("PRAGMA synchronous = NORMAL")
    # Immediate: what is read here must not change before it is written, or another build's runs are lost.
    database.execute("BEGIN IMMEDIATE")
    if not _known_version(database):
        database.execute(_TABLE)
        database.execute(f"PRAGMA user_version = {SCHEMA}")
    for key, curve in runs:
        found = database.execute("SELECT seconds, points FROM curves WHERE key = ?", (key,)).fetchone()
        old = _unpacked(*found) if found else None
        kept = merge(old, curve) if old else curve
        database.execute(_KEEP, (key, kept.seconds, _POINTS.pack(*kept.points), used))
    if database.execute("SELECT count(*) FROM curves").fetchone()[0] > rows:
        database.execute(_PRUNE, (rows,))
    database.execute("COMMIT")
    return True


def _unpacked(seconds: object, points: object) -> Curve | None:
    """A curve from a row, unless the row is damaged."""
    if not isinstance(seconds, float) or not isinstance(points, bytes) or len(points) != _POINTS.size:
        return None
    curve = Curve(seconds, _POINTS.unpack(points))
    return curve if _is_sensible("", curve) else None


def _is_sensible(key: str, curve: Curve) -> bool:
    fits = len(curve.points) == POINTS and all(0 <= point < _MOST_BYTES for point in curve.points)
    return fits and max(curve.points) > 0 and 0 <= curve.seconds < _MOST_SECONDS and _is_text(key)


def _is_text(key: str) -> bool:
    """Whether SQLite takes it; names of files that are not UTF-8 are made so by `history_key`."""
    return len(key) <= _LONGEST_KEY and not any("\ud800" <= letter <= "\udfff" for letter in key)


def _is_broken(error: Exception) -> bool:
    """Damage, and not a want of room, rights or time: those leave the file as it was."""
    # The very class: its subclasses are for everything else.
    known = isinstance(error, sqlite3.Error) and any(text in str(error) for text in _BROKEN)
    return known or type(error) is sqlite3.DatabaseError


def _inode(path: Path) -> int:
    """0 when there is no such file."""
    try:
        return path.stat().st_ino
    except (OSError, ValueError):
        return 0


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # not every network file system locks directories
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _move_aside(path: Path) -> Path:
    """Rename the file and its journal, which belongs to no other; only the latest broken one is kept."""
    for old in path.parent.glob(f"{path.name}.broken-*"):
        with suppress(OSError):
            old.unlink()
    aside = path.with_name(f"{path.name}.broken-{time.strftime('%Y%m%d-%H%M%S')}")
    path.rename(aside)
    with suppress(FileNotFoundError):
        path.with_name(f"{path.name}-journal").unlink()
    return aside
