"""What ran side by side, what waited for what, and what each source cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from . import farmed
from .record import Record, Run, Sample

Reason = Literal["", "cpus", "jobs", "memory"]


@dataclass(frozen=True)
class Cost:
    """What a source cost, in all its runs (a killed one was time, too). `cpu` in seconds, `peak` in bytes, both of
    this machine. `remote`: the last run was on the farm, `returns`: how many came back from there."""

    source: str
    archs: str
    cuda: bool
    runs: int
    kills: int
    seconds: float
    cpu: float
    peak: int
    waited: float
    outcome: str
    torch_header: bool | None
    cache: str = ""
    remote: bool = False
    returns: int = 0

    @property
    def is_farmed(self) -> bool:
        """Whether the farm has compiled it."""
        return self.remote and self.outcome == "compiled" and self.cache != "hit"


@dataclass(frozen=True)
class Held:
    """A stretch of time in which the first waiting compile was held back for one reason."""

    start: float
    end: float
    reason: Reason
    why: str
    waiting: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


def lanes(runs: Sequence[Run]) -> list[int]:
    """A lane for each run, so that no two runs of a lane overlap; always the lowest that is free. Those of the
    farm come after those of this machine."""
    here = _packed([run for run in runs if not run.remote])
    first = max(here, default=-1) + 1
    there = [first + lane for lane in _packed([run for run in runs if run.remote])]
    placed = {False: iter(here), True: iter(there)}
    return [next(placed[run.remote]) for run in runs]


def lane_names(runs: Sequence[Run], placed: Sequence[int]) -> list[str]:
    """`1`, `2`, `farm 1`: what each lane is called; `placed` is what `lanes` says of the runs."""
    first, count = first_of_farm(runs, placed), max(placed, default=-1) + 1
    return [str(lane + 1) if lane < first else f"farm {lane - first + 1}" for lane in range(count)]


def first_of_farm(runs: Sequence[Run], placed: Sequence[int]) -> int:
    """The first lane of the farm: how many there are of this machine."""
    return max((lane for run, lane in zip(runs, placed, strict=True) if not run.remote), default=-1) + 1


def _packed(runs: Sequence[Run]) -> list[int]:
    result = [0] * len(runs)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    count = 0
    for number in sorted(range(len(runs)), key=lambda number: (runs[number].start, -runs[number].end)):
        while busy and busy[0][0] <= runs[number].start:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, count = count, count + 1
        result[number] = lane
        heappush(busy, (runs[number].end, lane))
    return result


def pause_lanes(record: Record, placed: Sequence[int]) -> list[int]:
    """For each pause the lane of the run that was held still; `placed` is what `lanes` says of the runs."""
    found = {}
    for run, lane in zip(record.runs, placed, strict=True):
        for pause in record.pauses:
            if pause.job == run.job and run.start <= pause.start <= run.end:
                found[pause] = lane
    return [found.get(pause, 0) for pause in record.pauses]


def reason_of(why: str) -> Reason:
    """What kind of reason the scheduler gives in words; all that is neither CPUs nor a number is memory."""
    if not why:
        return ""
    if why == "all CPUs are busy":
        return "cpus"
    return "jobs" if why.endswith("as many as allowed") else "memory"


def held_back(record: Record) -> list[Held]:
    """When, and why, compiles were held back; equal neighbours are one. A look stands for the time to the next."""
    stretches: list[Held] = []
    for sample, until in zip(record.samples, _ends(record), strict=True):
        if not sample.waiting or not (reason := reason_of(sample.why)):
            continue
        last = stretches[-1] if stretches else None
        if last and last.end == sample.time and last.reason == reason:
            stretches.pop()
            stretches.append(Held(last.start, until, reason, last.why, max(last.waiting, sample.waiting)))
        else:
            stretches.append(Held(sample.time, until, reason, sample.why, sample.waiting))
    return stretches


def _ends(record: Record) -> Iterable[float]:
    times = [sample.time for sample in record.samples[1:]]
    last = max((run.end for run in record.runs), default=record.seconds)
    return [*times, max(last, record.samples[-1].time)] if record.samples else []


def weights(record: Record) -> list[tuple[Sample, float]]:
    """Each look at memory, and the seconds that it stands for."""
    return [(sample, until - sample.time) for sample, until in zip(record.samples, _ends(record), strict=True)]


def costs(record: Record) -> list[Cost]:
    """What each source cost, the dearest first. One that is compiled into two objects is there twice."""
    groups: dict[int, list[Run]] = {}
    for run in record.runs:
        groups.setdefault(run.job, []).append(run)
    return sorted(map(_cost, groups.values()), key=lambda cost: (-cost.cpu, -cost.seconds, cost.source))


def _cost(runs: Sequence[Run]) -> Cost:
    last = runs[-1]
    return Cost(
        source=last.source,
        archs=last.archs,
        cuda=last.cuda,
        runs=len(runs),
        kills=sum(run.outcome == "memory" for run in runs),
        seconds=sum(run.end - run.start for run in runs),
        cpu=sum(run.cpu for run in runs),
        peak=max(run.peak for run in runs),
        waited=runs[0].waited,
        outcome=last.outcome,
        torch_header=last.torch_header,
        cache=last.cache,
        remote=last.remote,
        returns=sum(map(farmed.came_back, runs)),
    )


def weight(run: Run) -> int:
    """How many CPUs of this machine a run keeps busy: nvcc runs one compiler for each arch, at most `threads` at a
    time; one on the farm leaves little here."""
    if run.remote:
        return 0
    return max(1, min(run.threads, run.archs.count(";") + 1)) if run.cuda else 1


def busy_at(runs: Sequence[Run], times: Sequence[float]) -> list[int]:
    """How many CPUs the runs kept busy at each of these (rising) times."""
    changes = sorted([(run.start, weight(run)) for run in runs] + [(run.end, -weight(run)) for run in runs])
    result, busy, place = [], 0, 0
    for time in times:
        while place < len(changes) and changes[place][0] <= time:
            busy += changes[place][1]
            place += 1
        result.append(busy)
    return result


def most_held(record: Record) -> int:
    """The most bytes that compiles held at a time, as far as was seen: looks can miss the peak of a short one,
    which its own end tells."""
    together = max((sample.held for sample in record.samples), default=0)
    return max([together, *(run.peak for run in record.runs)])


def most_at_once(runs: Sequence[Run]) -> int:
    """The most runs that were on at the same time."""
    return max(_packed(runs), default=-1) + 1
