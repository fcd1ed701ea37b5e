"""How long compiles that earlier builds know will take: the scheduler itself, in simulated time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .forecast import Curve, Features, Forecaster
from .policy import Limits, Memory, Scheduler, Waiting

SHORTEST_STEP = 0.5  # seconds of simulated time between two looks at memory
STEPS = 2_000  # about so many looks for a whole build
_NEVER = 1e7


@dataclass
class _Running:
    curve: Curve
    begun: float
    weight: int

    def held(self, now: float) -> int:
        return self.curve.at((now - self.begun) / self.curve.seconds) if self.curve.seconds else 0


def expected_time(
    compiles: Sequence[Features],
    history: Mapping[str, Curve],
    limits: Limits,
    memory: Memory,
    most_threads: int = 0,
) -> float:
    """Seconds until all of `compiles` are done, were each as the history has it.

    `memory` is what is free before the first one starts. `most_threads`: nvcc may be given so many threads.
    """
    forecaster = Forecaster(history)
    scheduler = Scheduler(limits, Forecaster(history))
    for number, features in enumerate(compiles):
        scheduler.enqueue(Waiting(number, features, most_threads))
    running: dict[int, _Running] = {}
    now, left = 0.0, len(compiles)
    step = max(SHORTEST_STEP, _cpu_seconds(compiles, forecaster) / max(1, limits.cpus) / STEPS)
    while left and now < _NEVER:
        held = {id: job.held(now) for id, job in running.items()}
        scheduler.observed(held, now)
        looked = Memory(memory.available - sum(held.values()), memory.reserve, memory.floor, memory.total)
        decision = scheduler.decide(now, looked)
        for id in decision.kill:
            del running[id]
            scheduler.killed(id, now)
        for id, threads in decision.admit:
            features = compiles[id].with_threads(threads)
            running[id] = _Running(forecaster.forecast(features).curve, now, features.at_once)
            scheduler.started(id, now)
        ends = [job.begun + job.curve.seconds for job in running.values()]
        now = min([now + step, *(end for end in ends if end > now)])
        for id in [id for id, job in running.items() if job.begun + job.curve.seconds <= now]:
            scheduler.finished(id, now, running.pop(id).curve)
            left -= 1
    return now


def _cpu_seconds(compiles: Sequence[Features], forecaster: Forecaster) -> float:
    return sum(forecaster.forecast(one).curve.seconds * one.parallelism for one in compiles)
