"""Whether memory is short, and who then has to give way. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .claims import Claims, Job

SETTLE = 2.0  # seconds within which readings of usage and of free memory may disagree
LOOK_AHEAD = 2.5  # seconds from a reading to the effect of what we do about it
QUIET_AFTER_KILL = 4.0
MOST_QUIET = 60.0
FORGIVE = 60.0  # seconds without a kill, after which backing off starts anew
FREEZE_AHEAD = 10.0
TICK = 0.5
TRUST = 1.5  # growth beyond the forecast that room is kept for
SURPRISE = 1.15  # a job that holds so many times what was expected: forecasts are not to be trusted
FORGET_SURPRISE = 20.0
TREND = 8.0
TREND_AHEAD = 10.0
PRESSURE_CALM = 20.0
STEADY = 16 << 20  # bytes per second
FROZEN = "memory is short: compiles are held still until others let go"


@dataclass(frozen=True)
class Memory:
    """One look at the memory domain that binds, in bytes.

    `available` is what is free at this moment: what running jobs hold is already gone from it. `promised` is
    what neighbouring builds have said they will still take (see claims.HORIZONS), `first` whether this build is
    the eldest of them: the one that never has to give up its last compile. `pressure` is PSI "some avg10" (0 to
    100).
    """

    available: int
    reserve: int
    floor: int
    total: int
    pressure: float = 0.0
    promised: tuple[int, ...] = ()
    first: bool = True


class Relief:
    """Reads memory, and chooses whom to kill, freeze and thaw. `running` is the scheduler's own.

    What it chooses to kill counts as dying, so that the next look does not choose others in its place.
    """

    def __init__(self, claims: Claims, running: Mapping[int, Job], jitter: float) -> None:
        self._claims = claims
        self._running = running
        self._jitter = jitter
        self._quiet = QUIET_AFTER_KILL
        self._fresh = True
        self._held = 0
        self._readings: list[tuple[float, int]] = []  # when, budget
        self._usages: list[tuple[float, Mapping[int, int]]] = []
        self._growth = 0.0
        self._freed: list[tuple[float, int]] = []
        self._dying: set[int] = set()
        self._frozen: set[int] = set()
        self._quiet_until = self._thawed = self._froze = self._surprised = float("-inf")

    @property
    def held(self) -> int:
        """Bytes that all jobs held when they were last looked at."""
        return self._held

    # What happens.

    def observed(self, usage: Mapping[int, int], now: float) -> None:
        self._fresh = True
        self._held = sum(usage.values())
        self._growth = self._grown(usage, now)

    def surprised(self, job: Job, now: float) -> None:
        """Take note if a job holds more than was expected of it."""
        if job.forecast.known and job.held > SURPRISE * self._claims.planned(job):
            self._surprised = now

    def killed(self, job: Job, now: float) -> None:
        self._freed.append((now, job.held))
        self._back_off(now)

    def forget(self, job: Job) -> None:
        """The job does not run any more."""
        self._dying.discard(job.id)
        self._frozen.discard(job.id)

    def _back_off(self, now: float) -> None:
        """Twice as long each time, as long as kills go on: somebody else may be growing into the same memory."""
        if now > self._quiet_until + FORGIVE:
            self._quiet = QUIET_AFTER_KILL
        elif now > self._quiet_until:
            self._quiet = min(MOST_QUIET, self._quiet * 2)
        self._quiet_until = max(self._quiet_until, now + self._quiet * (1 + self._jitter))

    def _grown(self, usage: Mapping[int, int], now: float) -> float:
        """Bytes per second by which what runs has grown of late; what has ended must not hide it."""
        self._usages = [(when, known) for when, known in self._usages if when >= now - SETTLE] + [(now, usage)]
        then, before = self._usages[0]
        alive = self._running.keys() - self._dying
        grown = sum(held - before.get(id, 0) for id, held in usage.items() if id in alive)
        return max(0.0, grown / max(TICK, now - then))

    # What to do.

    def budget(self, now: float, memory: Memory) -> int:
        """What all jobs of this build may hold together: what is free, and what they hold already."""
        if self._fresh or not self._readings:
            self._fresh = False
            others = memory.available + self._held - memory.reserve
            self._readings.append((now, others))
            self._readings = [item for item in self._readings if item[0] > now - TREND]
        # The lowest of late: a job that lets go between two readings would count twice.
        latest = self._readings[-1][0]
        lowest = min(budget for when, budget in self._readings if when >= latest - SETTLE)
        begun, before = self._readings[0]
        taken = max(0.0, (before - lowest) / max(SETTLE, latest - begun))
        return int(lowest - taken * TREND_AHEAD)

    def closed(self, now: float, memory: Memory) -> str:
        """Why nothing may start, whatever it needs; or ""."""
        if self._frozen:
            return FROZEN
        if memory.available < memory.reserve:
            return "the machine's memory is nearly used up"
        if memory.pressure > PRESSURE_CALM:
            return "the machine is short of memory (PSI)"
        if now < self._quiet_until:
            return "memory was short a moment ago"
        return ""

    def choose(self, now: float, memory: Memory, guesses: bool) -> tuple[list[int], list[int]]:
        """Whom to kill, or freeze, because what is free is, or soon will be, under the floor.

        Killed is who is cheapest per byte, never the eldest of all builds. `guesses`: jobs without a history run.
        """
        trusted = not guesses and now > self._surprised + FORGET_SURPRISE
        expected, others = memory.available + self._coming(now), self._taken() * LOOK_AHEAD
        ahead = expected - self._growing(now, trusted) - others
        # What still grows below the reserve leaves no time to see somebody else come.
        growing = self._growth > STEADY
        least = memory.reserve if growing else memory.floor
        if expected >= least and ahead >= memory.floor // 2:
            return [], []
        alive = [job for job in self._running.values() if job.id not in self._dying]
        alive.sort(key=lambda job: job.started)
        needed = (memory.reserve if growing else (memory.floor + memory.reserve) // 2) - min(expected, ahead)
        if trusted and expected >= memory.floor and others < memory.floor // 2:
            frozen = self._freezable(alive, now, needed)
            self._frozen.update(frozen)
            if frozen:
                self._froze = now
                return [], frozen
        chosen = _cheapest(alive[1:] if memory.first else alive, needed)
        self._dying.update(job.id for job in chosen)
        return [job.id for job in chosen], []

    def _coming(self, now: float) -> int:
        """Bytes that will be free as soon as who is dying, or has just died, has let go of them."""
        self._freed = [item for item in self._freed if item[0] > now - LOOK_AHEAD]
        return sum(self._running[id].held for id in self._dying) + sum(size for _, size in self._freed)

    def _growing(self, now: float, trusted: bool) -> float:
        """Bytes that what runs will take before anything that is done now has an effect."""
        if now < self._froze + LOOK_AHEAD:
            return 0.0  # what the readings still show of it has ended
        growth = self._growth * LOOK_AHEAD
        if not trusted:
            return growth
        # Growth that was forecast ends where the forecast says, so that admission has left room for it.
        return min(growth, TRUST * max(0, self._claims.at(now + LOOK_AHEAD) - self._held))

    def _freezable(self, alive: list[Job], now: float, needed: float) -> list[int]:
        """Jobs that still grow, if others will let go of enough soon: then nothing need be lost."""
        soon = self._claims.profile.bucket(now + FREEZE_AHEAD)
        changes = {job.id: (job.claim_at(soon) - job.held) for job in alive if job.forecast.known}
        if -sum(change for change in changes.values() if change < 0) < needed:
            return []
        young = [job.id for job in alive[1:] if job.id not in self._frozen]
        return [id for id in young if changes.get(id, 0) > 0]

    def thaw(self, now: float, memory: Memory) -> list[int]:
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


def _cheapest(jobs: list[Job], needed: float) -> list[Job]:
    """Jobs that free `needed` bytes for the least lost time."""
    chosen: list[Job] = []
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
