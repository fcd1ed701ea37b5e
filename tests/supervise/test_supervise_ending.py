"""`safe-ext-build kill`: a build is ended from outside, whatever state it is in, and nobody else is hurt."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_harness import PROMISE, Build, Bystanders, Project, started

from safe_ext_build.cli import kill as kill_
from safe_ext_build.errors import SafeExtBuildError
from safe_ext_build.machine.neighbours import NOTHING, Record, living
from safe_ext_build.supervise import ending
from safe_ext_build.supervise.processes import ID_VARIABLE, Process
from safe_ext_build.supervise.registry import Line

STUBBORN = "seconds=60 stubborn=1 escape=2"


def kill(project: Project, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "safe_ext_build", "kill", *words]
    environ = {**project.environ(), **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


@contextlib.contextmanager
def compiling(project: Project) -> Iterator[Build]:
    project.write_sources({"0_a": "seconds=0.05", "1_b": STUBBORN, "1_c": STUBBORN})
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 2)
        build.wait_for("escapee", 2)
        yield build


@contextlib.contextmanager
def carrying(build: str) -> Iterator[subprocess.Popen[bytes]]:
    """What a build may have left whose supervisor, guard and hook process were all killed."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    environ = {**os.environ, ID_VARIABLE: build}
    with subprocess.Popen(sleeper, env=environ, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_nothing_runs(project: Project) -> None:
    done = kill(project)
    assert done.returncode == 1
    assert "error[SEB-5007]: no build of yours runs here\n" in done.stderr
    done = kill(project, "--stale")
    assert (done.returncode, done.stderr) == (0, "safe-ext-build: all clear: there was nothing to end\n")


def test_a_build_is_ended(project: Project, bystanders: Bystanders) -> None:
    """Its compilers ignore TERM, and have daemons whose environment is wiped."""
    with compiling(project) as build:
        (record,) = living(project.environ())
        count = len(build.processes()) - 1  # the hook process ends by itself
        done = kill(project, record.build[:6])
        build.mark("hook")
        assert build.wait() == 1
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.leftovers() == []
    assert done.returncode == 0, done.stderr
    pattern = rf"safe-ext-build: build {record.build} is all clear: (\d+) processes ended, workspace removed\n"
    found = re.fullmatch(pattern, done.stderr)
    assert found, done.stderr
    assert abs(int(found[1]) - count) <= 3, "a respawning daemon has now one process, now two"
    assert "error[SEB-5004]: the build was stopped: `safe-ext-build kill` was asked to end it" in build.text()
    assert bystanders.dead() == []


@pytest.mark.parametrize("stopped", ["seb-super", "hook"])
def test_a_build_that_is_stopped(project: Project, bystanders: Bystanders, stopped: str) -> None:
    with compiling(project) as build:
        (record,) = living(project.environ())
        victim = build.process.pid if stopped == "hook" else build.victims(stopped)[0]
        os.kill(victim, signal.SIGSTOP)
        done = kill(project, record.build)
        build.mark("hook")
        build.wait()
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.leftovers() == []
    assert (done.returncode, "all clear" in done.stderr) == (0, True), done.stderr
    assert bystanders.dead() == []


def test_a_supervisor_that_will_not(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped again and again, so that it never gets to do what it is asked."""
    monkeypatch.setattr(ending, "PATIENCE", 1.0)
    with compiling(project) as build:
        (record,) = living(project.environ())
        with Line(Path(record.workspace)) as line:
            supervisor = line.supervisor
        assert (supervisor.pid, supervisor.name) == (record.pid, "seb-super")
        ending.force(supervisor)
        build.mark("hook")
        build.wait()
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.leftovers() == []
    assert "error[SEB-5001]: the process that watches over the build was killed" in build.text()


def test_one_of_several(project: Project, tmp_path: Path) -> None:
    with compiling(project) as build:
        (record,) = living(project.environ())
        done = kill(project, "zzzz")
        assert "error[SEB-5007]: no build of yours runs here whose id begins with zzzz\n" in done.stderr
        done = kill(project, record.build, **{ID_VARIABLE: record.build})
        assert (
            f"error[SEB-5006]: this command runs inside build {record.build}, and would end itself\n"
            in done.stderr
        )
        done = kill(project, "--stale")
        assert (done.returncode, done.stderr) == (0, "safe-ext-build: all clear: there was nothing to end\n")
        assert record.build not in ending.orphaned(set()), "it stands below a supervisor, known or not"
        assert len(build.named("cicc")) == 2
        done = kill(project, "--all")
        assert (done.returncode, "all clear" in done.stderr) == (0, True), done.stderr
        build.wait()


def test_what_a_lost_build_left(project: Project) -> None:
    lost = project.workspaces / "0123456789ab"
    (lost / "tmp").mkdir(parents=True)
    (project.workspaces / ".lock").touch()
    other = project.workspaces / "notes"
    other.mkdir()
    with carrying(lost.name) as first, carrying("ba9876543210") as second, carrying("") as stranger:
        done = kill(project, "--stale")
        assert done.returncode == 0, done.stderr
        for build, process in ((lost.name, first), ("ba9876543210", second)):
            assert f"build {build} is all clear: 1 process ended, workspace removed\n" in done.stderr
            assert process.wait(5) == -signal.SIGKILL
        assert stranger.poll() is None
        stranger.kill()
    assert not lost.exists()
    assert other.exists()


def process(pid: int, name: str, parent: int) -> Process:
    return Process(pid, name, "S", parent, pid, pid, 1, 0)


def test_a_build_that_is_seen_in_pieces_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sh`, which stood between nvcc and cicc, has ended while processes were being listed."""
    supervisor, ninja = process(2, "seb-super", 1), process(3, "ninja", 2)
    cicc, init = process(9, "cicc", 8), process(1, "init", 0)
    builds = {2: "aaaaaaaaaaaa", 3: "aaaaaaaaaaaa", 9: "aaaaaaaaaaaa", 20: "bbbbbbbbbbbb"}
    tables = [[init, supervisor, ninja, cicc, process(20, "cicc", 1)]] * 2
    # A third one shows its supervisor only in the second look.
    builds[30] = "cccccccccccc"
    tables[0] = [*tables[0], process(30, "cicc", 29)]
    tables[1] = [*tables[1], process(30, "cicc", 2)]
    looks = iter(tables)
    monkeypatch.setattr(ending, "snapshot", lambda: {one.pid: one for one in next(looks)})
    monkeypatch.setattr(ending, "pids", lambda: list(builds))
    monkeypatch.setattr(ending, "_is_ours", lambda _: True)
    monkeypatch.setattr(ending, "environment_value", lambda pid, _: builds[pid])
    assert ending.orphaned(set()) == {"bbbbbbbbbbbb"}


def test_which_build_is_meant() -> None:
    records = [Record(name, 1, "mine", 0.0, NOTHING, "/w") for name in ("0a1b", "0c1d")]
    assert kill_.choose(records, "0c1d").build == "0c1d"
    with pytest.raises(SafeExtBuildError, match=r"^0 is too short for the id of a build: give 4 ") as caught:
        kill_.choose(records[:1], "0")
    assert caught.value.hint == "0a1b  mine"
    with pytest.raises(SafeExtBuildError, match=r"^1 build of yours runs here: name it by its id, or say --all$"):
        kill_.choose(records[:1], None)
    with pytest.raises(SafeExtBuildError, match=r"^2 builds of yours run here: name it by its id, or ") as caught:
        kill_.choose(records, None)
    assert caught.value.hint == "0a1b  mine\n0c1d  mine"
