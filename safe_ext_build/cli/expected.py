"""How long the compiles of a build will take, from what earlier builds of the project took. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..machine import Machine, floor, reserve
from ..plan import BuildPlan
from ..schedule.forecast import Curve, Features
from ..schedule.history_key import Parts, read
from ..schedule.policy import Limits, Memory
from ..schedule.simulate import expected_time
from ..toolchain.find import Cuda


@dataclass(frozen=True)
class Expected:
    """`seconds` for `compiles` compiles; `longest` is the source that takes `longest_seconds` alone."""

    seconds: float
    compiles: int
    longest: str
    longest_seconds: float


def expect(
    history: Mapping[str, Curve],
    compilers: Iterable[str],
    is_there: Callable[[str], bool],
    cuda: Cuda | None,
    plan: BuildPlan,
    machine: Machine,
) -> Expected | None:
    """What the project's compiles will take, all of them anew; None where the history knows none of them.

    `history` is the project's, `compilers` the builds of the compilers at hand; `is_there` tells whether a source
    still exists.
    """
    archs = set(re.findall(r"\d+", cuda.archs.replace(".", ""))) if cuda else set()
    known = [part for part in map(read, history) if part and part.compiler in compilers and is_there(part.source)]
    chosen = choose(known, archs, history)
    if not chosen:
        return None
    budget = machine.budget
    memory = Memory(budget.available, reserve(budget.total), floor(budget.total), budget.total)
    compiles = [Features(one.cuda, max(1, len(one.archs)), one.at_once, one.key) for one in chosen]
    most = max(len(one.archs) for one in chosen) if plan.free_threads else 0
    seconds = expected_time(compiles, history, Limits(plan.most_jobs, plan.cpus, plan.guard), memory, most)
    longest = max(chosen, key=lambda one: history[_entry(one)].seconds)
    return Expected(seconds, len(chosen), longest.source, history[_entry(longest)].seconds)


def choose(known: Iterable[Parts], archs: set[str], history: Mapping[str, Curve]) -> list[Parts]:
    """One entry for each source: for the planned architectures rather than for others, which a setup script may
    have chosen; of those the longest."""
    best: dict[str, Parts] = {}

    def rank(one: Parts) -> tuple[bool, float]:
        return set(one.archs) == archs, history[_entry(one)].seconds

    for one in known:
        if one.source not in best or rank(one) > rank(best[one.source]):
            best[one.source] = one
    return list(best.values())


def _entry(one: Parts) -> str:
    return f"{one.key}:{one.at_once}"
