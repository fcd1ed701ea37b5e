"""With a build's own sccache server, which compiles outside of the Js: nothing survives, what its compilers hold
is their jobs', and without it the build goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from cached_standin import slow_compiler, sources, variables
from kill_harness import PROMISE, Build, Bystanders, Project, make_project, number_of, started

from safe_ext_build.launcher.call import Launching
from safe_ext_build.supervise.cache_server import IDLE, CacheServer
from safe_ext_build.supervise.processes import read

pytestmark = pytest.mark.frontend

SLOW, QUICK = "60, 0", "0, 0"


@pytest.fixture
def cached(tmp_path: Path) -> Project:
    return project_in(tmp_path, tmp_path / "sccache")


def project_in(place: Path, cache: Path) -> Project:
    return make_project(place, slow_compiler(place / "bin"), **variables(cache))


def write(project: Project, plans: dict[str, str]) -> None:
    project.write_sources(sources(plans))


def server_of(build: Build) -> psutil.Process:
    """The sccache that is a child of the supervisor; the others are its clients."""
    (found,) = [one for one in build.named("sccache") if _parent(one) == "seb-super"]
    return found


def wait_for_compilers(build: Build, count: int = 2) -> None:
    """Until so many compilers work, each below the server."""

    def working() -> bool:
        return sum(_parent(one) == "sccache" for one in build.named("g++")) >= count

    build.wait_until(working, f"{count} compilers below the server")


def _below(compiler: psutil.Process) -> list[psutil.Process]:
    """A compiler of the server that is at work, and what it runs; nothing, of one that is gone or asked only."""
    try:
        below = compiler.children(recursive=True)
    except psutil.Error:
        return []
    return [compiler, *below] if below and _parent(compiler) == "sccache" else []


def _working(build: Build, trees: list[list[psutil.Process]]) -> list[list[psutil.Process]]:
    trees += filter(None, map(_below, build.named("g++")))
    return trees


def _parent(process: psutil.Process) -> str:
    try:
        parent = process.parent()
        return parent.name() if parent else ""
    except psutil.Error:
        return ""


def run_hook(project: Project) -> str:
    done = subprocess.run(
        project.hook(),
        cwd=project.root,
        env=project.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=90,
    )
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, text
    return text


@pytest.mark.parametrize(
    ("victim", "name"),
    [
        ("frontend", "KILL"),
        ("group", "INT"),
        ("seb-super", "KILL"),
        ("seb-job", "KILL"),
        ("frontend+hook+seb-super", "KILL"),
    ],
)
def test_whatever_is_hit_the_server_and_its_compilers_go(
    cached: Project, bystanders: Bystanders, victim: str, name: str
) -> None:
    write(cached, {"0_first": QUICK, "1_slow_a": SLOW, "1_slow_b": SLOW})
    frontend = "frontend" in victim
    with started(cached, cached.uv() if frontend else cached.hook()) as build:
        wait_for_compilers(build)
        build.hit(victim, number_of(name))
        seconds = build.seconds_to_clear()
        assert seconds <= PROMISE, f"{seconds:.1f} s; still there: {build.names()}\n{build.text()}"
        build.wait()
        assert build.leftovers() == []
        assert list(cached.root.rglob(".seb")) == []
        assert bystanders.dead() == []


def test_without_its_server_a_build_goes_on_and_says_so(cached: Project) -> None:
    """Its compilers go with it: two that write one object would make neither."""
    write(cached, {"a": "1, 0", "b": "1, 0", "c": QUICK, "d": QUICK})
    with started(cached, cached.hook()) as build:
        wait_for_compilers(build)
        os.kill(server_of(build).pid, signal.SIGKILL)
        assert build.wait() == 0, build.text()
        build.mark("")
        assert build.seconds_to_clear() <= PROMISE
        text = build.text()
        assert build.leftovers() == []
    lost = "server of this build is lost: it ended with signal 9; what is left is compiled without a cache"
    assert text.count(lost) == 1, text
    assert "compiled 4 objects" in text


def test_a_compiler_of_the_server_that_is_killed_from_outside_ends_the_build(cached: Project) -> None:
    write(cached, {"a": SLOW, "b": SLOW})
    with started(cached, cached.hook()) as build:
        wait_for_compilers(build)
        trees: list[list[psutil.Process]] = []
        build.wait_until(lambda: bool(_working(build, trees)), "a compiler that runs something")
        build.mark("")
        for process in trees[0]:  # the server waits for whoever has its compiler's pipe
            process.kill()
        assert build.seconds_to_clear() <= PROMISE
        build.wait()
        text = build.text()
    assert "was killed by signal 9" in text, text


def test_what_the_servers_compilers_hold_is_their_jobs(cached: Project) -> None:
    """And a hit is not taken for what the compile costs: the next build that misses expects the same again."""
    write(cached, {"large": f"2, {300 << 20}", "small": "2, 0"})
    assert "cache: 0 hits, 2 misses" in run_hook(cached)
    first = runs(cached)
    assert first["large"]["peak"] > 200 << 20 > first["small"]["peak"]
    assert [run["cache"] for run in first.values()] == ["miss", "miss"]
    shutil.rmtree(cached.root / "build")
    assert "cache: 2 hits" in run_hook(cached)
    second = runs(cached)
    assert second["large"]["curve"] == [] and second["large"]["again"]


def runs(project: Project) -> dict[str, dict[str, Any]]:
    """The runs of the last build, by the stem of their source."""
    newest = max((project.scratch / "cache" / "safe-ext-build" / "reports").glob("*.json*"), key=os.path.getmtime)
    record = json.loads(newest.read_text())
    return {Path(run["source"]).stem: run for run in record["runs"]}


def test_two_builds_at_once_share_a_cache(tmp_path: Path) -> None:
    projects = [project_in(tmp_path / name, tmp_path / "shared") for name in ("one", "two")]
    for project in projects:
        write(project, {str(number): "0.2, 0" for number in range(3)})
    with started(projects[0], projects[0].hook()) as first, started(projects[1], projects[1].hook()) as second:
        for build in (first, second):
            wait_for_compilers(build, 1)
        assert server_of(first).pid != server_of(second).pid
        for build in (first, second):
            assert build.wait() == 0, build.text()
            assert "compiled 3 objects" in build.text()
    shutil.rmtree(projects[0].root / "build")
    assert "cache: 3 hits" in run_hook(projects[0])


def test_a_server_that_does_nothing_for_those_who_wait_is_given_up() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        server = CacheServer(Launching(), {}, "")
        server.state, server.process = "ready", read(sleeper.pid)
        states = []
        for now, spent, waited_for in [
            (0, 1, True),
            (1, 2, True),
            (2, 2, False),
            (3, 2.5, True),
            (4.1, 2.5, True),
        ]:
            server.watch(now * IDLE, spent * IDLE, waited_for)
            states.append(server.state)
        assert states == ["ready", "ready", "ready", "ready", "lost"]
        assert sleeper.wait(10) == -signal.SIGKILL
    assert server.line() == (
        "the sccache server of this build is lost: it has done nothing for 20 s (does what it stores in answer?); "
        "what is left is compiled without a cache"
    )
