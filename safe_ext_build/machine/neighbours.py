"""The other builds of this user on this machine: what each uses and claims, told in small files.

A directory for each memory domain, in it a file for each build, which the build keeps locked (flock) as long
as it lives: a file whose lock is free belonged to a build that has died, however it died, and whoever sees
it removes it. Nothing here raises or waits: where records cannot be kept there are no neighbours.
Standard library only: the supervisor imports this.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .cgroups import Cgroup, ancestors
from .files import read
from .memory import read_cgroups

PATIENCE = 0.05
_PAUSE = 0.002
_SUFFIX = ".build"
_LARGEST = 1 << 14  # a path may have 4096 bytes, and each may be escaped
_ATTEMPTS = 20


@dataclass(frozen=True)
class Share:
    """What a build has of the machine, and what it wants."""

    cpus: int
    """CPUs that its running compiles keep busy."""
    waiting: int
    """CPUs more that its waiting compiles would keep busy."""
    claimed: tuple[int, ...] = ()
    """Bytes by which its running compiles will still grow, in steps of time from now on (those of
    `claims.HORIZONS`): no MemAvailable shows them yet."""
    jobs: int = 0
    """Compiles that run."""

    @property
    def wanted(self) -> int:
        """CPUs that it would keep busy were it alone."""
        return self.cpus + self.waiting


NOTHING = Share(cpus=0, waiting=0)


@dataclass(frozen=True)
class Outlook:
    """What the other builds of a domain are going to take (see `Share.claimed`), and whether this one is the
    eldest of those that compile."""

    promised: tuple[int, ...] = ()
    first: bool = True


@dataclass(frozen=True)
class Record:
    """A build that lives. `started` in seconds since the epoch; `workspace` is where its supervisor is asked."""

    build: str
    pid: int
    project: str
    started: float
    share: Share
    workspace: str = ""


def fair_share(cpus: int, mine: Share, others: Sequence[Share]) -> int:
    """How many of `cpus` this build may keep busy: at least 1.

    Nobody gets more than he wants while somebody wants more than he gets; what nobody wants is split evenly.
    Each build works this out for itself, and rounds up: together they may exceed `cpus` by one each.
    """
    level = _level(cpus, [mine.wanted, *(other.wanted for other in others)])
    spare = cpus - sum(min(share.wanted, level) for share in (mine, *others))
    return max(1, min(mine.wanted, level) + max(0, spare) // (1 + len(others)))


def _level(cpus: int, wants: Sequence[int]) -> int:
    """The most that anybody gets, so that what is handed out is `cpus` (when that much is wanted)."""
    left = cpus
    for done, want in enumerate(sorted(wants)):
        rest = len(wants) - done
        if want * rest > left:
            return -(-left // rest)
        left -= want
    return cpus


def domains(root: Path = Path("/"), groups: tuple[Cgroup, ...] | None = None) -> dict[str, str]:
    """The memory domains that bind us: the name that `MemoryLimit` gives each, and its directory's name.

    The host first, then the cgroups that set a limit, the nearest first. Builds in two cgroups are neighbours
    on the host, so a build keeps a record in each of its domains. The boot is part of the name: the directory
    may lie on a disk that other machines see, and a cgroup's inode number counts until the next boot.
    """
    if groups is None:
        groups = ancestors("memory", root)
    boot = re.sub(r"\W", "", read(root / "proc/sys/kernel/random/boot_id"))[:12]
    found = {"host": f"host-{boot}"}
    for group, limit in zip(groups, read_cgroups(groups), strict=False):
        with suppress(OSError):
            if limit:
                found[limit.name] = f"cgroup{group.version}-{group.directory.stat().st_ino}-{boot}"
    return found


def neighbours_root(environ: Mapping[str, str], user: int | None = None) -> Path | None:
    """Where this user's domains are kept (0700, his); None when there is no such place. Clears away the dead."""
    user = os.getuid() if user is None else user
    for path in _places(environ, user):
        if all(_private(directory, user) for directory in path):
            _sweep(path[-1])
            return path[-1]
    return None


def living(environ: Mapping[str, str]) -> list[Record]:
    """The builds of this user that live, the eldest first."""
    root = neighbours_root(environ)
    if root is None:
        return []
    seen: dict[str, Record] = {}
    for file in [root / directory / name for directory in _names(root) for name in _records(root / directory)]:
        with suppress(OSError):
            if record := _read(file):
                seen[record.build] = record
    return sorted(seen.values(), key=lambda record: (record.started, record.build))


def _places(environ: Mapping[str, str], user: int) -> Iterator[tuple[Path, ...]]:
    """Directories that are to be made, outermost first.

    All builds of a user must come to the same one: also that from a cron job, which knows no XDG_RUNTIME_DIR.
    """
    for text in (environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}"):
        # After `su` the variable still names another user's.
        runtime = Path(text)
        if runtime.is_absolute() and _owner(runtime) == user:
            base = runtime / "safe-ext-build"
            yield base, base / "neighbours"
    # Not within the root of the workspaces: what lies there unlocked is removed as a dead build's.
    for text in ("/var/tmp", "/tmp"):
        yield (Path(text) / f"safe-ext-build-{user}.neighbours",)


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except (OSError, ValueError):
        return -1


