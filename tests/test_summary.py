"""The one line about what the compiles of a build have cost."""

from __future__ import annotations

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
    ],
)
def test_summary(events: list[Event], said: str) -> None:
    assert summarize(events) == said
