"""Who may compile now. Pure: no clock, no file, no process; time, memory and jobs are values passed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import log2, sqrt

from .away import Away
from .claims import Claims, Job, Key
from .forecast import GIB, Curve, Features, Forecaster
from .relief import Memory, Relief

BOOST = 1.5  # what a job that was killed for memory is expected to take, over what it was expected to take
ALONE = "a compile that was killed for memory three times runs alone"
LATE_ENOUGH = 0.8
REFRESH = 4.0
GOLDEN = 0.6180339887498949
EARLY_ENOUGH = 0.6  # of the time the build has left: a job that takes no longer need not be hurried

__all__ = ["Decision", "Limits", "Memory", "Scheduler", "Waiting"]


@dataclass(frozen=True)
class Limits:
    """What a build may use: `jobs` compiles at a time, keeping `cpus` CPUs busy. `guard`: mind memory too."""

    jobs: int
    cpus: int
    guard: bool = True


@dataclass(frozen=True)
class Waiting:
    """A compile that asks to start. `most_threads`: up to so many threads may be given; 0, as many as asked.
    `may_leave`: a farm may run it."""

    id: int
    features: Features
    most_threads: int = 0
    may_leave: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do now. `admit` is (id, threads), `send` the same for the farm; `held` says why the first waiting
    job waits, for people."""

    admit: list[tuple[int, int]] = field(default_factory=list)
    send: list[tuple[int, int]] = field(default_factory=list)
    kill: list[int] = field(default_factory=list)
    freeze: list[int] = field(default_factory=list)
    thaw: list[int] = field(default_factory=list)
    held: str = ""


