"""The plan, as tables: what caps the number of compiles, and how that is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from safe_ext_build import plan
from safe_ext_build.machine import Cpus, Machine, MemoryLimit
from safe_ext_build.settings import JobsSettings, Settings
from safe_ext_build.toolchain.find import Cuda
from safe_ext_build.toolchain.host import Host

GIB = 1 << 30
HOME = Path("/opt/cuda")


def machine(cpus: int = 8, gib: float = 64, pids: int | None = None, total: float = 64) -> Machine:
    limits = (MemoryLimit("host", int(total * GIB), int(gib * GIB)),)
    return Machine(Cpus(cpus, cpus, None, f"{cpus} CPUs"), limits, pids, wsl=False)


def cuda(archs: str = "8.0") -> Cuda:
    return Cuda(HOME, "V13.0.88", archs, ("CUDA 13.0 in /opt/cuda",))


def settings(
    jobs: int | None = None, threads: int | None = None, source: str = "", guard: bool = True
) -> Settings:
    sources = {"jobs.max": source} if source else {}
    sources |= {} if guard else {"jobs.memory-guard": "-C jobs.memory-guard"}
    return Settings(jobs=JobsSettings(max=jobs, nvcc_threads=threads, memory_guard=guard), sources=sources)


@pytest.mark.parametrize(
    ("here", "toolkit", "threads", "jobs", "most"),
    [
        # 64 GiB less a reserve of 6% is 60.16: 20 compiles of 3 GiB.
        (machine(cpus=8), cuda(), None, 8, 8),
        (machine(cpus=64), cuda(), None, 20, 64),
        (machine(cpus=64), None, None, 50, 64),
        (machine(cpus=64, gib=10), cuda(), None, 2, 64),
        # A thread compiles for an arch of its own: more archs cost more only with more threads.
        (machine(cpus=64), cuda("8.0;9.0;10.0"), None, 20, 64),
        (machine(cpus=64), cuda("8.0;9.0;10.0"), 2, 10, 64),
        (machine(cpus=64), cuda("8.0;9.0;10.0"), 8, 6, 64),
        (machine(cpus=64), cuda("8.0"), 8, 20, 64),
        # Less than the reserve, or nothing at all, still builds.
        (machine(cpus=4, gib=0.5), cuda(), None, 1, 4),
        (machine(cpus=4, gib=0), cuda(), None, 1, 4),
        (machine(cpus=1), cuda(), None, 1, 1),
        (machine(pids=40), cuda(), None, 5, 5),
        (machine(pids=3), cuda(), None, 1, 1),
        (machine(pids=10_000), cuda(), None, 8, 8),
    ],
)
def test_derived(here: Machine, toolkit: Cuda | None, threads: int | None, jobs: int, most: int) -> None:
    """Scripts are told what is sure to fit; the scheduler, which watches memory, goes by CPUs and tasks."""
    made = plan.make(settings(threads=threads), toolkit, "", here)
    assert (made.jobs, made.most_jobs) == (jobs, most)
    assert made.environment["MAX_JOBS"] == str(jobs)
    assert (made.cpus, made.guard, made.free_threads) == (here.cpus.count, True, threads is None)
    what = "1 compile" if most == 1 else f"{most} compiles"
    assert made.lines[-1].startswith(f"at most {what} at a time, fewer whenever memory is short (CPUs ")


@pytest.mark.parametrize("available", [0, 1, 3, 7, 20, 63])
@pytest.mark.parametrize("cpus", [1, 5])
def test_memory_is_never_overdrawn(available: int, cpus: int) -> None:
    here = machine(cpus=cpus, gib=available)
    made = plan.make(settings(), cuda(), "", here)
    assert 1 <= made.jobs <= cpus
    assert made.jobs == 1 or made.jobs * plan.CUDA_JOB <= available * GIB - 3.84 * GIB


def test_tightest_domain_counts() -> None:
    group = MemoryLimit("cgroup /docker/1", 8 * GIB, 8 * GIB)
    here = replace(machine(cpus=16), memory=(*machine().memory, group))
    made = plan.make(settings(), cuda(), "", here)
    assert made.jobs == 2  # 8 less 1 of reserve
    assert "8.0 GiB free in cgroup /docker/1" in made.lines[-1]


def test_unknown_memory() -> None:
    made = plan.make(settings(), cuda(), "", replace(machine(), memory=()))
    assert made.jobs == 1
    assert "free in unknown" in made.lines[-1]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        (2, "at most 2 compiles at a time, as MAX_JOBS in the environment says, fewer whenever memory is short ("),
        (1, "at most 1 compile at a time, as MAX_JOBS in the environment says, fewer whenever memory is short ("),
        (128, "at most 128 compiles at a time, as MAX_JOBS in the environment says, fewer whenever memory is"),
    ],
)
def test_explicit_number_is_taken(jobs: int, said: str) -> None:
    made = plan.make(settings(jobs, source="MAX_JOBS in the environment"), cuda(), "", machine())
    assert (made.jobs, made.most_jobs, made.environment["MAX_JOBS"]) == (jobs, jobs, str(jobs))
    assert made.lines[-1].startswith(said)
    assert made.guard


@pytest.mark.parametrize(("jobs", "cpus"), [(None, 8), (4, 8), (32, 32)])
def test_an_explicit_number_above_the_cpus_is_not_held_back_by_them(jobs: int | None, cpus: int) -> None:
    assert plan.make(settings(jobs, source="-C jobs.max"), cuda(), "", machine()).cpus == cpus


def test_without_the_guard_it_is_said_loudly() -> None:
    made = plan.make(settings(32, source="-C jobs.max", guard=False), cuda(), "", machine())
    assert not made.guard
    assert made.lines[-1].startswith(
        "32 compiles at a time, as -C jobs.max says; MEMORY IS NOT GUARDED, as -C jobs.memory-guard says ("
    )
    alone = plan.make(settings(guard=False), cuda(), "", machine(cpus=1))
    assert alone.lines[-1].startswith("1 compile at a time; MEMORY IS NOT GUARDED, as -C jobs.memory-guard says (")


def test_environment() -> None:
    made = plan.make(settings(threads=4), cuda("8.0;9.0+PTX"), "", machine())
    assert made.environment == {
        "MAX_JOBS": "8",
        "NVCC_THREADS": "4",
        "CUDA_HOME": str(HOME),
        "CUDA_PATH": str(HOME),
        "TORCH_CUDA_ARCH_LIST": "8.0;9.0+PTX",
    }


def test_environment_without_toolkit() -> None:
    made = plan.make(settings(), None, "", machine())
    assert made.environment == {"MAX_JOBS": "8", "NVCC_THREADS": "1"}


def test_lines() -> None:
    made = plan.make(settings(), cuda(), "building against torch 2.14.1+cu130 of /env", machine())
    assert made.lines[:2] == ("building against torch 2.14.1+cu130 of /env", "CUDA 13.0 in /opt/cuda")
    assert len(made.lines) == 3
    assert made.lines[2] == (
        "at most 8 compiles at a time, fewer whenever memory is short "
        "(CPUs 8 (8 CPUs); memory about 20 (64.0 GiB free in host))"
    )


def test_same_input_same_plan() -> None:
    assert plan.make(settings(), cuda(), "", machine()) == plan.make(settings(), cuda(), "", machine())


def test_host_compilers_are_exported_and_said() -> None:
    host = Host({"NVCC_CCBIN": "/usr/bin/g++-14"}, ("gcc 99 does not fit",))
    made = plan.make(settings(), cuda(), "", machine(), host)
    assert made.environment["NVCC_CCBIN"] == "/usr/bin/g++-14"
    assert made.lines[:2] == ("CUDA 13.0 in /opt/cuda", "gcc 99 does not fit")
