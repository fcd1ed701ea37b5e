"""What a build will do, and why. Pure: settings, torch, toolkit and machine in, a BuildPlan out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .machine import Machine, reserve

if TYPE_CHECKING:
    from .farm.share import Share
    from .launcher.tools import Launcher
    from .settings import Settings
    from .toolchain.find import Cuda
    from .toolchain.host import Host

# What one compile is taken to need before anything is known of it. Measured: a source that includes
# torch/extension.h costs nvcc 3 GB for each architecture that it compiles at a time, and cc1plus 1.2 GB.
CUDA_JOB = 3 << 30
HOST_JOB = 1288490188
# nvcc, a shell, cicc or ptxas, gcc, cc1plus, and our own J, with some to spare.
TASKS_PER_JOB = 8
GIB = 1 << 30


@dataclass(frozen=True)
class BuildPlan:
    """The decisions of one build.

    `jobs`: the planned number of compiles at a time, which the project's own scripts get to see as MAX_JOBS.
    `most_jobs` and `cpus`: what the scheduler may go up to. `guard`: it minds memory too. `free_threads`:
    nobody has said how many threads nvcc is to use. `environment`: what the builder gets to see. `launcher`: the
    compiler cache that was looked for, `farm`: what may be had of one.
    """

    jobs: int
    most_jobs: int
    cpus: int
    guard: bool
    free_threads: bool
    environment: Mapping[str, str]
    lines: tuple[str, ...] = field(default=())
    launcher: Launcher | None = None
    farm: Share | None = None

    @property
    def slots(self) -> int:
        """Steps of compiles that run elsewhere at a time."""
        return self.farm.slots if self.farm else 0


@dataclass(frozen=True)
class Cap:
    """An upper bound on the number of compiles at a time, and what sets it."""

    jobs: int
    what: str
    is_memory: bool = False


def make(
    settings: Settings,
    cuda: Cuda | None,
    torch_line: str,
    machine: Machine,
    host: Host | None = None,
    launcher: Launcher | None = None,
    farm: Share | None = None,
) -> BuildPlan:
    """Decide. An explicit `jobs.max` (or MAX_JOBS) wins over what memory and CPUs suggest, with a line."""
    threads = settings.jobs.nvcc_threads or 1
    caps = derive_caps(machine, cuda, threads)
    derived = min(caps, key=lambda cap: cap.jobs)
    jobs = settings.jobs.max or derived.jobs
    environment = {"MAX_JOBS": str(jobs), "NVCC_THREADS": str(threads)}
    if cuda:
        environment |= {"CUDA_HOME": str(cuda.home), "CUDA_PATH": str(cuda.home)}
        if cuda.archs:
            environment["TORCH_CUDA_ARCH_LIST"] = cuda.archs
    environment |= host.environment if host else {}
    most = settings.jobs.max or min(cap.jobs for cap in caps if not cap.is_memory)
    lines = [line for line in (torch_line, *(cuda.lines if cuda else ()), *(host.lines if host else ())) if line]
    lines.append(_jobs_line(settings, caps, most))
    lines += launcher.lines if launcher else ()
    lines += farm.lines if farm else ()
    return BuildPlan(
        jobs=jobs,
        most_jobs=most,
        cpus=max(machine.cpus.count, settings.jobs.max or 0),
        guard=settings.jobs.memory_guard,
        free_threads=settings.jobs.nvcc_threads is None,
        environment=environment,
        lines=tuple(lines),
        launcher=launcher,
        farm=farm,
    )


def derive_caps(machine: Machine, cuda: Cuda | None, threads: int) -> list[Cap]:
    """How many compiles each resource allows; at least one each, since a build must go on."""
    budget = machine.budget
    archs = len(cuda.archs.split(";")) if cuda and cuda.archs else 1
    per_job = CUDA_JOB * min(threads, archs) if cuda else HOST_JOB
    room = budget.available - reserve(budget.total)
    fitting = max(1, room // per_job)
    what = f"memory about {fitting} ({budget.available / GIB:.1f} GiB free in {budget.name})"
    memory = Cap(fitting, what, is_memory=True)
    caps = [Cap(machine.cpus.count, f"CPUs {machine.cpus.count} ({machine.cpus.why})"), memory]
    if machine.pids_free is not None:
        tasks = max(1, machine.pids_free // TASKS_PER_JOB)
        caps.append(Cap(tasks, f"tasks {tasks}"))
    return caps


def _jobs_line(settings: Settings, caps: list[Cap], most: int) -> str:
    allowed = "; ".join(cap.what for cap in caps)
    what = "compile" if most == 1 else "compiles"
    source = f", as {settings.source('jobs.max')} says" if settings.jobs.max else ""
    if settings.jobs.memory_guard:
        return f"at most {most} {what} at a time{source}, fewer whenever memory is short ({allowed})"
    guard = settings.source("jobs.memory-guard")
    return f"{most} {what} at a time{source}; MEMORY IS NOT GUARDED, as {guard} says ({allowed})"
