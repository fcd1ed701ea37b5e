"""How long compiles that earlier builds know will take: the scheduler itself, in simulated time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .forecast import Curve, Features, Forecaster
from .policy import Limits, Memory, Scheduler, Waiting

SHORTEST_STEP = 0.5  # seconds of simulated time between two looks at memory
STEPS = 2_000  # about so many looks for a whole build
_PATIENCE = 20 * STEPS  # looks after which the time that has passed is answer enough


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
    ends: dict[int, float] = {}
    now, left = 0.0, len(compiles)
    step = max(SHORTEST_STEP, _bound(compiles, forecaster, limits.cpus, memory.available) / STEPS)
    for _ in range(_PATIENCE + 4 * len(compiles)):
        if not left:
            break
        # Nothing is reported of what runs: all goes as forecast, so memory is respected by admission alone, and
        # what is free but for our own compiles stays what it was.
        scheduler.observed({}, now)
        for id, threads in scheduler.decide(now, memory).admit:
            scheduler.started(id, now)
            ends[id] = now + forecaster.forecast(compiles[id].with_threads(threads)).curve.seconds
        now = min([now + step, *(end for end in ends.values() if end > now)])
        for id in [id for id, end in ends.items() if end <= now]:
            scheduler.finished(id, now)
            del ends[id]
            left -= 1
    return now


def _bound(compiles: Sequence[Features], forecaster: Forecaster, cpus: int, available: int) -> float:
    """Seconds that it takes at the very least: all CPUs always busy, or all memory always full."""
    curves = [forecaster.forecast(one).curve for one in compiles]
    cpu = sum(curve.seconds * one.parallelism for curve, one in zip(curves, compiles, strict=True))
    memory = sum(curve.seconds * sum(curve.points) / len(curve.points) for curve in curves)
    return max(cpu / max(1, cpus), memory / max(1, available))
