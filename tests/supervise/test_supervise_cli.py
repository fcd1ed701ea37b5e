"""`safe-ext-build wheel` is hit while it compiles: nothing runs on, and its directory goes."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from kill_harness import PROMISE, Build, Project, build_again, started

pytestmark = pytest.mark.frontend

SLOW = {"a": "seconds=60 stubborn=1 escape=1"}


@pytest.fixture
def project(project: Project) -> Project:
    """The stand-in, for a build that has to install what it needs."""
    project.write_sources(SLOW)
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return Project(project.root, project.compiler, project.scratch, {**pip, "PIP_NO_INDEX": "0"})


def command(project: Project) -> list[str]:
    return [sys.executable, "-m", "safe_ext_build", "wheel", ".", "-o", str(project.wheels)]


def wait_for_compiler(build: Build) -> None:
    build.wait_until(lambda: bool(build.named("cicc")), "the compiler", seconds=120)


def test_the_command_is_stopped(project: Project) -> None:
    with started(project, command(project)) as build:
        wait_for_compiler(build)
        build.hit("frontend", signal.SIGTERM)
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.wait() == -signal.SIGTERM
        assert build.leftovers() == []
    assert list(project.wheels.iterdir()) == []


def test_interrupted_from_the_keyboard(project: Project) -> None:
    with started(project, command(project), terminal=True) as build:
        wait_for_compiler(build)
        build.press(b"\x03")
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.wait() == -signal.SIGINT
        assert build.leftovers() == []


def test_the_command_is_killed(project: Project) -> None:
    """Nothing runs on, and the next build finds nothing in its way."""
    with started(project, command(project)) as build:
        wait_for_compiler(build)
        build.hit("frontend", signal.SIGKILL)
        assert build.seconds_to_clear() <= PROMISE, build.names()
        build.wait()
    project.write_sources({"a": "seconds=0.05"})
    build_again(project)
    assert [path.name for path in project.workspaces.iterdir()] == [".lock"]
    assert build.leftovers() == []


def test_killed_while_it_installs(project: Project) -> None:
    """pip runs under a supervisor of ours, with a workspace of its own."""
    with started(project, command(project)) as build:
        build.wait_until(lambda: bool(build.named("seb-super")), "pip's supervisor")
        build.hit("frontend", signal.SIGKILL)
        assert build.seconds_to_clear() <= PROMISE, build.names()
        build.wait()
        assert [path.name for path in project.workspaces.iterdir()] == [".lock"]


@pytest.mark.parametrize("seconds", [0.1, 0.6])
def test_killed_while_its_hooks_start(project: Project, seconds: float) -> None:
    """They import us from an environment that goes away with the command."""
    with started(project, command(project)) as build:
        build.wait_until(lambda: bool(build.named("seb-super")), "pip's supervisor")
        build.wait_until(lambda: not build.named("seb-super"), "its end", seconds=120)
        time.sleep(seconds)
        build.hit("frontend", signal.SIGKILL)
        assert build.seconds_to_clear() <= PROMISE, build.names()
        build.wait()
        deadline = time.monotonic() + PROMISE
        while left := [path.name for path in project.workspaces.iterdir() if path.name != ".lock"]:
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
        assert "Traceback" not in build.text()
        assert "Error" not in build.text()
