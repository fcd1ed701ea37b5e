"""How much memory a compile will take, and when. Pure: history comes in as values, and leaves as values.

A forecast is a curve of sixteen points: the highest memory within each sixteenth of the run. The reason for
a curve, and not a peak: a CUDA compile holds its peak for a fraction of its life, so that reserving peaks
leaves two thirds of a machine idle. Standard library only (the supervisor imports this).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

POINTS = 16
GIB = 1 << 30

COLD_CUDA = 3 * GIB  # per compiler at work
COLD_CPP = GIB * 6 // 5
COLD_CUDA_SECONDS = 120.0  # per round of compilers
COLD_CPP_SECONDS = 30.0
COLD_REMOTE = GIB * 3 // 4  # what stays here of a compile on a farm: preprocessors, and what is sent
ENOUGH = 3  # from so many finished jobs on, what was seen in this build counts for more than a guess
MARGIN = 1.6  # standard deviations above the mean, for a job that runs by itself
MOST_SLICES = 128


@dataclass(frozen=True)
class Curve:
    """One compile: `seconds` alone on its CPUs, and the most bytes held within each 16th of that time."""

    seconds: float
    points: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.points)

    def at(self, fraction: float) -> int:
        """Bytes at a fraction (0 to 1) of the run."""
        count = len(self.points)
        return self.points[min(count - 1, max(0, int(fraction * count)))]

    def scaled(self, memory: float = 1.0, time: float = 1.0) -> Curve:
        if memory == time == 1.0:
            return self
        return Curve(self.seconds * time, tuple(int(point * memory) for point in self.points))


Kind = tuple[bool, int, bool]


@dataclass(frozen=True)
class Features:
    """What a compile is. `key` names source, flags, archs and compiler build, but not `threads`. `remote`: its
    compilers run on a farm, and what is forecast is what stays here."""

    cuda: bool
    archs: int
    threads: int
    key: str
    remote: bool = False

    @property
    def at_once(self) -> int:
        """How many compilers work at a time: its weight in CPUs, here or on the farm."""
        return max(1, min(self.threads, self.archs)) if self.cuda else 1

    @property
    def rounds(self) -> int:
        """How often `at_once` compilers start, one after another, until all archs are done."""
        return -(-max(1, self.archs) // self.at_once) if self.cuda else 1

    @property
    def parallelism(self) -> float:
        """CPU seconds per second of a run that is alone on its CPUs."""
        return max(1, self.archs) / self.rounds if self.cuda and not self.remote else 1.0

    @property
    def entry(self) -> str:
        """The name of this compile's curve in the history."""
        return f"{self.key}:farm" if self.remote else f"{self.key}:{self.at_once}"

    @property
    def kind(self) -> Kind:
        """What a guess for it is made from: others of its kind."""
        return self.cuda, self.rounds, self.remote

    def with_threads(self, threads: int) -> Features:
        return replace(self, threads=threads)


@dataclass(frozen=True)
class Forecast:
    """`known`: this very compile was seen before; else the curve is a guess from others of its kind."""

    curve: Curve
    known: bool


def resample(samples: Sequence[tuple[float, int]], parallelism: float = 1.0) -> Curve:
    """The curve of a finished job.

    `samples` are (CPU seconds the job has used, bytes it holds), in order; CPU seconds rather than wall time,
    so that a busy machine does not stretch the curve. `parallelism` is that of its Features.
    """
    if not samples:
        return Curve(0.0, (0,) * POINTS)
    end = max(samples[-1][0], 1e-9)
    points = [0] * POINTS
    for spent, held in samples:
        place = min(POINTS - 1, int(spent / end * POINTS))
        points[place] = max(points[place], held)
    return Curve(samples[-1][0] / parallelism, tuple(_filled(points)))


def _filled(points: list[int]) -> list[int]:
    """Sixteenths without a sample take the higher neighbour: a short job has fewer samples than points."""
    before: list[int] = []
    after: list[int] = []
    for values, source in ((before, points), (after, points[::-1])):
        last = 0
        for point in source:
            last = point or last
            values.append(last)
    return [point or max(pair) for point, *pair in zip(points, before, after[::-1], strict=True)]


