"""How much memory may still be used, per domain. Standard library only, apart from where /proc is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .cgroups import Cgroup, ancestors
from .files import field, read, read_number

GIB = 1 << 30
# "No limit" on v1 is the largest multiple of the page size below 2**63: 9223372036854771712 for 4 KiB pages.
_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class MemoryLimit:
    """A domain of memory: the host, or a cgroup that binds us."""

    name: str
    """`host`, or for example `cgroup /kubepods/pod1`."""
    total: int
    """Bytes: the limit of this domain."""
    available: int
    """Bytes that can still be had without swapping."""


def reserve(total: int) -> int:
    """Bytes of a domain of `total` bytes that no job is admitted into: max(1 GiB, 6%)."""
    return max(GIB, total * 6 // 100)


def floor(total: int) -> int:
    """Bytes of a domain of `total` bytes below which a job has to give way: max(0.5 GiB, 3%)."""
    return max(GIB // 2, total * 3 // 100)


def read_memory(root: Path = Path("/"), groups: tuple[Cgroup, ...] | None = None) -> tuple[MemoryLimit, ...]:
    """Every domain that can be read: the host first, then the cgroups, the nearest first.

    Who reads again and again passes `groups=ancestors("memory")`, and the mount table is read only once.
    """
    if groups is None:
        groups = ancestors("memory", root)
    limits = (read_host(root), *read_cgroups(groups))
    return tuple(limit for limit in limits if limit is not None)


def read_host(root: Path = Path("/")) -> MemoryLimit | None:
    """The machine's memory. Swap counts as none."""
    meminfo = read(root / "proc/meminfo")
    if not meminfo and root == Path("/"):
        return _host_without_proc()
    total, available = field(meminfo, "MemTotal"), _available(meminfo)
    if total is None or available is None:
        return None
    return MemoryLimit("host", total * 1024, min(available, total) * 1024)


def _available(meminfo: str) -> int | None:
    """KiB. Kernels before 3.14 do not tell: an estimate, less shared memory, which only swap could free."""
    available = field(meminfo, "MemAvailable")
    if available is not None:
        return available
    free = field(meminfo, "MemFree")
    if free is None:
        return None
    buffers, cached, shared = (field(meminfo, key) or 0 for key in ("Buffers", "Cached", "Shmem"))
    return free + buffers + max(0, cached - shared)


def _host_without_proc() -> MemoryLimit | None:
    """macOS and Windows."""
    try:
        import psutil
    except ImportError:
        return None
    try:
        memory = psutil.virtual_memory()
    except (psutil.Error, OSError):
        return None
    return MemoryLimit("host", memory.total, memory.available)


def read_cgroups(groups: tuple[Cgroup, ...]) -> Iterator[MemoryLimit | None]:
    """The limit of each group that sets one; `groups` from the nearest outwards."""
    for index, group in enumerate(groups):
        # Before Linux 5.11 a v1 group with use_hierarchy=0 is not charged for its children: it, and what is
        # above it, does not bind us.
        if index and group.version == 1 and read(group.directory / "memory.use_hierarchy").strip() == "0":
            return
        yield _read_group(group, outermost=index == len(groups) - 1)


def _read_group(group: Cgroup, *, outermost: bool) -> MemoryLimit | None:
    stat = read(group.directory / "memory.stat")
    if group.version == 1:
        limit, used = _limit_v1(group.directory, stat if outermost else ""), "memory.usage_in_bytes"
    else:
        limit, used = _limit_v2(group.directory), "memory.current"
    usage = read_number(group.directory / used)
    if limit is None or usage is None:
        return None
    return MemoryLimit(f"cgroup {group.name}", limit, _left(limit, usage, _inactive_file(stat)))


def _left(limit: int, usage: int, inactive_file: int) -> int:
    """Bytes left below a limit: cached files that nobody used lately make room."""
    return max(0, min(limit, limit - (usage - inactive_file)))


def _inactive_file(stat: str) -> int:
    # v1's plain `inactive_file` leaves out the children, whose pages are in the usage; v2 has no `total_`.
    total = field(stat, "total_inactive_file")
    return total if total is not None else field(stat, "inactive_file") or 0


def _limit_v1(directory: Path, stat: str) -> int | None:
    """A v1 group also tells the least limit above it: all that a container sees of its pod's."""
    own, above = read_number(directory / "memory.limit_in_bytes"), field(stat, "hierarchical_memory_limit")
    return _least(own, above)


def _limit_v2(directory: Path) -> int | None:
    """Above memory.high the kernel throttles until the build stands still: it is as good as a limit."""
    return _least(read_number(directory / "memory.max"), read_number(directory / "memory.high"))


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)