def _private(path: Path, user: int) -> bool:
    """Make the directory unless it is there; whether it is ours, and for us alone."""
    try:
        with suppress(FileExistsError):
            path.mkdir(0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
            return False
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)
    except (OSError, ValueError):
        return False
    return True


def _sweep(root: Path) -> None:
    """Remove what killed builds have left in domains to which nobody may ever come again."""
    for directory in _names(root):
        for name in _records(root / directory):
            with suppress(OSError):
                _read(root / directory / name)
        with suppress(OSError):
            (root / directory).rmdir()  # only when it is empty


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except (OSError, ValueError):
        return []


def _records(directory: Path) -> list[str]:
    return [name for name in _names(directory) if name.endswith(_SUFFIX)]


class Neighbours:
    """This build's record in one domain, and a view of the others'. A forked child must not use it."""

    def __init__(self, directory: Path, build_id: str, project: str, workspace: str = "") -> None:
        self._directory = directory
        self._build = build_id
        self._project = project
        self._workspace = workspace
        self._started = time.time()
        self._path = directory
        self._descriptor = -1
        self._open = False
        self._share = NOTHING
        self._last: dict[str, Record] = {}

    def open(self) -> None:
        """Become visible to the others, with a share of nothing."""
        self._open = True
        self.publish(NOTHING)

    def close(self) -> None:
        """Take the record away; the directory too, when it was the last."""
        self._open = False
        if self._descriptor >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1
            with suppress(OSError):
                self._directory.rmdir()

    def publish(self, share: Share) -> None:
        """Tell the others what this build has, wants and claims."""
        self._share = share
        if not self._open:
            return
        with suppress(OSError, ValueError):
            if not self._is_seen():
                self._make()
            ours = Record(self._build, os.getpid(), self._project, self._started, share, self._workspace)
            data = _encode(ours)
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))

    def others(self) -> list[Share]:
        """The shares of the other builds that live."""
        return [record.share for record in self.records()]

    def outlook(self) -> Outlook:
        """What the other builds of this domain mean for this one."""
        records = self.records()
        claims = itertools.zip_longest(*(record.share.claimed for record in records), fillvalue=0)
        ours = self._started, self._build
        older = [one for one in records if one.share.wanted and (one.started, one.build) < ours]
        return Outlook(tuple(map(sum, claims)), first=not older)

    def records(self) -> list[Record]:
        """The other builds that live, whoever is first by name first."""
        seen: dict[str, Record] = {}
        for name in sorted(_records(self._directory)):
            if self._directory / name != self._path:
                # A record that is being written while we read says what it said before.
                with suppress(OSError):
                    record = _read(self._directory / name, self._last.get(name))
                    if record:
                        seen[name] = record
        self._last = seen
        return list(seen.values())

    @contextmanager
    def admission(self, patience: float = PATIENCE) -> Iterator[bool]:
        """Hold the domain's one lock while looking at the others, deciding, and publishing what was decided.

        Gives whether it was obtained within `patience` (seconds). Where there are no records there is nobody
        to exclude, and it is. A stopped build may hold it for long: what must run at any rate does not ask.
        """
        descriptor = self._open_directory()
        try:
            yield descriptor < 0 or _lock_within(descriptor, patience)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open_directory(self) -> int:
        if self._descriptor < 0:
            return -1
        try:
            return os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return -1

    def _is_seen(self) -> bool:
        """Whether our record is there still: a cleaner of temporary files may have taken it."""
        return self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink > 0

    def _make(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError, BlockingIOError):  # a neighbour has just removed the directory
                self._path = self._directory / _file_name(self._build)
                self._descriptor = _create(self._directory, self._path)
                return
        raise FileNotFoundError(self._directory)


def _file_name(build: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', build)[:64]}.{os.urandom(4).hex()}{_SUFFIX}"


def _create(directory: Path, path: Path) -> int:
    """Make a locked file. FileNotFoundError, BlockingIOError: a neighbour has just taken it for a dead one's."""
    with suppress(FileExistsError):
        directory.parent.mkdir(0o700)
    if not _private(directory, os.getuid()):
        raise PermissionError(directory)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(descriptor).st_nlink:
            raise FileNotFoundError(path)
    except OSError:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return descriptor


def _read(path: Path, before: Record | None = None) -> Record | None:
    """The record in a file; `before` when it makes no sense. A dead build's is removed. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _is_free(descriptor):
            path.unlink()
            return None
        return _decode(os.pread(descriptor, _LARGEST, 0)) or before
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    # Shared, so that of two who look at once neither takes the other for the owner.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(descriptor: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)
        except OSError:
            return True  # a file system without locks has no records either
        else:
            return True


def _encode(record: Record) -> bytes:
    """One line: a checksum, since a reader may meet half of the old record and half of the new one; JSON."""
    data = asdict(record)
    data["project"] = record.project[:200]
    text = json.dumps(data).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(data: bytes) -> Record | None:
    checksum, _, text = data.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        fields = json.loads(text)
        share = fields.pop("share")
        claimed = tuple(max(0, int(size)) for size in share.pop("claimed"))
        counts = {key: max(0, int(value)) for key, value in share.items()}
        return Record(**fields, share=Share(**counts, claimed=claimed))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
