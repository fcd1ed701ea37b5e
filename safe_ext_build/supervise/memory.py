"""What the supervisor sees of memory: whether the kernel has been killing, and whether little was left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..machine import Machine, floor, oom_kills, read_machine
from ..schedule.broker import Evidence

RECENT = 2.0


class MemoryWatch:
    """Remembers when the budget was last below its floor (seconds, monotonic clock)."""

    def __init__(self, machine: Callable[[], Machine] = read_machine) -> None:
        self._machine = machine
        self._last_low = float("-inf")

    def sample(self, now: float) -> None:
        budget = self._machine().budget
        if budget.available < floor(budget.total):
            self._last_low = now

    def evidence(self, now: float) -> Evidence:
        self.sample(now)
        kills = sum(oom_kills(Path("/")).values())
        return Evidence(oom_kills=kills, low=now - self._last_low <= RECENT)
