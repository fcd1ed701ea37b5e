"""Who may compile now. Pure: no clock, no file, no process; time, memory and jobs are values passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import log2, sqrt
from operator import add, sub

from .forecast import COLD_CPP, COLD_CUDA, GIB, Curve, Features, Forecast, Forecaster

KILLS_BEFORE_ALONE = 3
BOOST = 1.5  # what a job that was killed for memory is expected to take, over what it was expected to take
MOST_BUCKETS = 512
COARSE = 16
STEPS = 8  # finer steps per point of a curve
SMEAR = 0.02  # how far off in time a known job's forecast may be
SMEAR_UNKNOWN = 0.35
HOLD_SECONDS = 2.0  # a job that should have let go by now is given so long, and a share of its run
HOLD_SHARE = 0.03
SETTLE = 2.0  # seconds within which readings of usage and of free memory may disagree
LOOK_AHEAD = 2.5  # seconds from a reading to the effect of what we do about it
QUIET_AFTER_KILL = 4.0
MOST_QUIET = 60.0
FORGIVE = 60.0  # seconds without a kill, after which backing off starts anew
FREEZE_AHEAD = 10.0
FROZEN = "memory is short: compiles are held still until others let go"
TICK = 0.5
TRUST = 1.5  # growth beyond the forecast that room is kept for
SURPRISE = 1.15  # a job that holds so many times what was expected: forecasts are not to be trusted
FORGET_SURPRISE = 20.0
ALONE = "a compile that was killed for memory three times runs alone"
TREND = 8.0
TREND_AHEAD = 10.0
PRESSURE_CALM = 20.0
LATE_ENOUGH = 0.8
RISE = 1.5
REFRESH = 4.0
GOLDEN = 0.6180339887498949
EARLY_ENOUGH = 0.6  # of the time the build has left: a job that takes no longer need not be hurried

_Key = tuple[object, ...]


@dataclass(frozen=True)
class Limits:
    """What a build may use: `jobs` compiles at a time, keeping `cpus` CPUs busy. `guard`: mind memory too."""

    jobs: int
    cpus: int
    guard: bool = True


@dataclass(frozen=True)
class Memory:
    """One look at the memory domain that binds, in bytes.

    `available` is what is free at this moment: what running jobs hold is already gone from it. `promised` is
    what neighbouring builds have said they will still take. `pressure` is PSI "some avg10" (0 to 100).
    """

    available: int
    reserve: int
    floor: int
    total: int
    pressure: float = 0.0
    promised: int = 0


@dataclass(frozen=True)
class Waiting:
    """A compile that asks to start. `most_threads`: up to so many threads may be given; 0, as many as asked."""

    id: int
    features: Features
    most_threads: int = 0


@dataclass(frozen=True)
class Decision:
    """What to do now. `admit` is (id, threads); `held` says why the first waiting job waits, for people."""

    admit: list[tuple[int, int]] = field(default_factory=list)
    kill: list[int] = field(default_factory=list)
    freeze: list[int] = field(default_factory=list)
    thaw: list[int] = field(default_factory=list)
    held: str = ""


@dataclass(eq=False)
class _Job:
    id: int
    features: Features  # with the threads it asked for, or runs with
    asked: Features
    most: int
    order: int
    forecast: Forecast
    boost: float = 1.0  # forecasts that were too low got it killed
    kills: int = 0
    priority: float = 0.0
    cpu: float = 0.0  # CPU seconds that the forecast expects
    threads: int = 0
    parallelism: float = 1.0
    started: float = 0.0
    spent: float = 0.0  # seconds of its own time: what it would have taken so far, alone on its CPUs
    ahead: float = 0.0  # by how many seconds it is ahead of its curve
    held: int = 0
    top: int = 0
    curve: Curve = field(default_factory=lambda: Curve(0.0, (0,)))
    claim: list[int] = field(default_factory=list)
    claim_from: int = 0
    anchor: float = 0.0
    generation: int = -1
    group: _Key = ()
    shapes: dict[int, _Shape] = field(default_factory=dict)

    @property
    def position(self) -> float:
        """Where on its curve it is, in seconds."""
        return self.spent + self.ahead

    def claim_at(self, bucket: int) -> int:
        place = bucket - self.claim_from
        return self.claim[place] if 0 <= place < len(self.claim) else 0

    @property
    def rank(self) -> tuple[bool, float]:
        return self.alone, -self.priority

    @property
    def alone(self) -> bool:
        return self.kills >= KILLS_BEFORE_ALONE


@dataclass(frozen=True)
class _Shape:
    """A candidate's claim at one number of threads, cut into buckets."""

    claim: list[int]
    peak: int
    peak_at: int  # bucket
    seconds: float
    generation: int
    width: float


