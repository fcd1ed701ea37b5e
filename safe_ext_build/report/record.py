"""What a build was, as one document: what was planned, what happened, and how it ended. Pure.

The dataclasses below are the schema; docs/reference/report.md is generated from them.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..events import Event
from ..plan import BuildPlan
from . import words

SCHEMA = 2
MOST_RUNS = 5_000
MOST_SAMPLES = 1_500
# Where no memory could be read, the supervisor gives a size that no machine has.
_NO_LIMIT = 1 << 60

Outcome = Literal["built", "failed", "interrupted"]
RunOutcome = Literal["compiled", "failed", "memory", "returned", "stopped", "unfinished"]


@dataclass(frozen=True)
class Run:
    """One run of a compiler. A compile that was stopped for memory, or came back from a farm, has several."""

    job: int
    """The number of the compile in this build; all its runs have the same."""
    attempt: int
    """1 for its first run."""
    source: str
    """The source file, relative to the project where it lies in it."""
    outcome: RunOutcome
    """`memory`: stopped because memory was short; `returned`: a farm did not compile it, and it was to run again
    here; `unfinished`: it ran when the build ended."""
    start: float
    """Seconds from the start of the record."""
    end: float
    """Seconds from the start of the record."""
    waited: float
    """Seconds from when the compile asked to start until this run started."""
    cpu: float
    """CPU seconds of this machine."""
    alone: float
    """Seconds that the run would have taken alone on its CPUs; 0 where that is not known."""
    peak: int
    """The most bytes that it held on this machine."""
    curve: tuple[int, ...]
    """What it held over its life, in bytes, at 16 moments in equal steps of CPU time; may be empty."""
    cuda: bool
    """Whether it was nvcc."""
    archs: str
    """The GPU architectures that it compiled for, such as `80;90`; empty for host code."""
    threads: int
    """nvcc's threads."""
    torch_header: bool | None
    """Whether the source includes torch/extension.h; null where no dependency file tells."""
    why: str
    """Of a run that was stopped for memory: by whom. Of one that came back from a farm: why."""
    cache: Literal["", "hit", "miss", "uncacheable"] = ""
    """What the compiler cache said of it; empty without one, and where it said nothing."""
    cache_why: str = ""
    """Why it cannot be cached; of a miss with sccache, which part of it was a hit."""
    saved: float = 0.0
    """Seconds of compiling that a hit has saved, as far as earlier builds of this machine tell."""
    again: bool = False
    """Whether an earlier build of this machine has compiled this source, with the same compiler and flags."""
    remote: bool = False
    """Whether it was on a farm of other machines. `threads` is then how many steps might run there at a time."""


@dataclass(frozen=True)
class Sample:
    """A look at memory."""

    time: float
    """Seconds from the start of the record."""
    held: int
    """Bytes that the compiles of this build held."""
    available: int
    """Bytes free in the domain that binds: the host, or a cgroup."""
    budget: int
    """Bytes that the compiles of this build might hold: what is free, less the reserve, and what they hold."""
    total: int
    """Bytes: the size of that domain."""
    running: int
    """Compiles that ran."""
    waiting: int
    """Compiles that had asked to run."""
    why: str
    """Why the first of these waited."""


@dataclass(frozen=True)
class Pause:
    """A time in which a compile was held still to save memory."""

    job: int
    """The number of the compile."""
    start: float
    """Seconds from the start of the record."""
    end: float
    """Seconds from the start of the record."""


@dataclass(frozen=True)
class Setting:
    """A setting that somebody has given."""

    value: str
    """Its value, as text."""
    source: str
    """Where it was given."""


