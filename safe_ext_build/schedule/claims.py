"""What compiles are expected to hold, from now to their end, in buckets of time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add, sub

from .forecast import COLD_CPP, COLD_CUDA, Curve, Features, Forecast, Forecaster

MOST_BUCKETS = 512
COARSE = 16
STEPS = 8  # finer steps per point of a curve
SMEAR = 0.02  # how far off in time a known job's forecast may be
SMEAR_UNKNOWN = 0.35
HOLD_SECONDS = 2.0  # a job that should have let go by now is given so long, and a share of its run
HOLD_SHARE = 0.03
RISE = 1.5
KILLS_BEFORE_ALONE = 3
HORIZONS = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""Seconds from now at which the steps of what builds promise each other end; the last step has no end."""

Key = tuple[object, ...]


@dataclass(eq=False)
class Job:
    id: int
    features: Features  # with the threads it asked for, or runs with
    asked: Features
    most: int
    order: int
    forecast: Forecast
    may_leave: bool = False  # to a farm
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
    group: Key = ()
    shapes: dict[int, Shape] = field(default_factory=dict)

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
class Shape:
    """A candidate's claim at one number of threads, cut into buckets."""

    claim: list[int]
    peak: int
    peak_at: int  # bucket
    seconds: float
    generation: int
    width: float


class Profile:
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


