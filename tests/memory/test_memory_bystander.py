"""What else runs on the machine goes on, while a build wants more than the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bystander import Bystander
from memory_builds import Maker, StandinBuild

pytest_plugins = ["memory_fixtures"]

COMPILES = 8


def test_an_unrelated_program_stays_quick(
    tmp_path: Path, compiler: Path, limited: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the median, which little shakes; `tests/benchmarks/latency.py` tells the 95th percentile too."""
    cgroup = limited(3072)
    build = StandinBuild(tmp_path / "busy", compiler, {"MAX_JOBS": str(os.cpu_count())})
    build.write_sources({f"k{number}": "seconds=1.3 burn=1 mib=768" for number in range(COMPILES)})
    places = ((), cgroup.inside(()))
    idle = [Bystander(1.5, through).latency() for through in places]
    process = build.start(cgroup)
    busy = [Bystander(3, through).latency() for through in places]
    text = build.finish(process)
    assert cgroup.oom_kills == 0, text
    slower = [after.median / before.median for before, after in zip(idle, busy, strict=True)]
    with capsys.disabled():
        print(f"\n{slower[0]:.1f} times slower outside the cgroup, {slower[1]:.1f} times inside", end=" ")
    assert max(slower) <= 3
    build.assert_nothing_left()