@dataclass(frozen=True)
class Planned:
    """What was decided before the first compile."""

    lines: tuple[str, ...]
    """The plan as it was said."""
    jobs: int
    """The planned number of compiles at a time, which setup scripts see as `MAX_JOBS`."""
    most_jobs: int
    """How many compiles might run at a time."""
    cpus: int
    """How many CPUs compiles might keep busy."""
    guard: bool
    """Whether memory was guarded."""
    archs: str
    """The `TORCH_CUDA_ARCH_LIST`; empty without CUDA."""
    toolkit: str
    """The CUDA toolkit and its directory; empty without one."""
    torch: str
    """The torch that was built against; empty without one."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The settings that were not left at their defaults, by name."""
    launcher: str = ""
    """The compiler cache that compiles went through, such as `ccache 4.14.2`; empty without one."""
    slots: int = 0
    """How many steps of compiles a farm of other machines was to run at a time; 0 without one."""


@dataclass(frozen=True)
class Computer:
    """What the build might use of the machine when it began."""

    cpus: int
    """CPUs."""
    cpus_why: str
    """What set that number."""
    memory: str
    """The memory domain that bound: `host`, or a cgroup."""
    total: int
    """Bytes: the size of that domain."""
    available: int
    """Bytes of it that were free."""


@dataclass(frozen=True)
class Bound:
    """No schedule could have been faster than the largest of these, in seconds."""

    cores: float
    """All CPUs of this machine always busy: its CPU seconds over its CPUs."""
    memory: float
    """All memory always full: byte seconds over the largest budget that was seen."""
    longest: float
    """The longest compile, alone."""
    longest_source: str
    """Its source."""
    farm: float = 0.0
    """The farm always full: the seconds of all steps there over its slots; 0 where nothing was compiled there."""

    @property
    def seconds(self) -> float:
        return max(self.cores, self.memory, self.longest, self.farm)

    @property
    def by(self) -> Literal["cores", "memory", "longest", "farm"]:
        values: dict[Literal["cores", "memory", "longest", "farm"], float]
        values = {"cores": self.cores, "memory": self.memory, "longest": self.longest, "farm": self.farm}
        return max(values, key=lambda name: values[name])


@dataclass(frozen=True)
class Record:
    """One build."""

    schema: int
    """2. Fields may be added without a new number; who does not know the number should refuse the file. (In 1, no
    run was on a farm, or came back from one.)"""
    version: str
    """The safe-ext-build that wrote it."""
    id: str
    """The name of the build, unique on its machine."""
    project: str
    """The project's name."""
    hook: str
    """What the frontend asked for, such as `build_wheel`."""
    started: str
    """When it began: ISO 8601, UTC."""
    seconds: float
    """From the beginning of the record to the end of the build. All other times count from that beginning."""
    outcome: Outcome
    """How it ended."""
    error: str
    """Why it failed; empty otherwise."""
    compiling: float
    """Seconds from the start of the first compile to the end of the last."""
    bound: Bound
    """The least time in which these compiles could have been done on this machine."""
    plan: Planned
    """What was decided."""
    machine: Computer
    """Where."""
    runs: tuple[Run, ...]
    """Every run of a compiler, in the order of their starts."""
    runs_left_out: int
    """How many more runs there were: at most 5,000 are kept, the ones that cost most."""
    samples: tuple[Sample, ...]
    """Memory over time: at most 1,500 looks."""
    pauses: tuple[Pause, ...]
    """The times in which compiles were held still."""
    error_code: str = ""
    """The id of that error in [the list of errors](errors.md), such as `SEB-6001`; empty where it has none."""


@dataclass(frozen=True)
class Context:
    """What is known of a build without its events. `began` is a time of the events' clock, `started` ISO 8601."""

    version: str
    id: str
    project: str
    root: str
    hook: str
    began: float
    started: str
    plan: Planned
    machine: Computer


def planned(plan: BuildPlan, toolkit: str, torch: str, settings: Mapping[str, Setting]) -> Planned:
    """The part of a BuildPlan that a record keeps: nothing of the environment but the architectures."""
    archs = plan.environment.get("TORCH_CUDA_ARCH_LIST", "") if toolkit else ""
    tool = plan.launcher.tool if plan.launcher else None
    launcher = f"{tool.name} {tool.version}" if tool else ""
    values = (plan.lines, plan.jobs, plan.most_jobs, plan.cpus, plan.guard, archs, toolkit, torch)
    return Planned(*values, settings=dict(settings), launcher=launcher, slots=plan.slots)