class Claims:
    """The book of claims: what each running compile, and all of them together, are expected to hold.

    `running` is the scheduler's own; a compile must be in it as long as it has a claim.
    """

    def __init__(self, forecaster: Forecaster, running: Mapping[int, Job]) -> None:
        self.forecaster = forecaster
        self.profile = Profile()
        self._running = running
        self._promised: list[int] = []
        self._rest = 0

    def begin(self, job: Job, shape: Shape, now: float) -> None:
        """The job starts with the claim that it was admitted with."""
        job.started = job.anchor = now
        job.curve = self.curve(job, job.features)
        job.generation = self.forecaster.generation
        job.claim, job.claim_from = shape.claim, self.profile.bucket(now)
        self.profile.add(job.claim, job.claim_from)

    def end(self, job: Job) -> None:
        self.profile.add(job.claim, job.claim_from, sub)
        job.claim = []

    def follow(self, job: Job, now: float) -> None:
        """Claim anew where the job has left its curve, or the forecast has changed."""
        claimed, known = job.claim_at(self.profile.bucket(now)), job.forecast.known
        late = abs(now - job.position - job.anchor)
        stale = not known and job.generation != self.forecaster.generation
        if known and job.held < 0.6 * claimed and let_go(job):
            stale = True
        if job.held > claimed or stale or late > max(2 * self.profile.width, 0.04 * job.curve.seconds):
            self._claim_again(job, now)

    def at(self, now: float) -> int:
        """Bytes that all that runs is expected to hold at that time."""
        return self.profile.at(self.profile.bucket(now))

    def growth(self, now: float, held: int) -> tuple[int, ...]:
        """Bytes by which what runs, and holds `held`, is still expected to grow: the most within each step of
        HORIZONS."""
        ahead = self.profile.ahead(self.profile.bucket(now), len(self.profile.sums))
        return tuple(max(0, max(part, default=0) - held) for part in self._steps(ahead))

    def _steps(self, ahead: list[int]) -> Iterator[list[int]]:
        begin = 0
        for horizon in HORIZONS:
            end = int(horizon / self.profile.width) + 1
            yield ahead[begin:end]
            begin = end
        yield ahead[begin:]

    def promise(self, promised: Sequence[int]) -> None:
        """Take note of what other builds are going to take, from now on, as `growth` tells it."""
        self._promised = []
        for horizon, size in zip(HORIZONS, promised, strict=False) if any(promised) else ():
            self._promised += [size] * (int(horizon / self.profile.width) + 1 - len(self._promised))
        self._rest = promised[-1] if promised else 0

    def curve(self, job: Job, features: Features) -> Curve:
        return self.forecaster.forecast(features).curve.scaled(job.boost)

    def shape(self, job: Job, threads: int) -> Shape:
        cached = job.shapes.get(threads)
        width, generation = self.profile.width, self.forecaster.generation
        if cached is not None and cached.width == width and cached.generation == generation:
            return cached
        curve = self.curve(job, job.asked.with_threads(threads))
        if curve.seconds > MOST_BUCKETS * width:
            self._widen(curve.seconds)
            width = self.profile.width
        claim = _claim(curve, 0.0, width, SMEAR if job.forecast.known else SMEAR_UNKNOWN)
        peak = max(claim)
        shape = Shape(claim, peak, claim.index(peak), curve.seconds, generation, width)
        job.shapes[threads] = shape
        return shape

    def planned(self, job: Job) -> int:
        """What the job was expected to hold by now when it was admitted: its claim has followed it since."""
        claim = self.shape(job, job.threads).claim
        return claim[min(int(job.spent / self.profile.width), len(claim) - 1)]

    def _widen(self, seconds: float) -> None:
        """Fewer, wider buckets: a longer job has come. Rare, since widths double."""
        old, profile = self.profile, Profile()
        profile.width = old.width
        while seconds > MOST_BUCKETS * profile.width:
            profile.width *= 2
        self.profile = profile
        step = int(profile.width / old.width)
        for job in self._running.values():
            lead = job.claim_from % step
            padded = [0] * lead + job.claim
            job.claim = [max(padded[i : i + step]) for i in range(0, len(padded), step)]
            job.claim_from //= step
            profile.add(job.claim, job.claim_from)

    def _claim_again(self, job: Job, now: float) -> None:
        """The job does not follow its forecast, or the forecast has changed."""
        profile = self.profile
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

    def _expect(self, job: Job) -> Curve:
        if job.forecast.known:
            return _corrected(job)
        curve = self.curve(job, job.features)
        if _past_peak(job):
            return Curve(max(curve.seconds, job.spent * 1.25 + 10), (int(job.held * 1.15),))
        here = curve.at(job.spent / max(curve.seconds, 1e-9))
        return curve.scaled(min(max(1.0, job.held / max(1, here)), max(1.0, 1.1 * job.top / curve.peak, RISE)))

    def fits(self, shape: Shape, now: float, budget: int) -> bool:
        here, claim = self.profile.bucket(now), shape.claim
        if shape.peak > budget:
            # It never fits, and has to be let in at some time: when nothing else will be there at its worst.
            ahead = self._ahead(here, len(claim))
            return not any(other and other + own > budget for other, own in zip(ahead, claim, strict=False))
        for step in (COARSE, 1):  # most that do not fit are seen not to at a few places
            if max(map(add, self._ahead(here, len(claim), step), claim[::step]), default=0) > budget:
                return False
        return True

    def _ahead(self, bucket: int, count: int, step: int = 1) -> list[int]:
        """What all that runs is expected to hold, here and in other builds beyond what they hold already."""
        ours = self.profile.ahead(bucket, count, step)
        if not self._promised:
            return ours
        theirs = self._promised[:count:step]
        size = len(range(0, count, step))
        ours += [0] * (size - len(ours))
        return list(map(add, ours, theirs + [self._rest] * (size - len(theirs))))


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


def _corrected(job: Job) -> Curve:
    """The forecast of a known job, raised by as much as it has shown to need."""
    curve = job.curve
    progress = min(1.0, job.spent / max(curve.seconds, 1e-9) * 1.15)
    expected = max(curve.points[: 1 + int(progress * (len(curve.points) - 1))])
    if expected < 0.4 * curve.peak:
        expected = curve.peak
    return curve.scaled(max(1.0, job.top / max(1, expected)))


def let_go(job: Job) -> bool:
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


def _past_peak(job: Job) -> bool:
    """A job without history that has held much, and now holds much less, is past its peak (with one round)."""
    much = 0.5 * (COLD_CUDA if job.features.cuda else COLD_CPP) * job.features.at_once
    return job.features.rounds == 1 and job.top > much and job.held < 0.45 * job.top
