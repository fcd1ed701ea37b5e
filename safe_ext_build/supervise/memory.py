"""What the supervisor sees of memory: what is free, what neighbours will take, and whether the kernel kills."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..machine.cgroups import Cgroup, ancestors
from ..machine.memory import MemoryLimit, floor, read_memory, reserve
from ..machine.neighbours import Outlook
from ..machine.oom import oom_kills
from ..machine.pressure import pressure_groups, read_pressure
from ..schedule.broker import Sight
from ..schedule.policy import Memory

RECENT = 2.0
ALONE = Outlook()


def binding(limits: tuple[MemoryLimit, ...], outlooks: Mapping[str, Outlook], pressure: float) -> Memory:
    """The domain that leaves least, after its reserve and what neighbours are still going to take. Pure."""
    looks = [
        Memory(
            available=limit.available,
            reserve=reserve(limit.total),
            floor=floor(limit.total),
            total=limit.total,
            pressure=pressure,
            promised=outlooks.get(limit.name, ALONE).promised,
            first=outlooks.get(limit.name, ALONE).first,
        )
        for limit in limits
    ]
    return min(looks, key=_left, default=_UNKNOWN)


def _left(look: Memory) -> int:
    return look.available - look.reserve - max(look.promised, default=0)


# Where nothing can be read there is nothing to guard; the number of compiles still is.
_UNKNOWN = Memory(available=1 << 60, reserve=0, floor=0, total=1 << 60)


@dataclass
class MemoryWatch:
    """Reads the memory domains of this process, and remembers when one was last below its floor."""

    groups: tuple[Cgroup, ...] = field(default_factory=lambda: ancestors("memory"))
    pressure: tuple[Cgroup, ...] = field(default_factory=pressure_groups)
    root: Path = Path("/")
    last_low: float = float("-inf")

    def look(self, outlooks: Mapping[str, Outlook]) -> Sight:
        now = time.monotonic()
        limits = read_memory(self.root, self.groups)
        if any(limit.available < floor(limit.total) for limit in limits):
            self.last_low = now
        memory = binding(limits, outlooks, read_pressure(self.root, self.pressure).some_avg10)
        kills = sum(oom_kills(self.root, self.groups).values())
        return Sight(memory, kills, now - self.last_low <= RECENT)
