"""What real compilers held, made small, for 64 compiles at once: real memory, a real limit, nothing killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_builds import StandinBuild
from real_cgroups import MIB, made
from recorded import bound, recorded
from watched import watched

pytest_plugins = ["memory_fixtures"]

LIMIT = 4096
JOBS = 64


def test_64_recorded_compiles(tmp_path: Path, compiler: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of which at their peaks 48 fit. (`tests/benchmarks/replay.py` does it at length, and with a history.)"""
    compiles = recorded(JOBS, smaller=60, faster=80)
    assert sum(one.peak for one in compiles.values()) > LIMIT
    build = StandinBuild(tmp_path / "replay", compiler, {"MAX_JOBS": str(JOBS)})
    build.write_sources({name: one.plan for name, one in compiles.items()})
    with made("memory", LIMIT * MIB) as group, watched(group) as seen:
        text = build.finish(build.start(group))
        assert group.oom_kills == 0, text
    with capsys.disabled():
        least = bound(compiles, LIMIT, JOBS)
        print(f"\n{seen.most} at once, {seen.seconds:.0f} s; no schedule takes less than {least:.0f} s", end=" ")
    assert seen.most >= 24
    assert build.objects() == dict.fromkeys(compiles, "half whole\n")
    build.assert_nothing_left()
