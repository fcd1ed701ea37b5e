"""How many CPUs may be used: affinity (which cpusets narrow too), and the quota of every visible cgroup."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .cgroups import Cgroup, ancestors
from .files import number, read, read_number

_MOST_CPUS = 1 << 16


@dataclass(frozen=True)
class Cpus:
    """The CPUs that a build may use."""

    count: int
    affinity: int
    """CPUs that this process may run on."""
    quota: float | None
    """CPUs' worth of time that the tightest cgroup allows."""
    why: str
    """For people, for example `16 of 64 CPUs (cgroup quota)`."""


def read_cpus(root: Path = Path("/")) -> Cpus:
    """The CPUs that this process may use."""
    online = _parse_list(read(root / "sys/devices/system/cpu/online"))
    affinity = _own_affinity() if root == Path("/") else None
    if affinity is None:
        affinity = len(_allowed(read(root / "proc/self/status"), online))
    return decide_cpus(len(online), affinity, _read_quota(ancestors("cpu", root)))


def decide_cpus(online: int, affinity: int, quota: float | None) -> Cpus:
    """Part of a CPU counts as one: a throttled job still ends, while time that nobody asks for is lost."""
    affinity = max(1, affinity)
    count = affinity if quota is None else max(1, min(affinity, math.ceil(quota)))
    return Cpus(count, affinity, quota, _why(count, max(online, affinity), affinity, quota))


def _why(count: int, online: int, affinity: int, quota: float | None) -> str:
    if quota is not None and count < affinity:
        reason = "cgroup quota" if quota == count else f"cgroup quota {quota:.3g}"
    elif count < online:
        reason = "affinity"
    else:
        return f"{count} CPU{'s' if count > 1 else ''}"
    return f"{count} of {online} CPUs ({reason})"


def _own_affinity() -> int | None:
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return os.cpu_count()
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count()


def _allowed(status: str, online: frozenset[int]) -> frozenset[int]:
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            # The mask also holds CPUs that could be plugged in one day.
            return _parse_list(value) & online if online else _parse_list(value)
    return online


def _parse_list(text: str) -> frozenset[int]:
    """The CPUs in a list such as `0-3,8,10-11`."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = number(first), number(last or first)
        if start is not None and end is not None and end < _MOST_CPUS:
            cpus.update(range(start, end + 1))
    return frozenset(cpus)


def _read_quota(groups: tuple[Cgroup, ...]) -> float | None:
    return min(_quotas(groups), default=None)


def _quotas(groups: tuple[Cgroup, ...]) -> Iterator[float]:
    for group in groups:
        quota, period = _quota_v1(group.directory) if group.version == 1 else _quota_v2(group.directory)
        if quota is not None and period:
            yield quota / period


def _quota_v1(directory: Path) -> tuple[int | None, int | None]:
    return read_number(directory / "cpu.cfs_quota_us"), read_number(directory / "cpu.cfs_period_us")


def _quota_v2(directory: Path) -> tuple[int | None, int | None]:
    quota, _, period = read(directory / "cpu.max").strip().partition(" ")
    return number(quota), number(period)