class _Profile:
    """What the running jobs are expected to hold, in buckets of time: the sum of their claims.

    The width adapts to the longest job, so that a claim has some 512 buckets whatever a build compiles.
    """

    def __init__(self) -> None:
        self.width = 0.5
        self.sums: list[int] = []
        self.first = 0

    def bucket(self, now: float) -> int:
        return int(now / self.width)

    def add(self, claim: list[int], start: int, operation: Callable[[int, int], int] = add) -> None:
        if not self.sums:
            self.first = start
        here, end = start - self.first, start - self.first + len(claim)
        if end <= 0:
            return
        if here < 0:
            claim, here = claim[-here:], 0
        if len(self.sums) < end:
            self.sums.extend([0] * (end - len(self.sums)))
        self.sums[here:end] = map(operation, self.sums[here:end], claim)

    def forget_before(self, bucket: int) -> None:
        if bucket - self.first > 2048:
            del self.sums[: bucket - self.first]
            self.first = bucket

    def at(self, bucket: int) -> int:
        place = bucket - self.first
        return self.sums[place] if 0 <= place < len(self.sums) else 0

    def ahead(self, bucket: int, count: int, step: int = 1) -> list[int]:
        here = max(0, bucket - self.first)
        return self.sums[here : here + count : step]


class Scheduler:
    """Decides which compiles run, from what it is told; see design.md, "Scheduling".

    The caller says what happens (`enqueue`, `started`, `observed`, `finished`, `killed`, `remove`), then asks
    `decide` and does it. What `decide` admits counts as running at once, what it kills as dying, so that
    nothing is given away twice before the sensors see it. Times are seconds of one monotonic clock; `jitter` (0
    to 1) should differ between builds, so that two of them do not back off, and come back, in step.
    """

    def __init__(self, limits: Limits, forecaster: Forecaster, jitter: float = 0.0) -> None:
        self.limits = limits
        self._jitter = jitter
        self._quiet = QUIET_AFTER_KILL
        self.forecaster = forecaster
        self._jobs: dict[int, _Job] = {}
        self._running: dict[int, _Job] = {}
        self._groups: dict[_Key, list[tuple[float, int, int]]] = {}
        self._profile = _Profile()
        self._weight = 0
        self._next = 0
        self._waiting = 0
        self._waiting_cpu = 0.0
        self._running_cpu = 0.0
        self._fresh = True
        self._held = 0
        self._readings: list[tuple[float, int]] = []  # when, budget
        self._usages: list[tuple[float, Mapping[int, int]]] = []
        self._growth = 0.0
        self._freed: list[tuple[float, int]] = []
        self._quiet_until = float("-inf")
        self._refreshed = 0.0
        self._dying: set[int] = set()
        self._frozen: set[int] = set()
        self._thawed = self._froze = self._surprised = float("-inf")
        self._alone = 0
        self._blocked = -1
        self._overtaken = 0
        self._unknown = 0

    # What happens.

    def enqueue(self, waiting: Waiting) -> None:
        features = waiting.features
        forecast = self.forecaster.forecast(features)
        most = max(features.at_once, min(waiting.most_threads, features.archs)) if features.cuda else 1
        job = _Job(waiting.id, features, features, most, self._next, forecast)
        self._next += 1
        self._jobs[job.id] = job
        self._wait(job)

    def started(self, id: int, now: float) -> None:
        """An admitted job's compiler runs since `now`."""
        job = self._running.get(id)
        if job is not None:
            job.started = job.anchor = now

    def observed(self, usage: Mapping[int, int], now: float, spent: Mapping[int, float] | None = None) -> None:
        """What one pass of the sensors saw: bytes held, and CPU seconds used so far, by job.

        The next `decide` must be given the memory that was read in the same pass. Jobs that have ended since
        belong in `usage` all the same: what they held is still missing from that memory.
        """
        self._fresh = True
        self._held = sum(usage.values())
        self._growth = self._grown(usage, now)
        profile = self._profile
        profile.forget_before(profile.bucket(now))
        here = profile.bucket(now)
        self._refresh(now)
        remaining = 0.0
        generation = self.forecaster.generation
        for id, held in usage.items():
            job = self._running.get(id)
            if job is None:
                continue
            job.held = held
            job.top = max(job.top, held)
            self._advance(job, now, spent)
            if not job.forecast.known:
                self.forecaster.saw(id, job.features, job.spent, held)
            remaining += max(0.0, job.cpu - job.spent * job.threads)
            claimed = job.claim_at(here)
            if job.forecast.known and held > SURPRISE * self._planned(job):
                self._surprised = now
            late = abs(now - job.position - job.anchor)
            stale = not job.forecast.known and job.generation != generation
            if held < 0.6 * claimed and job.forecast.known and _let_go(job):
                stale = True
            if held > claimed or stale or late > max(2 * profile.width, 0.04 * job.curve.seconds):
                self._claim_again(job, now)
        self._running_cpu = remaining

    def _grown(self, usage: Mapping[int, int], now: float) -> float:
        """Bytes per second by which what runs has grown of late; what has ended must not hide it."""
        self._usages = [(when, known) for when, known in self._usages if when >= now - SETTLE] + [(now, usage)]
        then, before = self._usages[0]
        alive = self._running.keys() - self._dying
        grown = sum(held - before.get(id, 0) for id, held in usage.items() if id in alive)
        return max(0.0, grown / max(TICK, now - then))

    def _refresh(self, now: float) -> None:
        """Forecasts of jobs without history follow what such jobs have done so far."""
        if now - self._refreshed > REFRESH + len(self._running) / 50:
            self._refreshed = now
            if self._unknown:
                self.forecaster.refresh(len(self._running))

    def finished(self, id: int, now: float, curve: Curve | None = None) -> None:
        """A job has ended by itself. `curve`: what it took, to learn from (None after an error)."""
        job = self._jobs.get(id)
        if job is not None and curve is not None and curve.seconds > 0:
            self.forecaster.learn(job.features, curve)
            self.forecaster.ended(id, job.features, finished=True)
        self.remove(id)

    def killed(self, id: int, now: float) -> None:
        """A job was killed for memory, by us or by the kernel: it waits again, and is expected to take more."""
        job = self._running.get(id)
        if job is None:
            return
        self._stop(job)
        self._freed.append((now, job.held))
        self._back_off(now)
        job.kills += 1
        job.boost *= BOOST
        reached = job.top / max(1, self._curve(job, job.asked).peak)
        job.boost *= max(1.0, reached)
        job.features = job.asked
        job.threads, job.held, job.top = 0, 0, 0
        job.spent = job.ahead = 0.0
        job.shapes.clear()
        self._wait(job)

    def _back_off(self, now: float) -> None:
        """Twice as long each time, as long as kills go on: somebody else may be growing into the same memory."""
        if now > self._quiet_until + FORGIVE:
            self._quiet = QUIET_AFTER_KILL
        elif now > self._quiet_until:
            self._quiet = min(MOST_QUIET, self._quiet * 2)
        self._quiet_until = max(self._quiet_until, now + self._quiet * (1 + self._jitter))

    def remove(self, id: int) -> None:
        """A job is gone, whatever it was doing."""
        job = self._jobs.pop(id, None)
        if job is None:
            return
        if id in self._running:
            self._stop(job)
        else:
            self._waiting -= 1
            self._waiting_cpu -= job.cpu

    def _wait(self, job: _Job) -> None:
        base = job.forecast.curve
        # In no order, where nothing is known: what is learned from the first must hold for the rest.
        job.priority = _urgency(base) if job.forecast.known else job.order * GOLDEN % 1.0
        job.cpu = base.seconds * job.features.parallelism
        job.group = _group(job)
        self._waiting += 1
        self._waiting_cpu += job.cpu
        heappush(self._groups.setdefault(job.group, []), (-job.priority, job.order, job.id))

    def _stop(self, job: _Job) -> None:
        del self._running[job.id]
        self._dying.discard(job.id)
        self._frozen.discard(job.id)
        self._alone -= job.alone
        self._unknown -= not job.forecast.known
        self._weight -= job.threads
        self.forecaster.ended(job.id, job.features, finished=False)
        self._profile.add(job.claim, job.claim_from, sub)
        job.claim = []

    def _advance(self, job: _Job, now: float, spent: Mapping[int, float] | None) -> None:
        if spent is None:
            job.spent = now - job.started
        elif job.id in spent:
            job.spent = spent[job.id] / job.parallelism

    # What a job is expected to hold.

    def _curve(self, job: _Job, features: Features) -> Curve:
        return self.forecaster.forecast(features).curve.scaled(job.boost)

    def _shape(self, job: _Job, threads: int) -> _Shape:
        cached = job.shapes.get(threads)
        width, generation = self._profile.width, self.forecaster.generation
        if cached is not None and cached.width == width and cached.generation == generation:
            return cached
        curve = self._curve(job, job.asked.with_threads(threads))
        if curve.seconds > MOST_BUCKETS * width:
            self._widen(curve.seconds)
            width = self._profile.width
        claim = _claim(curve, 0.0, width, SMEAR if job.forecast.known else SMEAR_UNKNOWN)
        peak = max(claim)
        shape = _Shape(claim, peak, claim.index(peak), curve.seconds, generation, width)
        job.shapes[threads] = shape
        return shape

    def _planned(self, job: _Job) -> int:
        """What the job was expected to hold by now when it was admitted: its claim has followed it since."""
        claim = self._shape(job, job.threads).claim
        return claim[min(int(job.spent / self._profile.width), len(claim) - 1)]

    def _widen(self, seconds: float) -> None:
        """Fewer, wider buckets: a longer job has come. Rare, since widths double."""
        old, profile = self._profile, _Profile()
        profile.width = old.width
        while seconds > MOST_BUCKETS * profile.width:
            profile.width *= 2
        self._profile = profile
        step = int(profile.width / old.width)
        for job in self._running.values():
            lead = job.claim_from % step
            padded = [0] * lead + job.claim
            job.claim = [max(padded[i : i + step]) for i in range(0, len(padded), step)]
            job.claim_from //= step
            profile.add(job.claim, job.claim_from)

    def _claim_again(self, job: _Job, now: float) -> None:
        """The job does not follow its forecast, or the forecast has changed."""
        profile = self._profile
        profile.add(job.claim, job.claim_from, sub)
        job.curve = self._expect(job)
        job.generation = self.forecaster.generation
        known = job.forecast.known
        job.claim = _claim(job.curve, job.position, profile.width, SMEAR if known else SMEAR_UNKNOWN)
        hold = 1 + int((HOLD_SECONDS + HOLD_SHARE * job.curve.seconds) / profile.width)
        near = job.claim[:hold] + [0] * (hold - len(job.claim))
        job.claim[:hold] = [max(job.held, claimed) for claimed in near]
        job.claim_from = profile.bucket(now)
        job.anchor = now - job.position
        profile.add(job.claim, job.claim_from)

    def _expect(self, job: _Job) -> Curve:
        if job.forecast.known:
            return _corrected(job)
        curve = self._curve(job, job.features)
        if _past_peak(job):
            return Curve(max(curve.seconds, job.spent * 1.25 + 10), (int(job.held * 1.15),))
        here = curve.at(job.spent / max(curve.seconds, 1e-9))
        return curve.scaled(min(max(1.0, job.held / max(1, here)), max(1.0, 1.1 * job.top / curve.peak, RISE)))

    def load(self, now: float) -> tuple[int, int, int]:
        """CPUs that running compiles keep busy, CPUs that waiting ones want, and the bytes by which what runs
        is still expected to grow: what neighbours cannot see by themselves."""
        ahead = self._profile.ahead(self._profile.bucket(now), len(self._profile.sums))
        return self._weight, self._waiting, max(0, max(ahead, default=0) - self._held)

    # What to do.

    def decide(self, now: float, memory: Memory) -> Decision:
        """What to admit, kill, freeze and thaw now."""
        guard = self.limits.guard
        if not guard:
            return self._admissions(now, None, "")
        budget = self._budget(now, memory)
        kill, freeze = self._relief(now, memory)
        if kill or freeze:
            return Decision(kill=kill, freeze=freeze, held="memory is short: a compile has to give way")
        thaw = self._thaw(now, memory)
        decision = self._admissions(now, budget, FROZEN if self._frozen else self._closed(now, memory))
        return replace(decision, thaw=thaw)

    def relieve(self, now: float, memory: Memory) -> Decision:
        """What to do when nothing is to be admitted any more: what is frozen must still come to its end."""
        if not self.limits.guard:
            return Decision()
        self._budget(now, memory)
        kill, freeze = self._relief(now, memory)
        return Decision(kill=kill, freeze=freeze, thaw=[] if kill or freeze else self._thaw(now, memory))

    def _budget(self, now: float, memory: Memory) -> int:
        """What all jobs of this build may hold together: what is free, and what they hold already."""
        if self._fresh or not self._readings:
            self._fresh = False
            others = memory.available + self._held - memory.reserve - memory.promised
            self._readings.append((now, others))
            self._readings = [item for item in self._readings if item[0] > now - TREND]
        # The lowest of late: a job that lets go between two readings would count twice.
        latest = self._readings[-1][0]
        lowest = min(budget for when, budget in self._readings if when >= latest - SETTLE)
        begun, before = self._readings[0]
        taken = max(0.0, (before - lowest) / max(SETTLE, latest - begun))
        return int(lowest - taken * TREND_AHEAD)

    def _closed(self, now: float, memory: Memory) -> str:
        """Why nothing may start, whatever it needs; or ""."""
        if memory.available < memory.reserve:
            return "the machine's memory is nearly used up"
        if memory.pressure > PRESSURE_CALM:
            return "the machine is short of memory (PSI)"
        if now < self._quiet_until:
            return "memory was short a moment ago"
        return ""

    def _relief(self, now: float, memory: Memory) -> tuple[list[int], list[int]]:
        """Whom to kill, or freeze, because what is free is, or soon will be, under the floor.

        Killed is who is cheapest per byte, never the eldest.
        """
        self._freed = [item for item in self._freed if item[0] > now - LOOK_AHEAD]
        dying = sum(self._running[id].held for id in self._dying)
        coming = dying + sum(size for _, size in self._freed)
        expected = memory.available + coming
        others = self._taken()
        near = self._profile.at(self._profile.bucket(now + LOOK_AHEAD))
        # Growth that was forecast ends where the forecast says, so that admission has left room for it.
        growth = self._growth * LOOK_AHEAD
        trusted = not self._unknown and now > self._surprised + FORGET_SURPRISE
        if now < self._froze + LOOK_AHEAD:
            growth = 0.0  # what the readings still show of it has ended
        elif trusted:
            growth = min(growth, TRUST * max(0, near - self._held))
        ahead = expected - growth - others * LOOK_AHEAD
        if expected >= memory.floor and ahead >= memory.floor // 2:
            return [], []
        alive = [job for job in self._running.values() if job.id not in self._dying]
        alive.sort(key=lambda job: job.started)
        needed = (memory.floor + memory.reserve) // 2 - min(expected, ahead)
        if trusted and expected >= memory.floor and others * LOOK_AHEAD < memory.floor // 2:
            frozen = self._freezable(alive, now, needed)
            self._frozen.update(frozen)
            if frozen:
                self._froze = now
                return [], frozen
        chosen = _cheapest(alive[1:], needed)
        self._dying.update(job.id for job in chosen)
        return [job.id for job in chosen], []

    def _freezable(self, alive: list[_Job], now: float, needed: float) -> list[int]:
        """Jobs that still grow, if others will let go of enough soon: then nothing need be lost."""
        soon = self._profile.bucket(now + FREEZE_AHEAD)
        changes = {job.id: (job.claim_at(soon) - job.held) for job in alive if job.forecast.known}
        if -sum(change for change in changes.values() if change < 0) < needed:
            return []
        young = [job.id for job in alive[1:] if job.id not in self._frozen]
        return [id for id in young if changes.get(id, 0) > 0]

    def _thaw(self, now: float, memory: Memory) -> list[int]:
        """One goes on at a time: when there is room again, or nobody else is left who could make room."""
        if not self._frozen or now < max(self._thawed, self._froze) + LOOK_AHEAD:
            return []
        if memory.available < memory.reserve and len(self._frozen) < len(self._running):
            return []
        eldest = min(self._frozen, key=lambda id: self._running[id].started)
        self._frozen.discard(eldest)
        self._thawed = now
        return [eldest]

    def _taken(self) -> float:
        """Bytes per second by which what is left for us falls, since others take it."""
        when, budget = self._readings[-1]
        then, earlier = self._readings[-2] if len(self._readings) > 1 else self._readings[-1]
        return max(0.0, (earlier - budget) / max(TICK, when - then))

    def _admissions(self, now: float, budget: int | None, closed: str) -> Decision:
        admit: list[tuple[int, int]] = []
        if not self._running and self._waiting:
            admit.append(self._start_first(now, budget))
        if self._blocked not in self._jobs or self._blocked in self._running:
            self._blocked, self._overtaken = -1, 0
        closed = closed or (ALONE if self._alone else "") or self._room()
        if closed or not self._waiting:
            return Decision(admit=admit, held=closed if self._waiting else "")
        first = ""
        for key in sorted(self._groups, key=lambda key: self._groups[key][0]):
            started, held = self._from_group(key, now, budget)
            admit += started
            if held and not first:
                first = held
            if self._room() or self._enough_overtaken():
                break
        return Decision(admit=admit, held=(first or self._room()) if self._waiting else "")

    def _from_group(self, key: _Key, now: float, budget: int | None) -> tuple[list[tuple[int, int]], str]:
        """What may start of jobs that are alike, and why the next of them may not."""
        heap, admit, held = self._groups[key], [], ""
        while not held and (job := self._front(heap)):
            held = self._room()
            threads = 0 if held else self._fitting(job, now, budget)
            if threads:
                heappop(heap)
                admit.append(self._start(job, threads, now))
                self._overtaken += 1
            else:
                held = held or self._why(job, budget)
                self._refuse(job)
        if not heap:
            del self._groups[key]
        return admit, held

    def _refuse(self, job: _Job) -> None:
        """Remember who was refused, while it stands before all others; everything that starts overtakes it."""
        blocked = self._jobs.get(self._blocked)
        if blocked is None or blocked.id in self._running or job.rank < blocked.rank:
            self._blocked, self._overtaken = job.id, 0

    def _enough_overtaken(self) -> bool:
        """Nothing else starts, until a job fits that many have overtaken."""
        return self._overtaken > 4 * max(8, self.limits.cpus) and self._blocked in self._jobs

    def _room(self) -> str:
        if self._weight >= self.limits.cpus:
            return "all CPUs are busy"
        if len(self._running) >= self.limits.jobs:
            return f"{self.limits.jobs} compiles run, as many as allowed"
        return ""

    def _why(self, job: _Job, budget: int | None) -> str:
        if job.alone:
            return "it was killed for memory three times, and will run alone"
        return f"it needs up to {self._shape(job, 1).peak / GIB:.1f} GiB"

    def _front(self, heap: list[tuple[float, int, int]]) -> _Job | None:
        """The first job of a group that still waits; entries of jobs that are gone fall away here."""
        while heap:
            job = self._jobs.get(heap[0][2])
            if job is not None and job.id not in self._running and job.order == heap[0][1]:
                return job
            heappop(heap)
        return None

    def _start_first(self, now: float, budget: int | None) -> tuple[int, int]:
        """Something always runs: the first that waits, whatever memory says."""
        fronts = [job for heap in self._groups.values() if (job := self._front(heap))]
        job = self._jobs.get(self._blocked) if self._enough_overtaken() else None
        job = job or min(fronts, key=lambda job: (*job.rank, job.order))
        heap = self._groups[job.group]
        heap.remove(next(entry for entry in heap if entry[2] == job.id))
        heapify(heap)
        if not self._groups[job.group]:
            del self._groups[job.group]
        return self._start(job, self._wanted(job, budget), now)

    def _wanted(self, job: _Job, budget: int | None) -> int:
        """As few threads as let it end before the build would anyway: narrow jobs pack better than wide ones."""
        if job.most == 1:
            return 1
        most = min(job.most, self.limits.cpus)
        while budget is not None and most > 1 and self._shape(job, most).peak > budget:
            most -= 1  # so many would never fit
        idle = max(1, self.limits.cpus - self._weight)
        fill = min(most, idle // max(1, self._waiting))
        for threads in range(max(1, fill), most):
            if self._shape(job, threads).seconds <= self._left() * EARLY_ENOUGH:
                return threads
        return most

    def _left(self) -> float:
        """Seconds that the build will still take, if all CPUs are kept busy."""
        return (self._waiting_cpu + self._running_cpu) / max(1, self.limits.cpus)

    def _fitting(self, job: _Job, now: float, budget: int | None) -> int:
        """The number of threads with which the job may start now; 0: with none."""
        if job.alone:
            return 0
        wanted = self._wanted(job, budget)
        for threads in range(min(wanted, self.limits.cpus - self._weight), 0, -1):
            shape = self._shape(job, threads)
            if threads < wanted and shape.seconds > self._left() * LATE_ENOUGH:
                break
            if budget is None or self._fits(shape, now, budget):
                return threads
        return 0

    def _fits(self, shape: _Shape, now: float, budget: int) -> bool:
        here, claim, profile = self._profile.bucket(now), shape.claim, self._profile
        if shape.peak > budget:
            # It never fits, and has to be let in at some time: when nothing else will be there at its worst.
            ahead = profile.ahead(here, len(claim))
            return not any(other and other + own > budget for other, own in zip(ahead, claim, strict=False))
        for step in (COARSE, 1):  # most that do not fit are seen not to at a few places
            if max(map(add, profile.ahead(here, len(claim), step), claim[::step]), default=0) > budget:
                return False
        return True

    def _start(self, job: _Job, threads: int, now: float) -> tuple[int, int]:
        shape = self._shape(job, threads)
        self._waiting -= 1
        self._waiting_cpu -= job.cpu
        self._running_cpu += job.cpu
        job.features = job.asked.with_threads(threads)
        job.threads, job.parallelism = threads, job.features.parallelism
        job.started = job.anchor = now
        job.curve = self._curve(job, job.features)
        job.generation = self.forecaster.generation
        job.claim, job.claim_from = shape.claim, self._profile.bucket(now)
        self._profile.add(job.claim, job.claim_from)
        self._running[job.id] = job
        self._alone += job.alone
        self._unknown += not job.forecast.known
        self._weight += threads
        return job.id, threads


def _urgency(curve: Curve) -> float:
    """Who starts first: who still runs long after its peak, so that nothing long is left for the end, and who
    holds much, so that there is something small left to put beside it. (The root: of the weights that were
    simulated it is the one that is nowhere bad.)"""
    peak_at = curve.points.index(curve.peak) / len(curve.points)
    return curve.seconds * (1 - peak_at) * sqrt(curve.peak)


def _group(job: _Job) -> _Key:
    """Waiting jobs that are alike: when the first of them does not fit, the others need not be tried."""
    features, curve = job.features, job.forecast.curve
    common = (features.cuda, features.archs, features.at_once, job.most, job.kills)
    if not job.forecast.known:
        return common
    return (*common, round(2 * log2(curve.seconds + 1)), round(3 * log2(curve.peak + 1)))


def _claim(curve: Curve, spent: float, width: float, smear: float) -> list[int]:
    """What a job that has run `spent` seconds is expected to hold, bucket by bucket from now on.

    It may have begun anywhere within its first bucket, and what lies ahead may come earlier or later by `smear`.
    """
    steps = _envelope(curve.points)
    size = len(curve.points) * STEPS
    scale = width * size / max(curve.seconds, 1e-9)
    first, slow, fast = min(spent / width * scale, size), scale / (1 + smear), scale * (1 + smear)
    count = 1 + min(int((size - first) / slow) + 1, int((len(steps) - 1 - first) / fast))
    if scale > 1.5:  # a short job: buckets are wider than steps
        ends = ((first + max(0, place - 1) * slow, first + (place + 1) * fast) for place in range(count))
        return [max(steps[int(low) : int(high) + 1]) for low, high in ends]
    earliest = [steps[int(first + place * slow)] for place in range(count - 1)]
    latest = [steps[int(first + place * fast)] for place in range(1, count + 1)]
    return list(map(max, earliest[:1] + earliest, latest))


@lru_cache(maxsize=4096)
def _envelope(points: tuple[int, ...]) -> list[int]:
    """The curve at finer steps, and what it ends with for as long again.

    Within a sixteenth that rises, memory grows steadily, as compilers do.
    """
    steps: list[int] = []
    before = points[0] // 4
    for point in points:
        rise = max(0, point - before)
        steps += [point - rise * left // STEPS for left in range(STEPS - 1, -1, -1)]
        before = point
    return steps + [points[-1]] * (len(steps) + 64)


def _corrected(job: _Job) -> Curve:
    """The forecast of a known job, raised by as much as it has shown to need."""
    curve = job.curve
    progress = min(1.0, job.spent / max(curve.seconds, 1e-9) * 1.15)
    expected = max(curve.points[: 1 + int(progress * (len(curve.points) - 1))])
    if expected < 0.4 * curve.peak:
        expected = curve.peak
    return curve.scaled(max(1.0, job.top / max(1, expected)))


def _let_go(job: _Job) -> bool:
    """Whether it has already let go of its peak, which its curve places a little later; then it is moved on."""
    points, step = job.curve.points, job.curve.seconds / len(job.curve.points)
    here = min(len(points) - 1, int(job.position / step))
    if job.top < 0.75 * max(points[: here + 1]):
        return False
    for place in range(here + 1, min(len(points), here + 3)):
        if points[place] < 0.6 * points[here] and job.held <= 1.15 * points[place]:
            job.ahead += place * step - job.position
            return True
    return False


def _past_peak(job: _Job) -> bool:
    """A job without history that has held much, and now holds much less, is past its peak (with one round)."""
    much = 0.5 * (COLD_CUDA if job.features.cuda else COLD_CPP) * job.features.at_once
    return job.features.rounds == 1 and job.top > much and job.held < 0.45 * job.top


def _cheapest(jobs: list[_Job], needed: float) -> list[_Job]:
    """Jobs that free `needed` bytes for the least lost time."""
    chosen: list[_Job] = []
    freed = 0
    for job in sorted(jobs, key=lambda job: job.spent * job.threads / max(1, job.held)):
        if freed >= needed:
            break
        chosen.append(job)
        freed += job.held
    for job in sorted(chosen, key=lambda job: -job.spent * job.threads):
        if freed - job.held >= needed:
            chosen.remove(job)
            freed -= job.held
    return chosen
