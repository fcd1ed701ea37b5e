"""Records to look at: a simulated build of flash-attn, and ones made by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from safe_ext_build.events import Event
from safe_ext_build.plan import BuildPlan
from safe_ext_build.report import record
from safe_ext_build.report.record import Bound, Computer, Context, Record, Run, Sample
from safe_ext_build.report.timeline import lanes
from safe_ext_build.schedule.forecast import GIB

_ARCHS = "80;90"
_NOTE = 2.0


def run(source: str = "a.cu", start: float = 0.0, end: float = 10.0, **changes: Any) -> Run:
    """A run that used one CPU and 1 GiB."""
    values: dict[str, Any] = {
        "job": hash((source, changes.get("job"))) % 1_000_000,
        "attempt": 1,
        "outcome": "compiled",
        "waited": 0.0,
        "cpu": end - start,
        "alone": end - start,
        "peak": GIB,
        "curve": (GIB,) * 16,
        "cuda": source.endswith(".cu"),
        "archs": "80" if source.endswith(".cu") else "",
        "threads": 1,
        "torch_header": None,
        "why": "",
    }
    return Run(source=source, start=start, end=end, **{**values, **changes})


def sample(time: float, running: int = 2, waiting: int = 0, why: str = "", gib: float = 2.0) -> Sample:
    held = int(gib * GIB)
    return Sample(time, held, 8 * GIB - held, 7 * GIB, 8 * GIB, running, waiting, why)


def make(*runs: Run, samples: tuple[Sample, ...] = (), cpus: int = 2, **changes: Any) -> Record:
    """A record of these runs, on a machine of `cpus` CPUs and 8 GiB."""
    plan = record.Planned(("at most 2 compiles at a time",), cpus, cpus, cpus, True, "80", "", "", {})
    computer = Computer(cpus, f"{cpus} of {cpus} CPUs", "host", 8 * GIB, 7 * GIB)
    ended = max((one.end for one in runs), default=1.0)
    begun = min((one.start for one in runs), default=0.0)
    values: dict[str, Any] = {
        "schema": 1,
        "version": "0.1",
        "id": "0123456789ab",
        "project": "thing",
        "hook": "build_wheel",
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": ended,
        "outcome": "built",
        "error": "",
        "compiling": ended - begun,
        "bound": record.find_bound(runs, samples, cpus, 7 * GIB) if runs else Bound(0.0, 0.0, 0.0, ""),
        "plan": plan,
        "machine": computer,
        "runs": tuple(runs),
        "runs_left_out": 0,
        "samples": samples,
        "pauses": (),
    }
    return Record(**{**values, **changes})


def context(**changes: Any) -> Context:
    plan = BuildPlan(4, 16, 16, True, True, {"TORCH_CUDA_ARCH_LIST": "8.0;9.0", "SECRET": "hunter2"}, ("a plan",))
    values: dict[str, Any] = {
        "version": "0.1",
        "id": "0123456789ab",
        "project": "thing",
        "root": "/home/me/thing",
        "hook": "build_wheel",
        "began": 100.0,
        "started": "2026-01-02T03:04:05+00:00",
        "plan": record.planned(plan, "V13.0.88 in /home/me/cuda", "torch 2.14.1", {}),
        "machine": Computer(16, "16 of 16 CPUs", "host", 64 * GIB, 60 * GIB),
    }
    return Context(**{**values, **changes})


def simulator() -> Any:
    """tests/benchmarks/simulator.py, which is a script."""
    if "simulator" in sys.modules:
        return sys.modules["simulator"]
    path = Path(__file__).parents[1] / "benchmarks" / "simulator.py"
    spec = importlib.util.spec_from_file_location("simulator", path)
    assert spec and spec.loader
    module = sys.modules["simulator"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flash_attention(count: int = 73, cpus: int = 16, gib: int = 64) -> Record:
    """What flash-attn's first build would leave on such a machine, for two architectures."""
    events = simulated(simulator().many(count, 2, 1), cpus, gib)
    ended = max(event.time for event in events) + 21.0
    jobs = (
        f"at most {cpus} compiles at a time, fewer whenever memory is short (CPUs {cpus} (cgroup quota); memory "
        f"about {gib // 3} ({gib - 1}.0 GiB free in cgroup /docker/4f1d))"
    )
    lines = (
        "building against torch 2.14.1+cu130 of /home/me/venv, which will import the result",
        "CUDA 13.0 in /usr/local/cuda-13.0 (V13.0.88): the version of torch",
        jobs,
    )
    plan = record.Planned(
        lines=lines,
        jobs=cpus,
        most_jobs=cpus,
        cpus=cpus,
        guard=True,
        archs="8.0;9.0",
        toolkit="V13.0.88 in /usr/local/cuda-13.0",
        torch="torch 2.14.1+cu130 (CUDA 13.0)",
        settings={
            "cuda.archs": record.Setting("8.0;9.0", "TORCH_CUDA_ARCH_LIST in the environment"),
            "report.path": record.Setting("/home/me/report.html", "-C report.path"),
        },
    )
    computer = Computer(
        cpus, f"{cpus} of 64 CPUs (cgroup quota)", "cgroup /docker/4f1d", gib * GIB, (gib - 1) * GIB
    )
    known = context(project="flash_attn", root="/src", began=0.0, plan=plan, machine=computer)
    return record.make(events, known, ended, "built", home="/home/me")