def make(
    events: Sequence[Event],
    context: Context,
    ended: float,
    outcome: Outcome,
    error: str = "",
    home: str = "",
    error_code: str = "",
) -> Record:
    """The record of a build. `home` (the home directory) is written as `~` wherever it occurs."""
    runs = _runs(events, context, ended)
    samples = [_sample(event, context.began) for event in events if event.kind == "memory"]
    kept = sorted(sorted(runs, key=_cost)[-MOST_RUNS:], key=lambda run: (run.start, run.job))
    record = Record(
        schema=SCHEMA,
        version=context.version,
        id=context.id,
        project=context.project,
        hook=context.hook,
        started=context.started,
        seconds=_rounded(ended - context.began),
        outcome=outcome,
        error=error,
        compiling=_rounded(max(run.end for run in runs) - min(run.start for run in runs)) if runs else 0.0,
        bound=find_bound(runs, samples, context.machine.cpus, context.machine.available, context.plan.slots),
        plan=context.plan,
        machine=context.machine,
        runs=tuple(kept),
        runs_left_out=len(runs) - len(kept),
        samples=tuple(_thinned(samples)),
        pauses=tuple(_pauses(events, context.began, ended)),
        error_code=error_code,
    )
    return without_home(record, home)


def _cost(run: Run) -> tuple[float, float]:
    return run.cpu, run.end - run.start


def _rounded(seconds: float) -> float:
    return round(seconds, 3)


# Runs.


def _runs(events: Sequence[Event], context: Context, ended: float) -> list[Run]:
    attempts: dict[int, int] = {}
    open_runs: dict[int, Event] = {}
    runs = []
    for event in events:
        if event.kind == "start":
            open_runs[event.job] = event
        elif event.kind == "job":
            open_runs.pop(event.job, None)
            attempts[event.job] = attempts.get(event.job, 0) + 1
            runs.append(_run(event, context, attempts[event.job], event.time - event.seconds, event.time))
    for job, event in open_runs.items():
        unfinished = replace(event, outcome="unfinished")
        runs.append(_run(unfinished, context, attempts.get(job, 0) + 1, event.time, ended))
    return runs


def _run(event: Event, context: Context, attempt: int, start: float, end: float) -> Run:
    outcome: RunOutcome = event.outcome  # type: ignore[assignment]
    return Run(
        job=event.job,
        attempt=attempt,
        source=_relative(event.source, context.root),
        outcome=outcome,
        start=_rounded(start - context.began),
        end=_rounded(end - context.began),
        waited=_rounded(event.waited),
        cpu=_rounded(event.cpu),
        alone=_rounded(event.alone),
        peak=event.peak,
        curve=event.curve,
        cuda=event.cuda,
        archs=event.targets,
        threads=event.threads,
        torch_header=event.torch_header,
        why=event.why,
        cache=event.cache if event.cache in ("hit", "miss", "uncacheable") else "",  # type: ignore[arg-type]
        cache_why=event.cache_why,
        saved=_rounded(event.saved),
        again=event.again,
        remote=event.remote,
    )


def _relative(source: str, root: str) -> str:
    return source.removeprefix(root.rstrip("/") + "/") if root else source


def _pauses(events: Iterable[Event], began: float, ended: float) -> Iterable[Pause]:
    frozen: dict[int, float] = {}
    for event in events:
        if event.kind == "freeze":
            frozen.setdefault(event.job, event.time)
        elif event.kind in ("thaw", "job") and event.job in frozen:
            yield Pause(event.job, _rounded(frozen.pop(event.job) - began), _rounded(event.time - began))
    for job, start in frozen.items():
        yield Pause(job, _rounded(start - began), _rounded(ended - began))


# Memory.


