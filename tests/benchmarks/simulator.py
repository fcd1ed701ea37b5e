"""Builds in simulated time: the production policy over measured memory curves, beside the rules people use.

    python tests/benchmarks/simulator.py [table] [robust] [--seeds 1000]

prints, in markdown, makespan over the bound max(CPU seconds / cores, memory x time / memory, longest job) for
each machine and mix, with the kills by the kernel and the CPU time that was done twice.

The machine: the operating system holds 1 GiB; memory is sampled twice a second and known a second late; where
the sum of what really is held exceeds what there is, the kernel kills the biggest job. With more threads than
cores everything slows down alike. `traces/` holds the curves, resampled from real runs of nvcc.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from operator import add
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from safe_ext_build.schedule.forecast import Curve, Features, Forecaster
from safe_ext_build.schedule.policy import GOLDEN, Limits, Memory, Scheduler, Waiting

MIB = 1 << 20
GIB = 1 << 30
TICK = 0.5
LAG = 1.0
OS_USES = GIB
FINE = 128  # points of a true curve
VISIBLE = 32  # how many more jobs than slots ninja lets us see

Neighbour = Callable[[float], int]


# What is compiled.


@dataclass(frozen=True)
class Source:
    """One compile, as it truly is, for one arch: seconds, and bytes at each of 128 moments."""

    name: str
    seconds: float
    points: tuple[int, ...]
    cuda: bool = True
    archs: int = 1
    threads: int = 1  # as the build asks for

    @property
    def features(self) -> Features:
        return Features(self.cuda, self.archs, self.threads, self.name)

    def run(self, threads: int) -> tuple[float, tuple[int, ...]]:
        """Seconds alone on its CPUs, and bytes at each moment, with so many nvcc threads."""
        return _run(self, min(threads, self.archs))

    @property
    def cpu(self) -> float:
        return self.seconds * self.archs

    @property
    def byte_seconds(self) -> float:
        return self.cpu * sum(self.points) / len(self.points)


@cache
def _run(source: Source, threads: int) -> tuple[float, tuple[int, ...]]:
    rounds = -(-source.archs // threads)
    last = source.archs - (rounds - 1) * threads
    points: list[int] = []
    for number in range(rounds):
        compilers = last if number == rounds - 1 else threads
        points += [point * compilers for point in source.points]
    return source.seconds * rounds, tuple(points)


@cache
def _traces() -> dict[str, tuple[float, tuple[int, ...]]]:
    folder = Path(__file__).parent / "traces"
    found = {}
    for path in sorted(folder.glob("*.json")):
        trace = json.loads(path.read_text())
        archs = len(trace["archs"])
        points = tuple(point * MIB // archs for point in trace["points_mib"])
        found[trace["name"]] = (trace["cpu_s"] / archs, points)
    return found


# Head dimensions that were measured, by kind of kernel; those between are interpolated.
MEASURED = {
    "fwd": {
        32: "fwd_hdim32_fp16",
        64: "fwd_hdim64_fp16_2arch_threads2",
        128: "fwd_hdim128_fp16_causal",
        256: "fwd_hdim256_fp16",
    },
    "bwd": {64: "bwd_hdim64_fp16", 128: "bwd_hdim128_bf16", 256: "bwd_hdim256_bf16_causal"},
    "split": {64: "split_hdim64_fp16", 128: "split_hdim128_bf16"},
}


def _interpolated(kind: str, dimension: int) -> tuple[float, tuple[int, ...]]:
    known = MEASURED[kind]
    low = max((have for have in known if have <= dimension), default=min(known))
    high = min((have for have in known if have >= dimension), default=max(known))
    share = 0.0 if low == high else (dimension - low) / (high - low)
    below, above = _traces()[known[low]], _traces()[known[high]]
    seconds, points = below if share < 0.5 else above
    seconds = below[0] * (1 - share) + above[0] * share
    peak = max(below[1]) * (1 - share) + max(above[1]) * share
    return seconds, tuple(int(point * peak / max(points)) for point in points)


def flash_attention(archs: int = 1, threads: int = 1) -> list[Source]:
    """flash-attn's 73 sources, in the order in which its setup.py lists them."""
    sources = []
    seconds, points = _traces()["small_torch_tu"]
    api = tuple(int(point * 0.45) for point in points)  # only its host passes: 1.3 of 3 GiB
    sources.append(Source("api.cpp", 60.0, api, cuda=False))
    for kind in ("fwd", "bwd", "split"):
        for dimension in (32, 64, 96, 128, 192, 256):
            for variant in ("fp16", "bf16", "fp16_causal", "bf16_causal"):
                seconds, points = _interpolated(kind, dimension)
                sources.append(Source(f"{kind}_{dimension}_{variant}", seconds, points, True, archs, threads))
    return sources