def simulated(sources: list[Any], cpus: int, gib: int) -> list[Event]:
    """The events of a build in the simulator."""
    module = simulator()
    events: list[Event] = []
    seen: dict[int, float] = {}
    build = module.Ours(sources, cpus, gib * GIB)
    machine = module.Machine(cpus, gib * GIB, [build])
    policy, next_note = build.scheduler, 0.0
    started: dict[int, float] = {}
    held = ""

    def event(kind: str, id: int, **values: Any) -> Event:
        kernel, _, which = sources[id].name.partition(".")[0].partition("_")
        name = f"flash_attn/src/flash_{kernel}_hdim{which}.cu" if sources[id].cuda else "flash_attn/api.cpp"
        return Event(kind, machine.now + 9.0, f"/src/csrc/{name}", job=id, cuda=sources[id].cuda, **values)

    def ended(job: Any, outcome: str, why: str = "") -> Event:
        curve = module.seen_curve(job)
        share = min(1.0, max(0.01, (machine.virtual - job.begun) / job.seconds))
        points = curve.points if outcome == "compiled" else curve.points[: max(2, round(16 * share))]
        cpu = job.seconds * share * job.parallelism
        return event(
            "job",
            job.id,
            outcome=outcome,
            waited=started[job.id] - seen[job.id],
            seconds=machine.now - started[job.id],
            cpu=cpu,
            peak=max(points),
            threads=job.threads,
            archs=job.source.archs,
            targets=_ARCHS if job.source.cuda else "",
            alone=job.seconds * share,
            curve=points,
            torch_header=job.source.name.startswith("api"),
            why=why,
        )

    def enqueue(waiting: Any, inner: Any = policy.enqueue) -> None:
        seen.setdefault(waiting.id, machine.now)
        inner(waiting)

    def decide(now: float, memory: Any, inner: Any = policy.decide) -> Any:
        nonlocal held
        decision = inner(now, memory)
        held = decision.held
        events.extend(event("freeze", id) for id in decision.freeze)
        events.extend(event("thaw", id) for id in decision.thaw)
        return decision

    def start(of: Any, id: int, threads: int, inner: Any = machine.start) -> None:
        inner(of, id, threads)
        started[id] = machine.now
        events.append(event("start", id, threads=of.running[id].threads))

    def kill(of: Any, job: Any, inner: Any = machine.kill) -> None:
        events.append(ended(job, "memory", "stopped to make room"))
        inner(of, job)

    def done(job: Any, now: float, inner: Any = build.ended) -> None:
        events.append(ended(job, "compiled"))
        inner(job, now)

    def observe(of: Any, inner: Any = build.observe) -> None:
        nonlocal next_note
        inner(of)
        if of.now < next_note:
            return
        next_note = of.now + _NOTE
        total = gib * GIB
        free = machine.usable - machine._held
        waiting = policy._waiting
        reserve = max(GIB, total * 6 // 100)
        events.append(
            Event(
                "memory",
                of.now + 9.0,
                held=machine._held,
                available=free,
                budget=max(0, free + machine._held - reserve),
                total=total,
                running=len(build.running),
                waiting=waiting,
                why=held if waiting else "",
            )
        )

    policy.enqueue, policy.decide = enqueue, decide
    machine.start, machine.kill, build.ended, build.observe = start, kill, done, observe
    machine.run()
    return events


def assert_packed(runs: tuple[Run, ...]) -> None:
    """No two runs of a lane overlap."""
    busy: dict[int, float] = {}
    for one, lane in sorted(zip(runs, lanes(runs), strict=True), key=lambda pair: pair[0].start):
        assert busy.get(lane, 0.0) <= one.start
        busy[lane] = one.end
