"""What real compiles held, made small: plans for the stand-in compiler, and the least time that they take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TRACES = Path(__file__).parents[1] / "benchmarks" / "traces"
POINTS = 32


@dataclass(frozen=True)
class Recorded:
    """One compile: `seconds`, and MiB at moments of equal distance."""

    name: str
    seconds: float
    points: tuple[int, ...]

    @property
    def plan(self) -> str:
        return f"seconds={self.seconds:.2f} curve={','.join(map(str, self.points))}"

    @property
    def peak(self) -> int:
        return max(self.points)

    @property
    def mib_seconds(self) -> float:
        return self.seconds * sum(self.points) / len(self.points)


@cache
def _traces() -> tuple[Recorded, ...]:
    found = (json.loads(path.read_text()) for path in sorted(TRACES.glob("*.json")))
    return tuple(Recorded(one["name"], one["cpu_s"] / one["threads"], tuple(one["points_mib"])) for one in found)


def recorded(count: int, smaller: float, faster: float) -> dict[str, Recorded]:
    """`count` compiles under names of their own, whose memory and time are divided by these factors."""
    traces = _traces()
    return {
        f"k{number:02}_{(like := traces[number % len(traces)]).name}": _scaled(like, smaller, faster)
        for number in range(count)
    }


def _scaled(like: Recorded, smaller: float, faster: float) -> Recorded:
    each = len(like.points) // POINTS
    tops = (max(like.points[place : place + each]) for place in range(0, POINTS * each, each))
    return Recorded(like.name, like.seconds / faster, tuple(max(1, round(top / smaller)) for top in tops))


def bound(compiles: Mapping[str, Recorded], mib: int, at_once: int) -> float:
    """Seconds that no schedule beats: all memory always full, all slots always busy, or the longest one."""
    every: Sequence[Recorded] = list(compiles.values())
    seconds = [one.seconds for one in every]
    return max(sum(one.mib_seconds for one in every) / mib, sum(seconds) / at_once, max(seconds))
