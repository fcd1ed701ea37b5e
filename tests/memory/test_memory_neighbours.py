"""Several builds of one user at once: they share what there is, and what a dead one had is free."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from memory_builds import Maker, StandinBuild

from safe_ext_build.machine.neighbours import Neighbours, Record

pytest_plugins = ["memory_fixtures"]

CPUS = 6


def neighbours(place: Path) -> list[Record]:
    """The records of the builds that live, as another build on this host sees them."""
    hosts = [found for found in place.rglob("host-*") if found.is_dir()]
    return Neighbours(hosts[0], "observer", "").records() if hosts else []


class Looks:
    """The records that lay in `place`, look by look."""

    def __init__(self, place: Path) -> None:
        self.seen: list[list[Record]] = []
        self._place = place
        self._ended = threading.Event()

    @contextmanager
    def go_on(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            self.seen.append(neighbours(self._place))


@pytest.mark.frontend
def test_uv_builds_three_packages_at_once(tmp_path: Path, compiler: Path, limited: Maker) -> None:
    """Each alone would take all of the memory and all CPUs."""
    cgroup = limited(4096)
    builds = []
    for name in ("one", "two", "three"):
        build = StandinBuild(tmp_path / name, compiler)
        build.write_sources({f"{name}{number}": "seconds=1 mib=500" for number in range(CPUS)})
        project = build.root / "pyproject.toml"
        project.write_text(project.read_text().replace('name = "standin"', f'name = "standin-{name}"'))
        builds.append(build)
    environ = builds[0].environ() | {
        "SAFE_EXT_BUILD_WORKSPACE_DIR": str(tmp_path / "workspaces"),
        "UV_CONCURRENT_BUILDS": "3",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "MAX_JOBS": str(CPUS),
    }
    (tmp_path / "runtime").mkdir(mode=0o700)
    options = ("--no-build-isolation", "--no-deps", "--offline", "--python", sys.executable)
    uv = [str(Path(sysconfig.get_path("scripts"), "uv")), "pip", "install", *options]
    command = [*uv, "--target", str(tmp_path / "target"), *(str(build.root) for build in builds)]
    looks = Looks(tmp_path / "runtime")
    with looks.go_on():
        done = subprocess.run(
            cgroup.inside(command), env=environ, capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    assert cgroup.oom_kills == 0
    objects = {path.stem: path.read_text() for path in (tmp_path / "target" / "standin").glob("*.o")}
    assert objects == {f"{b.root.name}{number}": "half whole\n" for b in builds for number in range(CPUS)}
    # Each knows of the others, and no two of them take all of the CPUs.
    assert max(map(len, looks.seen)) == 3
    assert all(sum(one.share.cpus for one in seen) <= CPUS + 3 for seen in looks.seen), looks.seen
    assert [path for path in (tmp_path / "workspaces").iterdir() if path.is_dir()] == []
    assert list((tmp_path / "runtime").rglob("*.build")) == []


def test_what_a_dead_build_had_is_free(tmp_path: Path, compiler: Path) -> None:
    unguarded = {"MAX_JOBS": "4", "SAFE_EXT_BUILD_JOBS_MEMORY_GUARD": "false"}  # CPUs alone decide
    builds = [StandinBuild(tmp_path / name, compiler, dict(unguarded)) for name in ("left", "right")]
    for build in builds:
        build.write_sources({f"k{number}": "seconds=3 mib=1" for number in range(8)})
    left, right = (build.start() for build in builds)
    try:
        wait_for(lambda: running(left) == running(right) == 2, "two compiles of each")
        for owner in supervisors(left):
            owner.kill()
        left.communicate(timeout=20)
        wait_for(lambda: running(right) == 4, "four compiles of the other")
        assert [record.project for record in neighbours(tmp_path / "runtime")] == ["right"]
    finally:
        for process in (left, right):
            process.terminate()
            process.communicate(timeout=20)
    for build in builds:
        build.assert_nothing_left()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.05)


def running(process: subprocess.Popen[str]) -> int:
    """How many compiles of this build run."""
    return sum(name == "cicc" for name in names(process).values())


def supervisors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [found for found, name in names(process).items() if name in ("seb-super", "seb-guard")]


def names(process: subprocess.Popen[str]) -> dict[psutil.Process, str]:
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
        return {found: found.name() for found in tree}
    except psutil.NoSuchProcess:
        return {}
