"""While tools are still asked what they are: whatever dies, nothing of it lives on, and no file stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kill_harness import PROMISE, Build, Project, started

from safe_ext_build.supervise import processes

pytestmark = pytest.mark.frontend

SETUP = "from torch.utils.cpp_extension import CUDAExtension\n"
# What nvcc and a wrapper of it do at their worst: children of several kinds that hang, files among the temporary.
NVCC = """#!/bin/sh
trap '' INT TERM HUP
echo half > "${TMPDIR:-/tmp}/tmpxft_$$"
setsid sleep 61 &
sleep 62 &
env -i "$(command -v setsid)" "$(command -v sleep)" 64 & echo $! > "$WIPED"
sleep 63
"""


@pytest.fixture
def hanging(project: Project) -> Project:
    """A project for a torch of CUDA, and an nvcc that hangs, and so do its children."""
    (project.root / "setup.py").write_text(SETUP)
    torch = project.scratch / "site" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").touch()
    (torch / "version.py").write_text("__version__ = '2.14.1+cu130'\ncuda = '13.0'\nhip = None\n")
    nvcc = project.scratch / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    found = {
        name: os.pathsep.join(filter(None, [first, os.environ.get(name)]))
        for name, first in {"PATH": str(nvcc.parent), "PYTHONPATH": str(torch.parent)}.items()
    }
    return replace(project, variables={**project.variables, **found, "WIPED": str(project.scratch / "wiped")})


def wait_for_probe(build: Build) -> None:
    build.wait_for("sleep", 3)
    build.wait_until(lambda: bool(temporary(build.project)), "a temporary file")


def temporary(project: Project) -> list[Path]:
    return [*project.workspaces.rglob("tmpxft_*"), *project.temp.rglob("tmpxft_*")]


def assert_cleared(build: Build) -> None:
    seconds = build.seconds_to_clear(frontend=build.hit_frontend)
    assert seconds <= PROMISE, f"{seconds:.1f} s; still there: {build.names()}\n{build.text()}"
    deadline = time.monotonic() + PROMISE
    while build.leftovers() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert build.leftovers() == []
    wiped = build.project.scratch / "wiped"
    if wiped.exists():
        process = processes.read(int(wiped.read_text()))
        assert process is None or process.state in "ZX", "its environment did not tell whose it is"


@pytest.mark.parametrize(
    ("tool", "victim", "name"),
    [
        ("uv", "frontend", "KILL"),
        ("pip", "hook", "KILL"),
        ("uv", "frontend+hook", "KILL"),
        ("uv", "hook", "TERM"),
        ("uv", "group", "KILL"),
        ("pip", "group", "INT"),
    ],
)
def test_killed_while_nvcc_is_asked(hanging: Project, tool: str, victim: str, name: str) -> None:
    with started(hanging, hanging.frontend(tool)) as build:
        wait_for_probe(build)
        build.hit(victim, int(getattr(signal, f"SIG{name}")))
        assert_cleared(build)


@pytest.mark.parametrize("victim", ["frontend", "hook", "frontend+hook"])
def test_killed_while_the_hook_process_is_stopped(hanging: Project, victim: str) -> None:
    with started(hanging, hanging.uv()) as build:
        wait_for_probe(build)
        os.kill(build.victims("hook")[0], signal.SIGSTOP)
        build.hit(victim, signal.SIGKILL)
        assert_cleared(build)


@pytest.mark.parametrize("name", ["KILL", "TERM", "INT"])
def test_a_command_that_only_asks(hanging: Project, name: str) -> None:
    """It has no workspace of its own, and no frontend."""
    with started(hanging, [sys.executable, "-m", "safe_ext_build", "plan"]) as build:
        wait_for_probe(build)
        build.hit("frontend", int(getattr(signal, f"SIG{name}")))
        assert_cleared(build)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.03, 0.06, 0.1])
def test_killed_as_soon_as_there_is_a_workspace(project: Project, seconds: float) -> None:
    """Before there is a supervisor, or while it starts; hook process and frontend at once."""
    with started(project, project.uv()) as build:
        deadline = time.monotonic() + 60
        while not any(path.is_dir() for path in project.workspaces.iterdir()):
            assert time.monotonic() < deadline, build.text()
        time.sleep(seconds)
        build.hit("frontend+hook", signal.SIGKILL)
        assert_cleared(build)


def test_supervisor_killed_while_everybody_else_who_could_clear_up_is_stopped(project: Project) -> None:
    """The compiles end by their leases; the files go when the hook process ends, or goes on."""
    project.write_sources({"a": "seconds=60 stubborn=1", "b": "seconds=60 stubborn=1"})
    with started(project, project.uv()) as build:
        build.wait_for("cicc", 2)
        hook, guard = build.victims("hook+seb-guard")
        for pid in (hook, guard):
            os.kill(pid, signal.SIGSTOP)
        build.hit("seb-super", signal.SIGKILL)
        deadline = time.monotonic() + PROMISE
        while {"cicc", "nvcc", "ninja", "seb-builder"} & set(build.names()):
            assert time.monotonic() < deadline, build.names()
            time.sleep(0.02)
        build.hit("hook", signal.SIGKILL)
        while list(project.workspaces.glob("*/")):
            assert time.monotonic() < build.hit_at + PROMISE
            time.sleep(0.02)
        os.kill(guard, signal.SIGCONT)
        assert_cleared(build)


def wards(build: Build) -> list[int]:
    build.wait_for("seb-ward")
    return build.victims("seb-ward")


@pytest.mark.parametrize("watcher", ["seb-ward", "seb-guard"])
def test_who_watches_and_was_stopped_goes_with_the_build(project: Project, watcher: str) -> None:
    with started(project, project.hook()) as build:
        build.wait_for(watcher)
        os.kill(build.victims(watcher)[0], signal.SIGSTOP)
        assert build.process.wait(60) == 0
        build.mark("frontend")
        assert_cleared(build)


def test_a_supervisor_and_its_guard_were_stopped_when_the_hook_process_was_killed(project: Project) -> None:
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 1)
        for pid in build.victims("seb-super+seb-guard"):
            os.kill(pid, signal.SIGSTOP)
        build.hit("frontend", signal.SIGKILL)
        assert_cleared(build)


def test_a_ward_that_was_stopped_is_woken_when_its_hook_process_was_killed(project: Project) -> None:
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 1)
        (ward,) = wards(build)
        os.kill(ward, signal.SIGSTOP)
        build.hit("frontend", signal.SIGKILL)
        assert_cleared(build)


@pytest.mark.parametrize("by", ["the next build", "kill --stale"])
def test_a_ward_that_nobody_has_continued_is_ended(project: Project, by: str) -> None:
    kill = [sys.executable, "-m", "safe_ext_build", "kill", "--stale"]
    command = project.hook() if by == "the next build" else kill
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 1)
        (ward,) = wards(build)
        os.kill(ward, signal.SIGSTOP)
        build.hit("frontend+seb-guard+seb-super", signal.SIGKILL)
        deadline = time.monotonic() + PROMISE
        while set(build.names()) != {"seb-ward"}:
            assert time.monotonic() < deadline, build.names()
            time.sleep(0.02)
        done = subprocess.run(
            command, cwd=project.root, env=project.environ(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        if by == "kill --stale":
            assert "is all clear: 1 process ended, workspace removed" in done.stderr
        build.mark("frontend")
        assert_cleared(build)