def refold(curve: Curve, rounds: int, wanted: int, memory: float) -> Curve:
    """The curve of the same compile with another number of threads.

    It consists of `rounds` equal humps; with other threads there would be `wanted` of them, each `memory`
    times as high.
    """
    if rounds == wanted:
        return curve.scaled(memory)
    hump = _fold(curve.points, rounds)
    repeated = hump * wanted
    points = tuple(int(memory * max(part)) for part in _parts(repeated, POINTS))
    return Curve(curve.seconds / rounds * wanted, points)


def _fold(points: Sequence[int], rounds: int) -> tuple[int, ...]:
    """The highest of each sixteenth over all humps."""
    humps = [points[int(i * len(points) / rounds) : -(-(i + 1) * len(points) // rounds)] for i in range(rounds)]
    stretched = [[max(part) for part in _parts(hump, POINTS)] for hump in humps]
    return tuple(max(column) for column in zip(*stretched, strict=True))


def _parts(points: Sequence[int], count: int) -> list[Sequence[int]]:
    """`count` slices that cover `points`; neighbours overlap where they do not divide evenly."""
    size = len(points)
    cuts = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    return [points[low : max(low + 1, high)] for low, high in cuts]


@dataclass
class _Pool:
    """What jobs of one kind without history have held at each age, per compiler at work.

    Ages are cut into slices of `width` seconds; each job counts once per slice, with the most it held there.
    """

    cold: int
    width: float = 2.0
    counts: list[int] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    ongoing: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # id: slice, most in it, most ever
    tops: list[int] = field(default_factory=list)
    finished: int = 0

    def saw(self, id: int, age: float, held: int) -> None:
        place = int(age / self.width)
        if place >= MOST_SLICES:
            self._halve()
            place = int(age / self.width)
        slice_, most, top = self.ongoing.get(id, (place, 0, 0))
        if place != slice_:
            self._count(slice_, most)
            most = 0
        self.ongoing[id] = (place, max(most, held), max(top, held))

    def end(self, id: int, finished: bool) -> None:
        slice_, most, top = self.ongoing.pop(id, (0, 0, 0))
        if top and finished:
            self._count(slice_, most)
            self.tops.append(top)
            self.finished += 1

    def _count(self, place: int, most: int) -> None:
        for values in (self.sums, self.squares):
            values.extend([0.0] * (place + 1 - len(values)))
        self.counts.extend([0] * (place + 1 - len(self.counts)))
        self.counts[place] += 1
        self.sums[place] += most
        self.squares[place] += float(most) ** 2

    def _halve(self) -> None:
        self.width *= 2
        self.counts = [sum(self.counts[i : i + 2]) // 2 or 1 for i in range(0, len(self.counts), 2)]
        self.sums = [sum(self.sums[i : i + 2]) / 2 for i in range(0, len(self.sums), 2)]
        self.squares = [sum(self.squares[i : i + 2]) / 2 for i in range(0, len(self.squares), 2)]
        self.ongoing = {id: (place // 2, most, top) for id, (place, most, top) in self.ongoing.items()}

    def curve(self, together: int) -> Curve:
        """What to expect of a job that is one of `together`: the more there are, the more their sum is average."""
        margin = MARGIN / sqrt(max(1, together))
        tops = [*self.tops[-256:], *(top for _, _, top in self.ongoing.values())]
        unseen = max(self.cold if self.finished < ENOUGH else 0.0, _mean_and(margin, len(tops), *_moments(tops)))
        points = [
            int(_mean_and(margin, count + 1, total + unseen, square + unseen**2))
            for count, total, square in zip(self.counts, self.sums, self.squares, strict=True)
        ]
        if self.finished < ENOUGH:  # nobody knows yet what comes after
            points += [int(unseen)] * (len(points) // 2 + 1 + int(COLD_CUDA_SECONDS / self.width / 4))
        return Curve(len(points) * self.width, tuple(points))


def _moments(values: Sequence[int]) -> tuple[float, float]:
    return float(sum(values)), sum(float(value) ** 2 for value in values)


def _mean_and(margin: float, count: int, total: float, square: float) -> float:
    """The mean, and `margin` standard deviations more."""
    mean = total / max(1, count)
    return mean + margin * sqrt(max(0.0, square / max(1, count) - mean * mean))


class Forecaster:
    """Forecasts from history, and from what this build has shown so far.

    `generation` grows whenever forecasts may have changed.
    """

    def __init__(self, history: Mapping[str, Curve]) -> None:
        self._history = history
        self._ratios: dict[bool, tuple[list[float], list[float]]] = {True: ([], []), False: ([], [])}
        self._pools: dict[Kind, _Pool] = {}
        self._pooled: dict[Kind, Curve] = {}
        self.generation = 0

    def forecast(self, features: Features) -> Forecast:
        """The curve to expect of a compile, at its number of threads."""
        curve = self._from_history(features)
        if curve is not None:
            memory, time = (1.0, 1.0) if features.remote else self.correction(features.cuda)
            return Forecast(curve.scaled(memory, time), known=True)
        return Forecast(self._guess(features), known=False)

    def seconds_known(self, features: Features) -> float:
        """Seconds that this very compile took in an earlier build; 0 when that is not known."""
        curve = self._from_history(features)
        return curve.seconds if curve else 0.0

    def _from_history(self, features: Features) -> Curve | None:
        exact = self._history.get(features.entry)
        if exact is not None or not features.cuda or features.remote:
            return exact
        nearest = sorted(range(1, max(1, features.archs) + 1), key=lambda count: abs(count - features.at_once))
        for threads in nearest:
            other = features.with_threads(threads)
            curve = self._history.get(other.entry)
            if curve is not None:
                return refold(curve, other.rounds, features.rounds, features.at_once / other.at_once)
        return None

    def correction(self, cuda: bool) -> tuple[float, float]:
        """By how much this build's jobs differ from their history: (memory, time)."""
        memory, time = self._ratios[cuda]
        if len(memory) < ENOUGH:
            return 1.0, 1.0
        return _rounded(memory[len(memory) // 2]), _rounded(time[len(time) // 2])

    def _guess(self, features: Features) -> Curve:
        at_once = _compilers(features)
        if curve := self._pooled.get(features.kind):
            return curve.scaled(at_once)
        for (cuda, rounds, remote), curve in self._pooled.items():
            if (cuda, remote) == (features.cuda, features.remote):
                return refold(curve, rounds, features.rounds, at_once)
        seconds = COLD_CUDA_SECONDS if features.cuda else COLD_CPP_SECONDS
        return Curve(seconds * features.rounds, (_cold(features) * at_once,) * POINTS)

    def saw(self, id: int, features: Features, age: float, held: int) -> None:
        """A running job without history holds so much after `age` seconds of its own time."""
        pool = self._pools.get(features.kind)
        if pool is None:
            pool = self._pools[features.kind] = _Pool(_cold(features))
        pool.saw(id, age, held // _compilers(features))

    def ended(self, id: int, features: Features, finished: bool) -> None:
        """A job without history has ended."""
        pool = self._pools.get(features.kind)
        if pool is not None:
            pool.end(id, finished)

    def refresh(self, together: int) -> None:
        """Make use of what was seen; `together` jobs run at a time."""
        self._pooled = {key: pool.curve(together) for key, pool in self._pools.items() if pool.counts}
        self.generation += 1

    def learn(self, features: Features, curve: Curve) -> None:
        """A job has finished with this curve (at `features.threads` threads)."""
        known = None if features.remote else self._from_history(features)
        if known is None or known.peak <= 0 or known.seconds <= 0:
            return
        before = self.correction(features.cuda)
        memory, time = self._ratios[features.cuda]
        insort(memory, curve.peak / known.peak)
        insort(time, curve.seconds / known.seconds)
        if self.correction(features.cuda) != before:
            self.generation += 1


def _compilers(features: Features) -> int:
    """How many of them work here at a time."""
    return 1 if features.remote else features.at_once


def _cold(features: Features) -> int:
    """What a compile of which nothing is known is taken to hold here, per compiler."""
    if features.remote:
        return COLD_REMOTE
    return COLD_CUDA if features.cuda else COLD_CPP


def _rounded(ratio: float) -> float:
    """In steps of 5%, so that small changes do not change every forecast."""
    return max(0.05, round(ratio * 20) / 20)
