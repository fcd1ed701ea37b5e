"""Memory that an sccache server's compilers hold: one of them is stopped in time, and run again."""

from __future__ import annotations

from pathlib import Path

from cached_standin import slow_compiler, sources, variables
from memory_builds import Maker, StandinBuild

pytest_plugins = ["memory_fixtures"]


def test_one_of_two_is_stopped_and_run_again(tmp_path: Path, limited: Maker) -> None:
    """Two compiles that are expected to fit, and do not."""
    cgroup = limited(4096)
    settings = {"MAX_JOBS": "2", **variables(tmp_path / "cache")}
    build = StandinBuild(tmp_path / "one", slow_compiler(tmp_path / "bin"), settings)
    build.write_sources(sources(dict.fromkeys(("left", "right"), f"1.5, {1900 << 20}")))
    text = build.finish(build.start(cgroup))
    assert cgroup.oom_kills == 0, text
    assert "1 stopped for memory and run again; cache: 0 hits, 2 misses" in text.replace(")", ""), text
    build.assert_nothing_left()
