"""The compiles that run on a farm of other machines: how many may, and what they cost this one. Pure."""

from __future__ import annotations

from .claims import Job

PAUSE = 10.0
"""Seconds without another compile for the farm after one has come back from it; twice as long each time."""
MOST_PAUSE = 160.0
_YOUNG = 5.0
_LOAD = 0.25  # of a CPU, by a compile that is too young to be measured: it begins with its preprocessors


class Away:
    """Counts the steps that are on the farm. `slots`: how many it takes of us at a time, while it is `open`."""

    def __init__(self) -> None:
        self.slots = 0
        self.open = False
        self._steps: dict[int, int] = {}
        self._loads: dict[int, float] = {}
        self._pause = PAUSE
        self._closed_until = float("-inf")

    def free(self, now: float) -> int:
        """Steps that may be sent now."""
        if not self.open or now < self._closed_until:
            return 0
        return max(0, self.slots - self.steps)

    @property
    def steps(self) -> int:
        """Those that are there."""
        return sum(self._steps.values())

    @property
    def count(self) -> int:
        """Compiles that are there."""
        return len(self._steps)

    @property
    def cpus(self) -> int:
        """CPUs of this machine that all of them keep busy."""
        return round(sum(self._loads.values()))

    def begin(self, job: Job) -> None:
        self._steps[job.id], self._loads[job.id] = job.threads, _LOAD

    def saw(self, job: Job, spent: float, now: float) -> None:
        """It has used so many CPU seconds here."""
        elapsed = now - job.started
        if elapsed > _YOUNG and job.id in self._loads:
            self._loads[job.id] = min(float(job.threads), spent / elapsed)

    def end(self, job: Job, *, well: bool = False) -> None:
        """It is not there any more. `well`: it has been compiled."""
        self._steps.pop(job.id, None)
        self._loads.pop(job.id, None)
        self._pause = PAUSE if well else self._pause

    def refused(self, now: float) -> None:
        """The farm has not done what was asked: it is left alone for a while."""
        if now >= self._closed_until:
            self._closed_until = now + self._pause
            self._pause = min(MOST_PAUSE, 2 * self._pause)
