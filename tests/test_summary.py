"""The one line about what the compiles of a build have cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from safe_ext_build.events import Event
from safe_ext_build.report.summary import summarize

GIB = 1 << 30


def event(source: str, outcome: str, end: float, seconds: float, cpu: float, gib: float) -> Event:
    peak = int(gib * GIB)
    return Event("job", end, source, outcome, 0.0, seconds, cpu, peak, 1, 1, "entry", seconds, (peak,))


ONE = event("/p/csrc/a.cu", "compiled", 110.0, 10.0, 9.6, 1.25)
TWO = event("b.cpp", "compiled", 125.0, 20.0, 19.0, 0.5)
KILLED = event("c.cu", "memory", 105.0, 5.0, 4.0, 9.0)
THERE = replace(ONE, remote=True, job=1)
HIT = replace(ONE, remote=True, job=4, cache="hit")
BACK = replace(ONE, remote=True, job=2, outcome="returned", why="Job failed on server")
AGAIN = replace(BACK, job=3)
HERE = replace(TWO, job=3)
FAILED = event("d.cu", "failed", 130.0, 5.0, 2.0, 9.0)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([FAILED, KILLED], ""),
        ([ONE], "compiled 1 object in 10 s (10 CPU s, peak 1.2 GiB in a.cu)"),
        ([TWO, ONE], "compiled 2 objects in 25 s (29 CPU s, peak 1.2 GiB in a.cu)"),
        ([TWO, FAILED], "compiled 1 object in 25 s (21 CPU s, peak 0.5 GiB in b.cpp)"),
        (
            [ONE, TWO, KILLED, KILLED],
            "compiled 2 objects in 25 s (37 CPU s, peak 1.2 GiB in a.cu; 2 stopped for memory and run again)",
        ),
        ([THERE], "compiled 1 object in 10 s (10 CPU s here, peak 1.2 GiB in a.cu); 1 on the farm"),
        (
            [THERE, THERE, BACK, BACK, AGAIN, HERE, HIT],
            (
                "compiled 4 objects in 25 s (77 CPU s here, peak 1.2 GiB in a.cu); 2 on the farm, 2 came back; "
                "cache: 1 hit, 3 without a word"
            ),
        ),
        (
            [BACK, replace(TWO, job=2)],
            "compiled 1 object in 25 s (29 CPU s here, peak 0.5 GiB in b.cpp); none on the farm, 1 came back",
        ),
    ],
)
def test_summary(events: list[Event], said: str) -> None:
    assert summarize(events) == said