def _sample(event: Event, began: float) -> Sample:
    known = event.total < _NO_LIMIT
    return Sample(
        time=_rounded(event.time - began),
        held=event.held,
        available=event.available if known else 0,
        budget=event.budget if known else 0,
        total=event.total if known else 0,
        running=event.running,
        waiting=event.waiting,
        why=event.why,
    )


def _thinned(samples: Sequence[Sample]) -> Iterable[Sample]:
    """Of so many neighbouring samples the one that held most: peaks must not get lost."""
    step = -(-len(samples) // MOST_SAMPLES) or 1
    for start in range(0, len(samples), step):
        yield max(samples[start : start + step], key=lambda sample: sample.held)


def find_bound(runs: Sequence[Run], samples: Sequence[Sample], cpus: int, available: int, slots: int = 0) -> Bound:
    """The bound for the runs that were not in vain, of which some may have been on the `slots` of a farm."""
    done = [run for run in runs if run.outcome not in ("memory", "returned")]
    steps = sum(length(run) * run.threads for run in done if run.remote)
    budget = max([sample.budget for sample in samples] or [0]) or available
    held = sum(_byte_seconds(run) for run in done)
    longest = max(done, key=length, default=None)
    return Bound(
        cores=_rounded(sum(run.cpu for run in done) / max(1, cpus)),
        memory=_rounded(held / budget) if budget else 0.0,
        longest=_rounded(length(longest)) if longest else 0.0,
        longest_source=longest.source if longest else "",
        farm=_rounded(steps / max(1, slots, _steps_at_once(runs))),
    )


def _steps_at_once(runs: Sequence[Run]) -> int:
    """The most steps that were on the farm at a time: more than planned, when others left it."""
    there = [run for run in runs if run.remote]
    changes = sorted([(run.start, run.threads) for run in there] + [(run.end, -run.threads) for run in there])
    return max(accumulate(change for _, change in changes), default=0)


def length(run: Run) -> float:
    """Seconds that it needs alone. It cannot need more than it took; what it needs elsewhere nobody here sees."""
    took = run.end - run.start
    return min(run.alone, took) if run.alone and not run.remote else took


def _byte_seconds(run: Run) -> float:
    return length(run) * sum(run.curve) / len(run.curve) if run.curve else 0.0


# As text.


def dump(record: Record) -> str:
    """The record as JSON."""
    return json.dumps(dataclasses.asdict(record), separators=(",", ":")) + "\n"


def parse(text: str) -> Record:
    """The record in a JSON text. Raises ValueError where it is none, or one that we do not know yet."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError("it is not a record of a build, or one that was cut off: it is no JSON") from error
    if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
        raise ValueError("it is not a record of a build")
    if values["schema"] > SCHEMA:
        raise ValueError(f"it has schema {values['schema']}, and this safe-ext-build knows {SCHEMA}")
    try:
        record: Record = _read(Record, values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is damaged: {error!r}") from error
    return record


def _read(kind: Any, value: Any) -> Any:
    """A value of the type `kind` from what JSON has for it; what is not of our schema is left out."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        known = [item.name for item in fields(kind) if item.name in value]
        return kind(**{name: _read(hints[name], value[name]) for name in known})
    origin, inside = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(_read(inside[0], item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {str(key): _read(inside[1], item) for key, item in value.items()}
    return _scalar(kind, origin, inside, value)


def _scalar(kind: Any, origin: Any, inside: tuple[Any, ...], value: Any) -> Any:
    if origin is Literal:
        allowed: tuple[Any, ...] = inside
    elif origin is types.UnionType:
        allowed = (True, False, None)
    else:
        number = kind is float and isinstance(value, int)
        if not isinstance(value, kind) and not number:
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return float(value) if number else value
    if value not in allowed:
        raise TypeError(f"{value!r} is not one of {allowed}")
    return value


def without_home(record: Record, home: str) -> Record:
    """The record with `~` for the home directory, in every text of it."""
    shortened: Record = _mapped(record, lambda text: words.without_home(text, home))
    return shortened


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: _mapped(getattr(value, item.name), change) for item in fields(value)})
    if isinstance(value, tuple):
        return tuple(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return value
