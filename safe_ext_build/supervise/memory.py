"""What the supervisor sees of memory: what is free, what neighbours will take, and whether the kernel kills."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..machine.cgroups import Cgroup, ancestors
from ..machine.memory import MemoryLimit, floor, read_memory, reserve
from ..machine.oom import oom_kills
from ..machine.pressure import pressure_groups, read_pressure
from ..schedule.broker import Sight
from ..schedule.policy import Memory

RECENT = 2.0


def binding(limits: tuple[MemoryLimit, ...], promised: Mapping[str, int], pressure: float) -> Memory:
    """The domain that leaves least, after its reserve and what neighbours are still going to take. Pure."""
    looks = [
        Memory(
            available=limit.available,
            reserve=reserve(limit.total),
            floor=floor(limit.total),
            total=limit.total,
            pressure=pressure,
            promised=promised.get(limit.name, 0),
        )
        for limit in limits
    ]
    return min(looks, key=lambda look: look.available - look.reserve - look.promised, default=_UNKNOWN)


# Where nothing can be read there is nothing to guard; the number of compiles still is.
_UNKNOWN = Memory(available=1 << 60, reserve=0, floor=0, total=1 << 60)


@dataclass
class MemoryWatch:
    """Reads the memory domains of this process, and remembers when one was last below its floor."""

    groups: tuple[Cgroup, ...] = field(default_factory=lambda: ancestors("memory"))
    pressure: tuple[Cgroup, ...] = field(default_factory=pressure_groups)
    root: Path = Path("/")
    last_low: float = float("-inf")

    def look(self, promised: Mapping[str, int]) -> Sight:
        now = time.monotonic()
        limits = read_memory(self.root, self.groups)
        if any(limit.available < floor(limit.total) for limit in limits):
            self.last_low = now
        memory = binding(limits, promised, read_pressure(self.root, self.pressure).some_avg10)
        kills = sum(oom_kills(self.root, self.groups).values())
        return Sight(memory, kills, now - self.last_low <= RECENT)
