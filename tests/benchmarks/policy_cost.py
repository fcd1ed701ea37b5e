"""What a decision costs, and how it grows: python tests/benchmarks/policy_cost.py

A full machine (as many jobs running as cores), so many waiting, memory short, every job with a history of its
own: a job finishes, what replaces it is decided; twice a second all running jobs are observed. CPU time.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from safe_ext_build.schedule.forecast import GIB, Curve, Features, Forecaster
from safe_ext_build.schedule.policy import Limits, Memory, Scheduler, Waiting


def history(count: int, rng: random.Random) -> dict[str, Curve]:
    curves = {}
    for number in range(count):
        peak, at = rng.uniform(1, 7) * GIB, rng.randrange(2, 10)
        points = tuple(int(peak * ((i + 1) / (at + 1) if i <= at else 0.3)) for i in range(16))
        curves[f"{number}:1"] = Curve(rng.uniform(100, 600), points)
    return curves


def cost(jobs: int, cores: int, known: bool, decisions: int = 400) -> tuple[float, float, float]:
    """Seconds per decision, per observation of all running jobs, and per enqueued job."""
    rng = random.Random(jobs)
    curves = history(jobs + cores, rng)
    scheduler = Scheduler(Limits(cores, cores), Forecaster(curves if known else {}))
    memory = Memory(available=4 * cores * GIB, reserve=GIB, floor=GIB // 2, total=4 * cores * GIB)
    begun = time.process_time()
    for number in range(jobs + cores):
        scheduler.enqueue(Waiting(number, Features(True, 1, 1, str(number))))
    enqueued = time.process_time() - begun
    now, running = 0.0, {id: 0.0 for id, _ in scheduler.decide(0.0, memory).admit}
    deciding = observing = 0.0
    for step in range(decisions):
        now += 0.25
        if step % 2 == 0:
            usage = {
                id: int(curves[f"{id}:1"].at((now - since) / curves[f"{id}:1"].seconds))
                for id, since in running.items()
            }
            spent = {id: now - since for id, since in running.items()}
            begun = time.process_time()
            scheduler.observed(usage, now, spent)
            observing += time.process_time() - begun
        begun = time.process_time()
        if running:
            id = next(iter(running))
            del running[id]
            scheduler.finished(id, now, curves[f"{id}:1"])
        free = 4 * cores * GIB - sum(usage[id] for id in running if id in usage)
        admitted = scheduler.decide(now, Memory(free, GIB, GIB // 2, 4 * cores * GIB)).admit
        deciding += time.process_time() - begun
        running.update((id, now) for id, _ in admitted)
    return deciding / decisions, observing / (decisions // 2), enqueued / (jobs + cores)


def main() -> None:
    print("| waiting | cores | history | per decision | per observation of all | per enqueue |")
    print("|---|---|---|---|---|---|")
    for jobs, cores in ((10, 4), (100, 16), (1_000, 128), (10_000, 1_024)):
        for known in (True, False):
            decide, observe, enqueue = cost(jobs, cores, known)
            print(
                f"| {jobs} | {cores} | {'yes' if known else 'no'} | {decide * 1e3:.3f} ms "
                f"| {observe * 1e3:.2f} ms | {enqueue * 1e6:.0f} us |",
                flush=True,
            )


if __name__ == "__main__":
    main()
