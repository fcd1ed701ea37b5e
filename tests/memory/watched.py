"""What a build in a cgroup of ours does while it runs, seen from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from real_cgroups import Group

EVERY = 0.25


@dataclass
class Seen:
    """One look every quarter of a second: how many compilers ran, and bytes in use."""

    compilers: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def most(self) -> int:
        return max(self.compilers)


@contextmanager
def watched(group: Group, name: str = "cicc") -> Iterator[Seen]:
    """Counts the processes of that name in the group as long as the block lasts."""
    seen, ended = Seen(), threading.Event()
    thread = threading.Thread(target=_watch, args=(group, name, seen, ended))
    thread.start()
    try:
        yield seen
    finally:
        seen.seconds = time.monotonic() - seen.begun
        ended.set()
        thread.join()


def _watch(group: Group, name: str, seen: Seen, ended: threading.Event) -> None:
    while not ended.wait(EVERY):
        pids = (group.directory / "cgroup.procs").read_text().split()
        seen.compilers.append(sum(_name(pid) == name for pid in pids))
        seen.used.append(group.used)


def _name(pid: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
