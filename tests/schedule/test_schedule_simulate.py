"""The expected time of a build: the production scheduler over known curves."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from safe_ext_build.cli.expected import choose
from safe_ext_build.schedule.forecast import GIB, Curve, Features
from safe_ext_build.schedule.history_key import key, read
from safe_ext_build.schedule.policy import Limits, Memory
from safe_ext_build.schedule.simulate import expected_time


def expected(seconds: list[float], cpus: int, free: int = 64 * GIB, peak: int = GIB) -> float:
    compiles = [Features(False, 1, 1, f"source {number}") for number in range(len(seconds))]
    history = {one.entry: Curve(time, (peak,) * 16) for one, time in zip(compiles, seconds, strict=True)}
    memory = Memory(free, GIB, GIB // 2, 64 * GIB)
    return expected_time(compiles, history, Limits(cpus, cpus), memory)


@pytest.mark.parametrize(
    ("seconds", "cpus", "expected_seconds"),
    [([], 2, 0), ([30], 4, 30), ([10] * 8, 1, 80), ([10] * 8, 4, 20), ([40, 10, 10, 10, 10], 2, 40)],
)
def test_with_memory_enough_the_cores_decide(seconds: list[float], cpus: int, expected_seconds: float) -> None:
    assert expected(seconds, cpus) == pytest.approx(expected_seconds, abs=2.0)


def test_memory_for_one_at_a_time() -> None:
    assert expected([10.0] * 6, 8, free=6 * GIB, peak=4 * GIB) == pytest.approx(60, abs=6.0)


def test_a_large_build_is_simulated_in_few_steps() -> None:
    assert expected([60.0 + number % 40 for number in range(400)], 8) == pytest.approx(400 * 79.5 / 8, rel=0.1)


def test_threads_that_may_be_given_are_used() -> None:
    features = Features(True, 4, 1, "kernel.cu")
    history = {features.entry: Curve(80.0, (GIB,) * 16)}
    memory = Memory(64 * GIB, GIB, GIB, 64 * GIB)
    alone = expected_time([features], history, Limits(4, 4), memory)
    shared = expected_time([features], history, Limits(4, 4), memory, most_threads=4)
    assert alone == pytest.approx(80, abs=1)
    assert shared == pytest.approx(20, abs=1)


def test_an_entry_is_read_as_it_was_written() -> None:
    name = key("thing", "/p/csrc/a.cu", ["nvcc", "-O3"], ["90", "80"], None, "V13.0.88", root="/p")
    parts = read(f"{name}:2")
    assert parts is not None
    assert (parts.project, parts.compiler, parts.source) == ("thing", "V13.0.88", "csrc/a.cu")
    assert (parts.archs, parts.cuda, parts.at_once, parts.key) == (("80", "90"), True, 2, name)
    assert read("what is damaged") is None and read(f"{name}:x") is None


def test_of_several_entries_the_planned_archs_win() -> None:
    names = {
        f"{key('p', 'a.cu', ['nvcc'], archs, None, 'V13')}:1": Curve(seconds, (GIB,) * 16)
        for archs, seconds in ((("80",), 10.0), (("80", "90"), 20.0), (("120",), 50.0))
    }
    known = [parts for parts in map(read, names) if parts]
    assert [one.archs for one in choose(known, {"80", "90"}, names)] == [("80", "90")]
    assert [one.archs for one in choose(known, {"75"}, names)] == [
        ("120",)
    ]  # the setup script chooses: the dearest


def test_it_agrees_with_the_simulator_that_watches_memory() -> None:
    """The simulator samples memory, and kills; here admission alone keeps to what is there."""
    path = Path(__file__).parents[1] / "benchmarks" / "simulator.py"
    spec = importlib.util.spec_from_file_location("seb_simulator_again", path)
    assert spec is not None and spec.loader is not None
    simulator = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = simulator  # its dataclasses look themselves up there
    spec.loader.exec_module(simulator)
    sources, total = simulator.few(24), 24 * GIB
    history = simulator.true_history(sources)
    watched = simulator.ours(sources, 8, total, history).makespan
    memory = Memory(total - GIB, total * 6 // 100, total * 3 // 100, total)
    ours = expected_time([source.features for source in sources], history, Limits(1000, 8), memory, 1)
    assert ours == pytest.approx(watched, rel=0.15)
