"""What to do next: said where the numbers show it, and nowhere else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from report_records import make, run, sample

from safe_ext_build.report.advice import advise
from safe_ext_build.report.record import Record, Setting
from safe_ext_build.schedule.forecast import GIB
from safe_ext_build.schedule.policy import Limits


def planned(made: Record, **changes: Any) -> Record:
    return dataclasses.replace(made, plan=dataclasses.replace(made.plan, **changes))


def many(count: int, seconds: float, lanes: int, **changes: Any) -> list[Any]:
    """`count` equal runs, `lanes` at a time."""
    return [
        run(f"k{n}.cu", n // lanes * seconds, (n // lanes + 1) * seconds, job=n, **changes) for n in range(count)
    ]


def looks(why: str, until: float, *, running: int, waiting: int) -> Any:
    return tuple(sample(float(n), running, waiting, why) for n in range(0, round(until), 2))


def test_one_long_file() -> None:
    made = make(run("csrc/huge.cu", 0, 600), *many(4, 60, 1))
    assert advise(made) == [
        (
            "csrc/huge.cu alone takes 10 min; all the rest could be done in 7 min. Splitting it into two files "
            "of equal "
            "cost would save up to 3 min."
        )
    ]


def test_a_long_file_that_costs_nothing_is_left_alone() -> None:
    made = make(run("huge.cu", 0, 61), *many(4, 60, 1, cpu=30.0))
    assert not any("Splitting" in line for line in advise(made))


def test_memory() -> None:
    runs = many(8, 60, 2, peak=3 * GIB)
    made = make(*runs, cpus=4, samples=looks("it needs up to 3.0 GiB", 200, running=2, waiting=4))
    assert advise(made)[0] == (
        "Memory held compiles back for 4 min (100% of the time). 6.0 GiB more would have let 2 more compiles "
        "run "
        "meanwhile (a typical one needs up to 3.0 GiB)."
    )


def test_memory_that_was_only_feared() -> None:
    runs = many(8, 60, 2, peak=GIB)
    made = make(*runs, cpus=4, samples=looks("it needs up to 3.0 GiB", 200, running=2, waiting=4))
    assert advise(made)[0] == (
        "Memory held compiles back for 4 min (100% of the time): not known yet, they were expected to need "
        "3.0 GiB "
        "each. A typical one needs 1.0 GiB, which the next build of this project knows, so more of them run "
        "at once."
    )


@pytest.mark.parametrize(
    ("why", "running", "waiting", "cpus"),
    [
        ("all CPUs are busy", 2, 4, 4),  # not memory
        ("it needs up to 3.0 GiB", 2, 4, 2),  # no CPU was idle
        ("it needs up to 3.0 GiB", 2, 0, 4),  # nothing waited
    ],
)
def test_memory_is_not_blamed_for_what_it_did_not_do(why: str, running: int, waiting: int, cpus: int) -> None:
    runs = many(8, 60, 2, peak=3 * GIB)
    made = make(*runs, cpus=cpus, samples=looks(why, 200, running=running, waiting=waiting))
    assert not any("GiB more" in line for line in advise(made))


def test_nvcc_threads_are_cpus() -> None:
    """Two compiles of two threads keep four CPUs busy: more memory would help nobody."""
    runs = many(8, 60, 2, peak=3 * GIB, threads=2, archs="80;90", cpu=120.0)
    made = make(*runs, cpus=4, samples=looks("it needs up to 3.0 GiB", 200, running=2, waiting=4))
    assert not any("GiB more" in line for line in advise(made))


def test_max_jobs() -> None:
    made = make(
        *many(8, 60, 2), cpus=8, samples=looks("2 compiles run, as many as allowed", 240, running=2, waiting=4)
    )
    made = planned(made, most_jobs=2, settings={"jobs.max": Setting("2", "MAX_JOBS in the environment")})
    assert advise(made)[0] == (
        "MAX_JOBS in the environment (2) held compiles back for 4 min, while 6 CPUs of 8 had nothing to do. "
        "Without "
        "it, as many run as CPUs and memory allow."
    )
    assert not any("MAX_JOBS" in line for line in advise(planned(made, settings={})))


def test_killed_for_memory() -> None:
    killed = run("k0.cu", 0, 45, outcome="memory", why="killed by the kernel")
    made = make(killed, *many(4, 60, 2))
    assert advise(made)[0] == (
        "1 run stopped for memory had taken 45 s, 1 of them killed by the kernel. What they need is known "
        "now, and "
        "the next build of this project leaves room for it."
    )
    assert "set jobs.memory-guard to true" in advise(planned(made, guard=False))[0]
    brief = dataclasses.replace(killed, end=2.0, why="stopped to make room")
    assert not any("stopped for memory" in line for line in advise(make(brief, *many(4, 60, 2))))


def test_architectures() -> None:
    made = make(*many(4, 60, 2, archs="80;86;90"), run("a.cpp", 0, 60))
    assert advise(made) == [
        (
            "Compiling for 3 architectures (80;86;90) cost 80% of the CPU time, about 27% for each. Name only "
            "those that "
            "you need in TORCH_CUDA_ARCH_LIST (or cuda.archs)."
        )
    ]
    assert not any("rchitectures" in line for line in advise(make(*many(4, 60, 2, archs="80"))))


def test_torch_extension_h() -> None:
    costly = {"torch_header": True, "peak": 3 * GIB}
    made = make(*many(4, 130, 2, **costly))
    assert advise(made)[0] == (
        "4 CUDA sources include torch/extension.h, which alone costs nvcc some two CPU minutes and 3 GiB; the "
        "cheapest, k0.cu, took 2 min 10 s of CPU time and 3.0 GiB. Include torch/types.h or ATen's own "
        "headers there, "
        "and leave the bindings to a .cpp file."
    )
    for cheap in (
        {**costly, "cpu": 20.0},
        {**costly, "peak": GIB},
        {**costly, "torch_header": None},
        {"cuda": False},
    ):
        assert not any("torch/extension.h" in line for line in advise(make(*many(4, 130, 2, **cheap))))


def test_one_at_a_time() -> None:
    made = make(*many(5, 20, 1), cpus=4)
    assert advise(made)[0].startswith(
        "The project's own scripts started 5 compiles one after another, and none ever waited, so 3 more "
        "CPUs had "
        "nothing to do."
    )
    held = make(*many(5, 20, 1, waited=20.0), cpus=4)
    assert not any("one after another" in line for line in advise(held))


def test_failures_come_first() -> None:
    made = make(run("a.cu", 0, 9), run("b.cu", 0, 5, outcome="failed"), outcome="failed")
    assert advise(made) == ["Mend b.cu first: it ended the build. What was finished is kept for the next one."]
    made = make(run("a.cu", 0, 9), outcome="failed", error="no linker")
    assert advise(made) == [
        "The build failed for another reason than a source that does not compile: see the error above."
    ]
    made = make(run("a.cu", 0, 9), run("b.cu", 0, 5, outcome="unfinished"), outcome="interrupted")
    assert advise(made) == [
        "The build was stopped while 1 compile ran. Start it again: what was finished is kept.",
    ]
    assert advise(make()) == ["Nothing was compiled."]


def test_nothing_to_do_is_said_too() -> None:
    assert advise(make(*many(8, 60, 2))) == [
        (
            "Nothing: this is close to the best that this machine can do; its CPUs had work all the time, so "
            "only more of "
            "them, or less to compile, would be faster."
        )
    ]
    slow = make(*many(8, 60, 2), cpus=2, compiling=900.0)
    assert advise(slow) == ["Nothing stands out in the numbers of this build."]


def test_the_scheduler_says_what_is_understood() -> None:
    """The words that advice is made of are the scheduler's own."""
    from safe_ext_build.report.advice import EXPECTED
    from safe_ext_build.report.timeline import reason_of
    from safe_ext_build.schedule.forecast import Features, Forecaster
    from safe_ext_build.schedule.policy import Memory, Scheduler, Waiting

    def held(limits: Limits, gib: int) -> str:
        scheduler = Scheduler(limits, Forecaster({}))
        for number in range(3):
            scheduler.enqueue(Waiting(number, Features(True, 1, 1, f"k{number}")))
        return scheduler.decide(0.0, Memory(gib * GIB, GIB, GIB // 2, 64 * GIB)).held

    assert reason_of(held(Limits(8, 1), 60)) == "cpus"
    assert reason_of(held(Limits(1, 8), 60)) == "jobs"
    assert EXPECTED.fullmatch(held(Limits(8, 8), 5)) and reason_of(held(Limits(8, 8), 5)) == "memory"


def test_a_file_that_does_not_fit() -> None:
    runs = [run("a.cu", 0, 9, attempt=n, job=1, outcome="memory", peak=7 * GIB) for n in (1, 2)]
    said = "a.cu: the compiler was killed because memory ran out, although nothing else of this build ran"
    assert advise(make(*runs, outcome="failed", error=said))[0] == (
        "a.cu held 7.0 GiB, and does not fit even alone. Compile for fewer architectures (TORCH_CUDA_ARCH_LIST), "
        "set NVCC_THREADS=1, split the file, or add memory."
    )
