"""A second build of the same project while the first still runs: it waits, replaces it, or gives up."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kill_harness import PROMISE, Build, Bystanders, Project, build_again, started

from safe_ext_build.errors import BuildRunning, SupervisionError
from safe_ext_build.machine.neighbours import living
from safe_ext_build.supervise import ending, workspace
from safe_ext_build.supervise.turn import Taken, Turn
from safe_ext_build.supervise.workspace import Workspace

QUICK = {"a": "seconds=0.05"}
SLOW = {"a": "seconds=60 stubborn=1", "b": "seconds=60 stubborn=1"}
WAITS = "; waiting for its end (safe-ext-build kill "


def having(project: Project, **variables: str) -> Project:
    return replace(project, variables={**project.variables, **variables})


@contextlib.contextmanager
def first_build(project: Project, command: list[str] | None = None) -> Iterator[Build]:
    """A build that compiles for long; what comes after it finds sources that are quickly compiled."""
    project.write_sources(SLOW)
    with started(project, command or project.hook()) as build:
        build.wait_for("cicc", 2)
        build.wait_until(lambda: bool(living(project.environ())), "the record")
        project.write_sources(QUICK)
        yield build


def wait_until_it_waits(build: Build) -> None:
    build.wait_until(lambda: WAITS in build.text(), "the line that says so")


def workspaces(project: Project) -> set[str]:
    return {path.name for path in project.workspaces.iterdir() if path.is_dir()}


def test_it_waits_and_begins_when_the_first_is_killed(project: Project) -> None:
    """With all that watches over it."""
    with first_build(project) as first, started(project, project.hook()) as second:
        wait_until_it_waits(second)
        (record,) = living(project.environ())
        line = second.text().splitlines()[-1]
        expected = (
            rf"safe-ext-build: project is being built already: build {record.build} "
            rf"\(pid {record.pid}\), for \d+ s: 0 of 2 compiled; waiting for its end "
            rf"\(safe-ext-build kill {record.build} brings it about\)"
        )
        assert re.fullmatch(expected, line), line
        assert "at most 2 compiles" not in second.text(), "it has planned for a machine that is in use"
        assert workspaces(project) == {record.build}
        for pid in [first.process.pid, *first.victims("seb-super+seb-guard")]:
            os.kill(pid, signal.SIGKILL)
        assert second.wait() == 0, second.text()
    assert re.search(r"the other build has ended, after \d+ s of waiting: it is our turn\n", second.text())
    assert "safe-ext-build: at most 2 compiles at a time" in second.text()
    assert "compiled 1 object in" in second.text()
    assert [*(project.runtime / "safe-ext-build" / "neighbours").glob("turns/*")] == []


@pytest.mark.frontend
def test_uv_is_killed_while_pip_waits(project: Project) -> None:
    with first_build(project, project.uv()) as first, started(project, project.pip("-v")) as second:
        wait_until_it_waits(second)
        first.hit("frontend", signal.SIGKILL)
        assert first.seconds_to_clear() <= PROMISE, first.names()
        assert second.wait() == 0, second.text()
        assert "it is our turn\n" in second.text()


def test_who_waits_can_be_ended_and_leaves_nothing(project: Project) -> None:
    with first_build(project) as first, contextlib.ExitStack() as stack:
        before = workspaces(project)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            terminal = number == signal.SIGINT
            second = stack.enter_context(started(project, project.hook(), terminal=terminal))
            wait_until_it_waits(second)
            second.press(b"\x03") if terminal else second.hit("frontend", number)
            assert second.wait() == -number
            assert "Traceback" not in second.text()
            assert workspaces(project) == before
        assert first.process.poll() is None


@pytest.mark.frontend
def test_whose_frontend_goes_away_stops_waiting(project: Project) -> None:
    """pip keeps silent about it; the terminal is told."""
    telling = having(project, SAFE_EXT_BUILD_PROGRESS="tty")
    with first_build(project), started(telling, telling.pip(), terminal=True) as second:
        second.resize(80, 24)
        wait_until_it_waits(second)
        hook = second.frontend.children()[0]
        second.hit("frontend", signal.SIGKILL)
        hook.wait(PROMISE)


def test_it_replaces_the_first(project: Project, bystanders: Bystanders) -> None:
    with first_build(project) as first:
        (record,) = living(project.environ())
        replacing = having(project, SAFE_EXT_BUILD_ON_RUNNING="replace")
        with started(replacing, replacing.hook()) as second:
            assert second.wait() == 0, second.text()
        assert first.wait() == 1
    said = second.text()
    assert f"build {record.build} (pid {record.pid})" in said
    assert 'ending it, since on-running is "replace"\n' in said
    clear = rf"the earlier build {record.build} is all clear: \d+ processes ended, workspace removed\n"
    assert re.search(clear, said), said
    assert said.index("is all clear") < said.index("compiled 1 object in")
    assert "was stopped: another build of the project was to replace it (on-running)" in first.text()
    assert bystanders.dead() == []


def test_it_gives_up(project: Project) -> None:
    failing = having(project, SAFE_EXT_BUILD_ON_RUNNING="fail")
    with first_build(project) as first:
        (record,) = living(project.environ())
        with started(failing, failing.hook()) as second:
            assert second.wait() == 1
        assert first.process.poll() is None
    error, way_out, setting = second.text().splitlines()[-3:]
    assert error.startswith(
        f"safe-ext-build: error[SEB-5014]: project is being built already: build {record.build} (pid "
    )
    assert way_out.endswith(f"hint: Wait until it has ended, or end it: safe-ext-build kill {record.build}")
    assert 'hint: (SAFE_EXT_BUILD_ON_RUNNING in the environment is "fail"; on-running = "wait" waits' in setting


def test_of_two_that_wait_one_goes_first(project: Project) -> None:
    with first_build(project) as first, contextlib.ExitStack() as stack:
        others = [stack.enter_context(started(project, project.hook())) for _ in range(2)]
        for other in others:
            wait_until_it_waits(other)
        project.write_sources({"a": "seconds=1"})
        first.process.kill()
        assert [other.wait() for other in others] == [0, 0]
    counts = sorted(other.text().count("compiled 1 object in") for other in others)
    assert counts == [0, 1], "the later one finds what the earlier one has compiled"


def test_a_stopped_build_is_said_to_be_stopped(project: Project) -> None:
    with first_build(project):
        (record,) = living(project.environ())
        os.kill(record.pid, signal.SIGSTOP)
        with started(project, project.hook()) as second:
            wait_until_it_waits(second)
            assert "it is stopped, and goes on when it is continued" in second.text()
        os.kill(record.pid, signal.SIGCONT)


# A build inside of another one.


@pytest.mark.parametrize("wiped", [False, True], ids=["as it is", "without the environment"])
def test_a_build_inside_of_run_does_not_wait_for_it(project: Project, wiped: bool) -> None:
    """tox and others wipe the environment, and the marker of the outer build with it."""
    project.write_sources(QUICK)
    kept = [f"{name}={value}" for name, value in project.environ().items()] if wiped else []
    inner = ["env", "-i", *kept, *project.hook()] if wiped else project.hook()
    command = [sys.executable, "-m", "safe_ext_build", "run", "--", *inner]
    done = subprocess.run(
        command, cwd=project.root, env=project.environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "being built already" not in done.stderr
    assert "compiled 1 object in" in done.stderr


def test_a_build_inside_of_another_project_does_not_wait_for_a_third(project: Project, tmp_path: Path) -> None:
    """Who holds a turn never waits: two that do so for each other would wait for ever."""
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / "setup.py").touch()
    with first_build(project):
        script = f"cd {project.root} && exec {' '.join(map(repr, project.hook()))}"
        command = [sys.executable, "-m", "safe_ext_build", "run", "--", "sh", "-c", script]
        done = subprocess.run(
            command, cwd=outer, env=project.environ(), capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "warning: project is being built already: build " in done.stderr
    assert "; this build is part of another one, and does not wait for it\n" in done.stderr


# Which builds are the same.


def test_an_unpacked_sdist_is_the_same_wherever_it_lies(project: Project, tmp_path: Path) -> None:
    """For the same compilers: then its objects are kept in the same place, and need not be compiled twice."""
    project.write_sources(SLOW)
    (project.root / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project.root, elsewhere)
    again = replace(project, root=elsewhere)
    other = having(again, CPATH="/opt/include")
    with started(project, project.hook()) as first:
        first.wait_for("cicc", 2)
        again.write_sources(QUICK)
        assert "being built already" not in build_again(other)
        with started(again, again.hook()) as second:
            wait_until_it_waits(second)
            first.process.kill()
            assert second.wait() == 0, second.text()
    assert "standin is being built already" in second.text()


# The link and the lock.


@pytest.fixture
def turn(tmp_path: Path) -> Turn:
    (tmp_path / "run").mkdir(mode=0o700)
    return Turn(tmp_path, "p", "fail", "default", "auto", {"XDG_RUNTIME_DIR": str(tmp_path / "run")})


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Workspace]]:
    made = [workspace.create(tmp_path / "workspaces", [], clear=False) for _ in range(2)]
    yield made
    for place in made:
        place.remove()


def test_one_at_a_time(turn: Turn, places: list[Workspace]) -> None:
    first, second = places
    assert not turn.await_it()
    assert turn.outlook() == ("", None)
    turn.claim(first)
    with pytest.raises(Taken):
        turn.claim(second)
    with pytest.raises(BuildRunning, match=rf"^p is being built already: build {first.id}, for \d+ s$"):
        turn.await_it()
    assert str(turn.outlook()[1]).startswith(f"p is being built already: build {first.id}")
    said, end = replace(turn, mode="wait").outlook()
    assert end is None and said.endswith("this one would wait for its end (on-running)")
    linked = Turn(turn.place / "link", "p", "fail", "default", "auto", turn.environ)
    linked.place.symlink_to(turn.place)
    with pytest.raises(Taken):
        linked.claim(second)
    Turn(turn.place / "run", "p", "fail", "default", "auto", turn.environ).claim(second)
    first.remove()
    assert not turn.await_it()


def test_what_a_killed_build_leaves_blocks_nobody(turn: Turn, places: list[Workspace]) -> None:
    first, second = places
    turn.claim(first)
    os.close(first.lock)  # as the kernel does
    first.lock = -1
    assert not turn.await_it()
    turn.claim(second)
    first.remove()  # by who finds it: the turn is another's by now
    with pytest.raises(BuildRunning):
        turn.await_it()
    second.remove()
    assert not turn.await_it()


def test_what_cannot_be_replaced_is_an_error(
    turn: Turn, places: list[Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    places[0].socket.touch()
    turn.claim(places[0])
    stuck = ending.Outcome("0a1b", 2, ["nvcc (pid 7) lives"])
    monkeypatch.setattr(ending, "end", lambda *_: stuck)
    with pytest.raises(SupervisionError) as caught:
        replace(turn, mode="replace").await_it()
    assert (
        str(caught.value) == "the earlier build 0a1b is not all clear: 2 processes ended, but nvcc (pid 7) lives"
    )
    assert caught.value.hint == f"End it by hand: safe-ext-build kill {places[0].id}"


def test_where_no_turn_can_be_noted_it_is_ours(turn: Turn, places: list[Workspace], tmp_path: Path) -> None:
    (tmp_path / "run" / "safe-ext-build" / "neighbours").mkdir(parents=True, mode=0o700)
    (tmp_path / "run" / "safe-ext-build").chmod(0o700)
    (tmp_path / "run" / "safe-ext-build" / "neighbours" / "turns").touch()
    for place in places:
        turn.claim(place)
    assert not turn.await_it()
