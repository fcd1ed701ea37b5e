"""Whole builds in simulated time: what the simulator's table claims, in the cases that are quick to run.

The simulator (tests/benchmarks/simulator.py) prints the whole table, and the trials over a thousand seeds.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

GIB = 1 << 30


def _load() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "simulator.py"
    spec = importlib.util.spec_from_file_location("seb_simulator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["seb_simulator"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


simulator = _load()


@pytest.mark.parametrize(
    ("sources", "cpus", "gib", "warm", "cold"),
    [
        (lambda: simulator.small(4), 2, 8, 1.10, 1.40),
        (lambda: simulator.few(12), 2, 24, 1.10, 1.40),
        (lambda: simulator.few(36), 32, 64, 1.30, 1.70),
        (lambda: simulator.small(40), 8, 16, 1.20, 1.40),
    ],
)
def test_near_the_bound(
    sources: Callable[[], list[object]], cpus: int, gib: int, warm: float, cold: float
) -> None:
    mix = sources()
    bound = simulator.bound(mix, cpus, gib * GIB)
    for history, most in ((simulator.true_history(mix), warm), ({}, cold)):
        result = simulator.ours(mix, cpus, gib * GIB, history)
        assert result.oom == 0
        assert result.makespan / bound < most


def test_threads_are_chosen_so_that_four_archs_fit() -> None:
    mix = simulator.flash_attention(4, 4)[::3]
    result = simulator.ours(mix, 16, 64 * GIB, simulator.true_history(mix))
    assert (result.oom, result.kills) == (0, 0)
    assert result.makespan / simulator.bound(mix, 16, 64 * GIB) < 1.15


@pytest.mark.parametrize("name", simulator.TRIALS)
def test_no_oom_whatever_is_wrong(name: str) -> None:
    for seed in range(2):
        made = simulator.trial(name, seed, size=8)
        assert made.done
        assert made.oom == 0, f"seed {seed}"


def test_the_machine_of_the_simulator_does_run_out_of_memory() -> None:
    """The trials above would prove nothing on a machine on which nothing can go wrong."""
    mix = simulator.flash_attention()
    assert simulator.constant(mix, 8, 16 * GIB, 10).oom
    assert not simulator.constant(mix, 8, 16 * GIB, 1).oom
