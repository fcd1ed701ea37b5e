"""Who may compile now. Pure: no clock, no file, no process; time, memory and jobs are values passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a build may use: `jobs` compiles at a time, keeping `cpus` CPUs busy."""

    jobs: int
    cpus: int


@dataclass(frozen=True)
class Candidate:
    """A compile that waits or runs. `alone`: it was killed for memory, so nothing may run beside it."""

    id: int
    weight: int
    alone: bool = False


def admit(limits: Limits, running: Sequence[Candidate], waiting: Sequence[Candidate]) -> list[int]:
    """The ids that may start now, in the order of `waiting`. Something always runs while something waits."""
    started: list[Candidate] = []
    for candidate in waiting:
        if not _fits(limits, [*running, *started], candidate):
            break  # first come, first served: a heavy job is not overtaken for ever by light ones
        started.append(candidate)
    return [candidate.id for candidate in started]


def _fits(limits: Limits, running: Sequence[Candidate], candidate: Candidate) -> bool:
    if not running:
        return True
    if candidate.alone or any(other.alone for other in running):
        return False
    busy = sum(other.weight for other in running)
    return len(running) < limits.jobs and busy + candidate.weight <= limits.cpus