class Scheduler:
    """Decides which compiles run, from what it is told; see design.md, "Scheduling".

    The caller says what happens (`enqueue`, `started`, `observed`, `finished`, `killed`, `remove`), then asks
    `decide` and does it. What `decide` admits counts as running at once, what it kills as dying, so that
    nothing is given away twice before the sensors see it. Times are seconds of one monotonic clock; `jitter` (0
    to 1) should differ between builds, so that two of them do not back off, and come back, in step.
    """

    def __init__(self, limits: Limits, forecaster: Forecaster, jitter: float = 0.0) -> None:
        self.limits = limits
        self.forecaster = forecaster
        self.away = Away()
        self._jobs: dict[int, Job] = {}
        self._running: dict[int, Job] = {}
        self._groups: dict[Key, list[tuple[float, int, int]]] = {}
        self._claims = Claims(forecaster, self._running)
        self._relief = Relief(self._claims, self._running, jitter)
        self._weight = 0
        self._next = 0
        self._waiting = 0
        self._waiting_cpu = 0.0
        self._running_cpu = 0.0
        self._budget: int | None = None
        self._refreshed = 0.0
        self._alone = 0
        self._blocked = -1
        self._overtaken = 0
        self._unknown = 0
        self._scout = -1

    # What happens.

    def enqueue(self, waiting: Waiting) -> None:
        features = waiting.features
        forecast = self.forecaster.forecast(features)
        most = max(features.at_once, min(waiting.most_threads, features.archs)) if features.cuda else 1
        job = Job(waiting.id, features, features, most, self._next, forecast, waiting.may_leave)
        self._next += 1
        self._jobs[job.id] = job
        self._wait(job)

    def started(self, id: int, now: float) -> None:
        """An admitted job's compiler runs since `now`."""
        job = self._running.get(id)
        if job is not None:
            job.started = job.anchor = now

    def observed(
        self,
        usage: Mapping[int, int],
        now: float,
        spent: Mapping[int, float] | None = None,
        cpu: Mapping[int, float] | None = None,
    ) -> None:
        """What one pass of the sensors saw: bytes held, seconds of its own time that a job has come so far, and
        `cpu`: CPU seconds used here; each by job.

        The next `decide` must be given the memory that was read in the same pass. Jobs that have ended since
        belong in `usage` all the same: what they held is still missing from that memory.
        """
        self._relief.observed(usage, now)
        self._claims.profile.forget_before(self._claims.profile.bucket(now))
        self._refresh(now)
        remaining = 0.0
        for id, held in usage.items():
            job = self._running.get(id)
            if job is None:
                continue
            job.held, job.top = held, max(job.top, held)
            self._advance(job, now, spent)
            if job.features.remote and cpu and id in cpu:
                self.away.saw(job, cpu[id], now)
            if not job.forecast.known:
                self.forecaster.saw(id, job.features, job.spent, held)
            remaining += max(0.0, job.cpu - job.spent * job.threads)
            self._relief.surprised(job, now)
            self._claims.follow(job, now)
        self._running_cpu = remaining

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
            self.away.end(job, well=job.features.remote)
        self.remove(id)

    def killed(self, id: int, now: float) -> None:
        """A job was killed for memory, by us or by the kernel: it waits again, and is expected to take more."""
        job = self._running.get(id)
        if job is None:
            return
        if job.features.remote:
            self.returned(id, now, may_leave=True)
            return
        self._stop(job)
        self._relief.killed(job, now)
        job.kills += 1
        job.boost *= BOOST
        reached = job.top / max(1, self._claims.curve(job, job.asked).peak)
        job.boost *= max(1.0, reached)
        self._anew(job)

    def _anew(self, job: Job) -> None:
        """It waits again, as if it had never begun."""
        job.features = job.asked
        job.threads, job.held, job.top = 0, 0, 0
        job.spent = job.ahead = 0.0
        job.shapes.clear()
        self._wait(job)

    def returned(self, id: int, now: float, *, may_leave: bool = False) -> None:
        """The farm has not compiled a job: it waits again, to run here, or anywhere if it `may_leave` again."""
        job = self._running.get(id)
        if job is None:
            return
        self._stop(job)
        self._place(job, remote=False)
        job.may_leave = may_leave
        if not may_leave:
            self.away.refused(now)
        self._anew(job)

    def came_back(self, id: int, now: float, *, refused: bool = True) -> bool:
        """The farm's client runs a job's compilers here, unasked: whether they may. Then it is one of ours from
        now on; else it has to be ended, and has `returned`. `refused`: the farm would do so with others, too."""
        job = self._running.get(id)
        if job is None or not job.features.remote:
            return True
        if refused:
            self.away.refused(now)
        asked, known = job.asked, job.forecast.known
        self._place(job, remote=False)
        shape = self._claims.shape(job, 1)
        if self._room(job.id) or not (self._budget is None or self._claims.fits(shape, now, self._budget)):
            job.asked = asked  # until it has ended
            job.forecast = self.forecaster.forecast(asked)
            job.shapes.clear()
            return False
        self._unknown += known - job.forecast.known
        self.away.end(job)
        self._claims.end(job)
        job.features, job.threads, job.may_leave = job.asked.with_threads(1), 1, False
        job.parallelism = job.features.parallelism
        self._claims.begin(job, shape, now)
        self._weight += job.threads
        return True

    def _place(self, job: Job, *, remote: bool) -> None:
        """Expect of it what it takes when it runs there."""
        job.asked = replace(job.asked, remote=remote)
        job.forecast = self.forecaster.forecast(job.asked)
        job.shapes.clear()

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

    def _wait(self, job: Job) -> None:
        base = job.forecast.curve
        job.priority = _urgency(base) if job.forecast.known else self._blind_priority(job)
        job.cpu = base.seconds * job.features.parallelism
        job.group = _group(job)
        self._waiting += 1
        self._waiting_cpu += job.cpu
        heappush(self._groups.setdefault(job.group, []), (-job.priority, job.order, job.id))

    def _blind_priority(self, job: Job) -> float:
        """In no order, where nothing is known: what is learned from the first must hold for the rest. Only the
        first C++ file goes before all kernels: what is wrong with it would else be said last."""
        if job.features.cuda or self._scout not in (-1, job.id):
            return job.order * GOLDEN % 1.0
        self._scout = job.id
        return 1.0

    def _stop(self, job: Job) -> None:
        del self._running[job.id]
        self._relief.forget(job)
        self._alone -= job.alone
        self._unknown -= not job.forecast.known
        self._weight -= 0 if job.features.remote else job.threads
        self.away.end(job)
        self.forecaster.ended(job.id, job.features, finished=False)
        self._claims.end(job)

    def _advance(self, job: Job, now: float, spent: Mapping[int, float] | None) -> None:
        if spent is None:
            job.spent = now - job.started
        elif job.id in spent:
            job.spent = spent[job.id] / job.parallelism

    @property
    def _busy(self) -> int:
        """CPUs that are kept busy here."""
        return self._weight + self.away.cpus

    def load(self, now: float) -> tuple[int, int, tuple[int, ...]]:
        """CPUs that running compiles keep busy, CPUs that waiting ones want, and the bytes by which what runs
        is still expected to grow (see claims.HORIZONS): what neighbours cannot see by themselves."""
        return self._busy, self._waiting, self._claims.growth(now, self._relief.held)

    def expected(self, unseen: int) -> float | None:
        """Seconds until all is compiled, `unseen` more compiles like those that are here included; None where no
        history tells. The least that it can be: memory may hold compiles back."""
        jobs = list(self._jobs.values())
        if not jobs or not all(job.forecast.known for job in jobs):
            return None
        more = unseen * sum(job.cpu for job in jobs) / len(jobs) / self._cpus
        longest = max(job.forecast.curve.seconds - job.spent for job in jobs)
        return max(0.0, self._left() + more, longest)

    # What to do.

    def decide(self, now: float, memory: Memory) -> Decision:
        """What to admit, kill, freeze and thaw now."""
        if not self.limits.guard:
            return self._admissions(now, None, "", first=True)
        budget = self._budget = self._relief.budget(now, memory)
        kill, freeze = self._relief.choose(now, memory, self._unknown > 0)
        if kill or freeze:
            return Decision(kill=kill, freeze=freeze, held="memory is short: a compile has to give way")
        thaw = self._relief.thaw(now, memory)
        self._claims.promise(memory.promised)
        return replace(self._admissions(now, budget, self._relief.closed(now, memory), memory.first), thaw=thaw)

    def relieve(self, now: float, memory: Memory) -> Decision:
        """What to do when nothing is to be admitted any more: what is frozen must still come to its end."""
        if not self.limits.guard:
            return Decision()
        self._relief.budget(now, memory)
        kill, freeze = self._relief.choose(now, memory, self._unknown > 0)
        return Decision(kill=kill, freeze=freeze, thaw=[] if kill or freeze else self._relief.thaw(now, memory))

    def _admissions(self, now: float, budget: int | None, closed: str, first: bool) -> Decision:
        admit: list[tuple[int, int]] = []
        send = [] if closed else self._send(now, budget)
        if first and not self._running and self._waiting:
            admit.append(self._start_first(now, budget))
        if self._blocked not in self._jobs or self._blocked in self._running:
            self._blocked, self._overtaken = -1, 0
        closed = closed or (ALONE if self._alone else "") or self._room()
        if closed or not self._waiting:
            return Decision(admit=admit, send=send, held=closed if self._waiting else "")
        reason = ""
        for key in sorted(self._groups, key=lambda key: self._groups[key][0]):
            started, held = self._from_group(key, now, budget)
            admit += started
            reason = reason or held
            if self._room() or self._enough_overtaken():
                break
        return Decision(admit=admit, send=send, held=(reason or self._room()) if self._waiting else "")

    def _send(self, now: float, budget: int | None) -> list[tuple[int, int]]:
        """What is to run on the farm: the most urgent, for as many slots as it has."""
        sent: list[tuple[int, int]] = []
        for key in sorted(self._groups, key=lambda key: self._groups[key][0]):
            heap = self._groups[key]
            while (job := self._front(heap)) and job.may_leave and (free := self.away.free(now)):
                threads = max(1, min(job.most, free, self.away.slots // max(1, self._waiting)))
                self._place(job, remote=True)
                if budget is not None and not self._claims.fits(self._claims.shape(job, threads), now, budget):
                    self._place(job, remote=False)
                    return sent
                heappop(heap)
                sent.append(self._start(job, threads, now))
            if not heap:
                del self._groups[key]
        return sent

    def _from_group(self, key: Key, now: float, budget: int | None) -> tuple[list[tuple[int, int]], str]:
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

    def _refuse(self, job: Job) -> None:
        """Remember who was refused, while it stands before all others; everything that starts overtakes it."""
        blocked = self._jobs.get(self._blocked)
        if blocked is None or blocked.id in self._running or job.rank < blocked.rank:
            self._blocked, self._overtaken = job.id, 0

    def _enough_overtaken(self) -> bool:
        """Nothing else starts, until a job fits that many have overtaken."""
        return self._overtaken > 4 * max(8, self.limits.cpus) and self._blocked in self._jobs

    def _room(self, coming: int = -1) -> str:
        """Why nothing more may run here; '' where something may. `coming`: what is away still, and would be it."""
        if self._weight + self.away.cpus_beside(coming) >= self.limits.cpus:
            return "all CPUs are busy"
        if len(self._running) - self.away.count >= self.limits.jobs:
            running = "1 compile runs" if self.limits.jobs == 1 else f"{self.limits.jobs} compiles run"
            return f"{running}, as many as allowed"
        return ""

    def _why(self, job: Job, budget: int | None) -> str:
        if job.alone:
            return "it was killed for memory three times, and will run alone"
        return f"it needs up to {self._claims.shape(job, 1).peak / GIB:.1f} GiB"

    def _front(self, heap: list[tuple[float, int, int]]) -> Job | None:
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
        self._groups = {key: heap for key, heap in self._groups.items() if heap}
        job = self._jobs.get(self._blocked) if self._enough_overtaken() else None
        job = job or min(fronts, key=lambda job: (*job.rank, job.order))
        heap = self._groups[job.group]
        heap.remove(next(entry for entry in heap if entry[2] == job.id))
        heapify(heap)
        if not self._groups[job.group]:
            del self._groups[job.group]
        return self._start(job, self._wanted(job, budget), now)

    def _wanted(self, job: Job, budget: int | None) -> int:
        """As few threads as let it end before the build would anyway: narrow jobs pack better than wide ones."""
        if job.most == 1:
            return 1
        most = min(job.most, self.limits.cpus)
        while budget is not None and most > 1 and self._claims.shape(job, most).peak > budget:
            most -= 1  # so many would never fit
        idle = max(1, self.limits.cpus - self._busy)
        fill = min(most, idle // max(1, self._waiting))
        for threads in range(max(1, fill), most):
            if self._claims.shape(job, threads).seconds <= self._left() * EARLY_ENOUGH:
                return threads
        return most

    def _left(self) -> float:
        """Seconds that the build will still take, if all CPUs are kept busy."""
        return (self._waiting_cpu + self._running_cpu) / self._cpus

    @property
    def _cpus(self) -> int:
        """Those of the farm included."""
        return max(1, self.limits.cpus + self.away.slots)

    def _fitting(self, job: Job, now: float, budget: int | None) -> int:
        """The number of threads with which the job may start now; 0: with none."""
        if job.alone:
            return 0
        wanted = self._wanted(job, budget)
        for threads in range(min(wanted, self.limits.cpus - self._busy), 0, -1):
            shape = self._claims.shape(job, threads)
            if threads < wanted and shape.seconds > self._left() * LATE_ENOUGH:
                break
            if budget is None or self._claims.fits(shape, now, budget):
                return threads
        return 0

    def _start(self, job: Job, threads: int, now: float) -> tuple[int, int]:
        shape = self._claims.shape(job, threads)
        self._waiting -= 1
        self._waiting_cpu -= job.cpu
        self._running_cpu += job.cpu
        job.features = job.asked.with_threads(threads)
        job.threads, job.parallelism = threads, job.features.parallelism
        self._claims.begin(job, shape, now)
        self._running[job.id] = job
        self._alone += job.alone
        self._unknown += not job.forecast.known
        if job.features.remote:
            self.away.begin(job)
        else:
            self._weight += threads
        return job.id, threads


def _urgency(curve: Curve) -> float:
    """Who starts first: who still runs long after its peak, so that nothing long is left for the end, and who
    holds much, so that there is something small left to put beside it. (The root: of the weights that were
    simulated it is the one that is nowhere bad.)"""
    peak_at = curve.points.index(curve.peak) / len(curve.points)
    return curve.seconds * (1 - peak_at) * sqrt(curve.peak)


def _group(job: Job) -> Key:
    """Waiting jobs that are alike: when the first of them does not fit, the others need not be tried."""
    features, curve = job.features, job.forecast.curve
    common = (features.cuda, features.archs, features.at_once, job.most, job.kills, job.may_leave)
    if not job.forecast.known:
        return common
    return (*common, round(2 * log2(curve.seconds + 1)), round(3 * log2(curve.peak + 1)))