def many(count: int, archs: int = 1, threads: int = 1) -> list[Source]:
    """`count` sources: flash-attn's, again and again, a little different each time."""
    base, rng, sources = flash_attention(archs, threads), random.Random(count), []
    for number in range(count):
        like = base[number % len(base)]
        factor = 1.0 if number < len(base) else rng.uniform(0.85, 1.15)
        points = tuple(int(point * factor) for point in like.points)
        name = f"{like.name}.{number}"
        sources.append(Source(name, like.seconds * factor, points, like.cuda, like.archs, like.threads))
    return sources


def few(count: int) -> list[Source]:
    """Every nth of flash-attn's: a small mix that still holds all kinds."""
    base = flash_attention()
    return [base[number * len(base) // count] for number in range(count)]


def small(count: int) -> list[Source]:
    """A project of its own kind: a few small CUDA files and much C++."""
    seconds, points = _traces()["small_torch_tu"]
    cpp = tuple(int(point * 0.45) for point in points)
    rng, sources = random.Random(count), []
    for number in range(count):
        cuda, factor = number % 4 == 0, rng.uniform(0.5, 1.3)
        true = tuple(int(point * factor) for point in (points if cuda else cpp))
        sources.append(Source(f"small.{number}", (seconds if cuda else 50.0) * factor, true, cuda))
    return sources


def bound(sources: Sequence[Source], cpus: int, total: int) -> float:
    """No schedule is faster: all cores always busy, or all memory always full, or the longest job."""
    cpu = sum(source.cpu for source in sources) / cpus
    memory = sum(source.byte_seconds for source in sources) / total
    return max(cpu, memory, max(source.run(source.threads)[0] for source in sources))


# The machine.


@dataclass(eq=False)
class Running:
    id: int
    source: Source
    threads: int
    begun: float  # on the machine's virtual clock, which runs slower when there are more threads than cores
    seconds: float
    points: tuple[int, ...]
    frozen: bool = False

    def held(self, virtual: float) -> int:
        """Each point is the most within its 128th. It is reached steadily: in none of the recordings does a
        compile take more than 300 MiB within a second. It is let go of at once."""
        at = (virtual - self.begun) / self.seconds * len(self.points)
        place = min(len(self.points) - 1, max(0, int(at)))
        before, point = self.points[place - 1] if place else 0, self.points[place]
        return point - int((point - before) * max(0.0, place + 1 - at)) if point > before else point

    @property
    def parallelism(self) -> float:
        return self.source.features.with_threads(self.threads).parallelism


@dataclass
class Result:
    makespan: float = 0.0
    oom: int = 0
    kills: int = 0
    freezes: int = 0
    redone: float = 0.0  # CPU seconds
    work: float = 0.0


Sample = tuple[float, dict[tuple[int, int], tuple[int, float]], int]


class Build:
    """One build: what it still has to do, and a policy that says what starts. See `Ours` and `Constant`."""

    fails_at_oom = False

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self.running: dict[int, Running] = {}
        self.left = len(self.sources)
        self.result = Result(work=sum(source.cpu for source in sources))

    def step(self, machine: Machine) -> None:
        raise NotImplementedError

    def observe(self, machine: Machine) -> None: ...

    def ended(self, job: Running, now: float) -> None: ...

    def lost(self, job: Running, now: float) -> None: ...


class Constant(Build):
    """So many jobs at a time, in the order given: what MAX_JOBS does."""

    fails_at_oom = True

    def __init__(self, sources: Sequence[Source], jobs: int) -> None:
        super().__init__(sources)
        self.jobs = jobs
        self.next = 0

    def step(self, machine: Machine) -> None:
        while len(self.running) < self.jobs and self.next < len(self.sources):
            machine.start(self, self.next, self.sources[self.next].threads)
            self.next += 1


class Ours(Build):
    """The production scheduler."""

    def __init__(
        self,
        sources: Sequence[Source],
        cpus: int,
        total: int,
        history: dict[str, Curve] | None = None,
        jitter: float = 0.0,
    ) -> None:
        super().__init__(sources)
        self.scheduler = Scheduler(Limits(10_000, cpus), Forecaster(history or {}), jitter)
        self.total = total
        self.most = cpus + VISIBLE
        order = range(len(self.sources))
        forecaster = Forecaster(history or {})
        known = [forecaster.forecast(source.features) for source in self.sources]
        keys = [item.curve.seconds if item.known else number * GOLDEN % 1.0 for number, item in enumerate(known)]
        self.unseen = sorted(order, key=keys.__getitem__)
        self.seen = 0

    def step(self, machine: Machine) -> None:
        while self.unseen and self.seen < self.most:
            number = self.unseen.pop()
            self.scheduler.enqueue(Waiting(number, self.sources[number].features, self.sources[number].archs))
            self.seen += 1
        reserve, floor = max(GIB, self.total * 6 // 100), max(GIB // 2, self.total * 3 // 100)
        first = self is next(build for build in machine.builds if build.left)
        memory = Memory(machine.known_free(), reserve, floor, self.total, 0.0, self._promised(machine), first)
        decision = self.scheduler.decide(machine.now, memory)
        for id in decision.kill:
            self.result.kills += 1
            machine.kill(self, self.running[id])
        for id in decision.freeze:
            self.result.freezes += 1
            self.running[id].frozen = True
        for id in decision.thaw:
            self.running[id].frozen = False
        for id, threads in decision.admit:
            machine.start(self, id, threads)
            self.scheduler.started(id, machine.now)

    def _promised(self, machine: Machine) -> tuple[int, ...]:
        """What the other builds have written into their records."""
        others = (build for build in machine.builds if isinstance(build, Ours) and build is not self)
        return tuple(map(sum, zip(*(build.scheduler.load(machine.now)[2] for build in others), strict=True)))

    def observe(self, machine: Machine) -> None:
        usage, spent = machine.known_usage(self)
        self.scheduler.observed(usage, machine.now, spent)

    def ended(self, job: Running, now: float) -> None:
        self.seen -= 1
        self.scheduler.finished(job.id, now, seen_curve(job))

    def lost(self, job: Running, now: float) -> None:
        self.scheduler.killed(job.id, now)


@cache
def _coarse(points: tuple[int, ...]) -> tuple[int, ...]:
    size = len(points)
    return tuple(max(points[i * size // 16 : -(-(i + 1) * size // 16)]) for i in range(16))


def seen_curve(job: Running) -> Curve:
    return Curve(job.seconds, _coarse(job.points))


def true_history(sources: Iterable[Source]) -> dict[str, Curve]:
    """What a build that asked for these threads would have left in the history."""
    history = {}
    for source in sources:
        seconds, points = source.run(source.threads)
        history[source.features.entry] = Curve(seconds, _coarse(points))
    return history


class Machine:
    """Cores, memory and time; and the kernel, which kills when memory is gone."""

    def __init__(self, cpus: int, total: int, builds: Sequence[Build], neighbour: Neighbour | None = None) -> None:
        self.cpus, self.usable, self.builds = cpus, total - OS_USES, list(builds)
        self.neighbour = neighbour
        self.now = self.virtual = 0.0
        self.samples: list[Sample] = []

    def start(self, build: Build, id: int, threads: int) -> None:
        source = build.sources[id]
        seconds, points = source.run(threads)
        weight = source.features.with_threads(threads).at_once
        build.running[id] = Running(id, source, weight, self.virtual, seconds, points)

    def kill(self, build: Build, job: Running) -> None:
        del build.running[job.id]
        build.result.redone += (self.virtual - job.begun) * job.parallelism
        build.lost(job, self.now)

    def known_free(self) -> int:
        return self.samples[0][2] if self.samples else self.usable - self._neighbour()

    def known_usage(self, build: Build) -> tuple[dict[int, int], dict[int, float]]:
        """Bytes and CPU seconds by job, as they were a second ago."""
        number = self.builds.index(build)
        known = self.samples[0][1] if self.samples else {}
        usage = {id: held for (of, id), (held, _) in known.items() if of == number}
        return usage, {id: spent for (of, id), (_, spent) in known.items() if of == number}

    def run(self, limit: float = 1e6) -> None:
        """Run all builds to their end; `makespan` of each result says when it was."""
        tick = 0
        for build in self.builds:
            build.step(self)
        while any(build.left for build in self.builds) and self.now < limit:
            if tick * TICK > self.now:
                self._advance(tick * TICK)
                continue
            self._sample()
            if not self._kernel():
                return
            for build in self.builds:
                if build.left:
                    build.observe(self)
                    build.step(self)
            tick += 1

    def _all(self) -> list[Running]:
        return [job for build in self.builds for job in build.running.values()]

    def _advance(self, until: float) -> None:
        """On to the next end of a job, but not beyond `until`."""
        jobs = [job for job in self._all() if not job.frozen]
        speed = min(1.0, self.cpus / max(1, sum(job.threads for job in jobs)))
        left = min((job.begun + job.seconds - self.virtual for job in jobs), default=1e9)
        step = min(until - self.now, max(0.0, left) / speed)
        self.virtual += step * speed
        self.now = until if step == until - self.now else self.now + step
        for build in self.builds:
            self._move(build, step * speed)

    def _move(self, build: Build, step: float) -> None:
        done = []
        for job in build.running.values():
            if job.frozen:
                job.begun += step
            elif job.begun + job.seconds <= self.virtual + 1e-9:
                done.append(job)
        for job in done:
            del build.running[job.id]
            build.left -= 1
            build.result.makespan = self.now
            build.ended(job, self.now)
        if done and build.left:
            build.step(self)

    def _neighbour(self) -> int:
        return self.neighbour(self.now) if self.neighbour else 0

    def _sample(self) -> None:
        held = {}
        for number, build in enumerate(self.builds):
            for id, job in build.running.items():
                held[number, id] = (job.held(self.virtual), (self.virtual - job.begun) * job.parallelism)
        self._held = sum(size for size, _ in held.values())
        self.samples.append((self.now, held, self.usable - self._held - self._neighbour()))
        while self.samples[0][0] < self.now - LAG:
            self.samples.pop(0)

    def _kernel(self) -> bool:
        """Kill while memory is gone. False: that was the end of the build."""
        held = self._held
        while held + self._neighbour() > self.usable and held:
            pairs = [(build, job) for build in self.builds for job in build.running.values()]
            build, victim = max(pairs, key=lambda pair: pair[1].held(self.virtual))
            held -= victim.held(self.virtual)
            build.result.oom += 1
            self.kill(build, victim)
            if build.fails_at_oom:
                return False
        return True


# Policies, side by side.


def constant(sources: Sequence[Source], cpus: int, total: int, jobs: int) -> Result:
    build = Constant(sources, jobs)
    Machine(cpus, total, [build]).run()
    return build.result


def ours(
    sources: Sequence[Source],
    cpus: int,
    total: int,
    history: dict[str, Curve] | None = None,
    neighbour: Neighbour | None = None,
) -> Result:
    build = Ours(sources, cpus, total, history)
    Machine(cpus, total, [build], neighbour).run()
    return build.result


def best_constant(sources: Sequence[Source], cpus: int, total: int) -> tuple[int, Result]:
    """The best number of jobs, found by trying: known only to who has tried them all."""
    most = min(cpus + 2, len(sources))
    best: tuple[int, Result] | None = None
    tries = 0
    for jobs in range(most, 0, -1):
        result = constant(sources, cpus, total, jobs)
        if result.oom:
            continue
        if best is None or result.makespan < best[1].makespan:
            best = jobs, result
        tries += 1
        if tries >= 6:
            break
    assert best is not None
    return best


def oracle(sources: Sequence[Source], cpus: int, total: int, width: float = 2.0) -> float:
    """First fit, longest first, with true curves and all memory that the system leaves."""
    claims: list[tuple[list[int], int]] = []
    for source in sources:
        seconds, points = source.run(source.threads)
        count = max(1, round(seconds / width))
        size = len(points)
        cut = [
            max(points[i * size // count : max(i * size // count + 1, -(-(i + 1) * size // count))])
            for i in range(count)
        ]
        claims.append((cut, source.features.at_once))
    waiting = sorted(range(len(sources)), key=lambda number: -len(claims[number][0]))
    busy = [0] * (sum(len(claim) for claim, _ in claims) + 1)
    cores = [0] * len(busy)
    now, end = 0, 0
    while waiting:
        refused: set[tuple[int, ...]] = set()
        for number in list(waiting):
            claim, weight = claims[number]
            kind = (len(claim), claim[0], weight, max(claim))
            if cores[now] + weight > cpus or kind in refused:
                continue
            if max(map(add, busy[now : now + len(claim)], claim)) > total - OS_USES:
                refused.add(kind)
                continue
            busy[now : now + len(claim)] = map(add, busy[now : now + len(claim)], claim)
            for place in range(now, now + len(claim)):
                cores[place] += weight
            end = max(end, now + len(claim))
            waiting.remove(number)
        now += 1
    return end * width


@dataclass(frozen=True)
class Case:
    name: str
    sources: Callable[[], list[Source]]
    cpus: int
    gib: int


FLASH = flash_attention


def cases() -> list[Case]:
    return [
        Case("2 cores, 8 GB, 4 small", lambda: small(4), 2, 8),
        Case("2 cores, 24 GB, 12 sources", lambda: few(12), 2, 24),
        Case("4 cores, 8 GB, 12 sources", lambda: few(12), 4, 8),
        Case("8 cores, 16 GB", FLASH, 8, 16),
        Case("8 cores, 16 GB, 100 small", lambda: small(100), 8, 16),
        Case("16 cores, 64 GB", FLASH, 16, 64),
        Case("32 cores, 64 GB", FLASH, 32, 64),
        Case("64 cores, 128 GB", FLASH, 64, 128),
        Case("128 cores, 288 GB", FLASH, 128, 288),
        Case("128 cores, 288 GB, 300 sources", lambda: many(300), 128, 288),
        Case("128 cores, 288 GB, 1000 sources", lambda: many(1000), 128, 288),
        Case("64 cores, 288 GB, 1000 small", lambda: small(1000), 64, 288),
        Case("16 cores, 64 GB, 4 archs x 4 threads", lambda: FLASH(4, 4), 16, 64),
        Case("128 cores, 288 GB, 4 archs x 4 threads", lambda: FLASH(4, 4), 128, 288),
    ]


@dataclass
class Row:
    case: Case
    bound: float
    cells: dict[str, str] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def put(self, name: str, result: Result, note: str = "") -> None:
        if result.oom and note != "ours":
            self.cells[name] = "OOM"
            return
        ratio = result.makespan / self.bound
        self.ratios[name] = ratio
        extra = f" ({note})" if note and note != "ours" else ""
        if note == "ours" and (result.kills or result.oom):
            extra = f" ({result.kills} kills, {result.redone / result.work:.1%}" + (
                f", {result.oom} OOM)" if result.oom else ")"
            )
        self.cells[name] = f"{ratio:.2f}{extra}"


COLUMNS = ("cores+2", "free/9 GB", "free/(5 GB x threads)", "best constant", "ours cold", "ours warm", "oracle")


def row(case: Case, quick: bool = False) -> Row:
    sources, cpus, total = case.sources(), case.cpus, case.gib * GIB
    free = total - OS_USES
    threads = max(source.threads for source in sources)
    result = Row(case, bound(sources, cpus, total))
    half = max(1, cpus // 2)
    if not quick:
        result.put("cores+2", constant(sources, cpus, total, cpus + 2))
        result.put("free/9 GB", constant(sources, cpus, total, max(1, min(half, int(free / 9e9)))))
        five = max(1, min(half, int(free / (5e9 * threads))))
        result.put("free/(5 GB x threads)", constant(sources, cpus, total, five))
        jobs, best = best_constant(sources, cpus, total)
        result.put("best constant", best, str(jobs))
    result.put("ours cold", ours(sources, cpus, total), "ours")
    result.put("ours warm", ours(sources, cpus, total, true_history(sources)), "ours")
    result.put("oracle", Result(makespan=oracle(sources, cpus, total)))
    return result


def table(quick: bool = False) -> None:
    print("| machine | bound | " + " | ".join(COLUMNS) + " |")
    print("|---|---|" + "---|" * len(COLUMNS))
    begun, rows = time.perf_counter(), []
    for case in cases():
        made = row(case, quick)
        rows.append(made)
        cells = " | ".join(made.cells.get(column, "") for column in COLUMNS)
        print(f"| {case.name} | {made.bound:.0f} s | {cells} |", flush=True)
    for column in ("ours cold", "ours warm", "oracle"):
        ratios = [made.ratios[column] for made in rows]
        print(f"{column}: mean {sum(ratios) / len(ratios):.3f}, worst {max(ratios):.3f}")
    print(f"The table took {time.perf_counter() - begun:.0f} s.")


# When things go wrong.


def wrong(
    history: dict[str, Curve], rng: random.Random, sigma: float = 0.3, factor: float = 1.0
) -> dict[str, Curve]:
    """A history whose memory and times are off by lognormal errors, and all memory by a factor."""
    return {
        key: curve.scaled(factor * rng.lognormvariate(0, sigma), rng.lognormvariate(0, sigma))
        for key, curve in history.items()
    }


def stepping(rng: random.Random, most: int, speed: float = 0.5 * GIB) -> Neighbour:
    """Another program, which takes and gives back memory at `speed` bytes per second, again and again."""
    moves: list[tuple[float, int, int]] = []
    when = 0.0
    for _ in range(400):
        when += rng.uniform(20, 120)
        level = _level(moves, when, speed)  # where it is, which need not be where it was going
        moves.append((when, level, rng.randrange(0, most)))
    return lambda now: _level(moves, now, speed)


def _level(moves: list[tuple[float, int, int]], now: float, speed: float) -> int:
    for when, before, target in reversed(moves):
        if when <= now:
            way = min(abs(target - before), int((now - when) * speed))
            return before + way if target > before else before - way
    return 0


def arriving(when: float, size: int, stays: float, speed: float = GIB) -> Neighbour:
    """A program that takes `size` bytes at `speed` bytes per second, and ends after `stays` seconds."""
    return lambda now: min(size, max(0, int((now - when) * speed))) if now < when + stays else 0


@dataclass
class Trial:
    name: str
    ratio: float
    oom: int
    kills: int
    freezes: int
    redone: float
    done: bool


def trial(name: str, seed: int, size: int = 24) -> Trial:
    """One seed of one of TRIALS: a build of `size` sources, another mix each time."""
    rng = random.Random(f"{name} {seed}")
    cpus, total = rng.choice([(8, 16 * GIB), (16, 64 * GIB), (8, 32 * GIB), (32, 64 * GIB)])
    sources = rng.sample(many(219), size * cpus // 8)
    history = true_history(sources)
    neighbour: Neighbour | None = None
    halves = [sources]
    if name == "lognormal":
        history = wrong(history, rng)
    elif name == "half":
        history = wrong(history, rng, 0.1, 0.5)
    elif name == "double":
        history = wrong(history, rng, 0.1, 2.0)
    elif name == "neighbour":
        history, neighbour = wrong(history, rng), stepping(rng, total * 4 // 10)
    elif name == "18 GiB":
        total = max(total, 32 * GIB)
        history, neighbour = wrong(history, rng), arriving(rng.uniform(50, 300), 18 * GIB, 300)
    elif name == "two builds":
        history, halves = wrong(history, rng), [sources[::2], sources[1::2]]
    elif name == "two cold":
        history, halves = {}, [sources[::2], sources[1::2]]
    elif name == "cold":
        history = {}
    elif name == "all":
        history, neighbour, halves = wrong(history, rng), stepping(rng, total // 5), [sources[::2], sources[1::2]]
    share = max(1, cpus // len(halves))
    builds = [Ours(half, share, total, history, jitter=rng.random()) for half in halves]
    machine = Machine(cpus, total, builds, neighbour)
    machine.run(limit=200_000)
    results = [build.result for build in builds]
    return Trial(
        name,
        max(result.makespan for result in results) / bound(sources, cpus, total),
        sum(result.oom for result in results),
        sum(result.kills for result in results),
        sum(result.freezes for result in results),
        sum(result.redone for result in results) / sum(result.work for result in results),
        not any(build.left for build in builds),
    )


TRIALS = ("true", "lognormal", "half", "double", "neighbour", "18 GiB", "two builds", "two cold", "cold", "all")


def robust(seeds: int, workers: int = 2) -> None:
    """A table of TRIALS over many seeds."""
    begun = time.perf_counter()
    print(
        f"| what is wrong ({seeds} seeds) | OOM kills | builds with one | our kills per build | worst |"
        " work redone | makespan / bound | not ended |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(workers) as pool:
        for name in TRIALS:
            trials = list(pool.map(trial, [name] * seeds, range(seeds), chunksize=4))
            kills = [made.kills for made in trials]
            print(
                f"| {name} | {sum(made.oom for made in trials)} | {sum(made.oom > 0 for made in trials)} "
                f"| {sum(kills) / seeds:.2f} | {max(kills)} | {sum(made.redone for made in trials) / seeds:.1%} "
                f"| {sum(made.ratio for made in trials) / seeds:.2f} | {sum(not made.done for made in trials)} |",
                flush=True,
            )
    print(f"That took {time.perf_counter() - begun:.0f} s.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["table"], help="table, quick, robust")
    parser.add_argument("--seeds", type=int, default=100)
    options = parser.parse_args()
    for what in options.what:
        if what == "robust":
            robust(options.seeds)
        else:
            table(quick=what == "quick")


if __name__ == "__main__":
    main()
