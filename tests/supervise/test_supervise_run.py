"""`safe-ext-build run`: a command gets the plan, the scheduler and the supervision, and ends as it would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kill_harness import PROMISE, Build, Bystanders, Project, started

from safe_ext_build.cli import run as run_
from safe_ext_build.machine.neighbours import living

PLAN = "safe-ext-build: at most 2 compiles at a time, as MAX_JOBS in the environment says"
SETUP = (sys.executable, "setup.py", "build")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "safe_ext_build", "run", "--", *words]


def run(
    project: Project, *words: str, given: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=cwd or project.root,
        env=project.environ(),
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_setup_script(project: Project) -> None:
    """Whose pyproject.toml may say what it will: no frontend and no backend is run."""
    (project.root / "pyproject.toml").unlink()
    project.write_sources({"a": "seconds=0.1", "b": "seconds=0.1"})
    done = run(project, *SETUP)
    assert done.returncode == 0, done.stderr
    assert PLAN in done.stderr
    assert "[1/2] seb-job " in done.stdout
    assert "safe-ext-build: compiled 2 objects in " in done.stderr
    assert done.stderr.index(PLAN) < done.stderr.index("compiled 2 objects")
    (report,) = (project.scratch / "cache" / "safe-ext-build" / "reports").glob("*.json")
    assert '"hook":"command"' in report.read_text()
    assert [path.name for path in project.workspaces.iterdir()] == [".lock"]
    assert run(project, *SETUP).stdout.count("ninja: no work to do.") == 1


def test_elsewhere_than_in_a_project(project: Project) -> None:
    """What it builds is found below a directory of its own, and its objects are nobody else's."""
    check = 'test "$(command -v ninja)" = "$SAFE_EXT_BUILD_SHIMS/ninja"'
    script = f"{check} && cd {project.root} && exec {' '.join(SETUP)}"
    done = run(project, "sh", "-c", script, cwd=project.scratch)
    assert done.returncode == 0, done.stderr
    assert "compiled 3 objects" in done.stderr
    assert not (project.scratch / "cache" / "safe-ext-build" / "objects").exists()


def test_exit_status_input_and_output(project: Project) -> None:
    done = run(project, "sh", "-c", "read line; echo out $line; echo err >&2; exit 7", given="in\n")
    assert (done.returncode, done.stdout) == (7, "out in\n")
    assert done.stderr.endswith("err\n")
    done = run(project, "sh", "-c", "kill -TERM $$")
    assert done.returncode == -signal.SIGTERM
    assert "error[" not in done.stderr
    assert run(project, "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL
    done = run(project, "no-such-command")
    assert done.returncode == 127
    assert "safe-ext-build: error[SEB-8002]: there is no command no-such-command\n" in done.stderr


def test_a_compile_that_fails(project: Project) -> None:
    project.write_sources({"a": "fail=3"})
    done = run(project, *SETUP)
    assert done.returncode == 1
    assert "safe-ext-build: compiled" not in done.stderr


def wait_for_compilers(build: Build) -> None:
    build.wait_for("cicc", 2)


@pytest.mark.parametrize("how", ["INT", "KILL"])
def test_it_is_hit(project: Project, bystanders: Bystanders, how: str) -> None:
    project.write_sources({"a": "seconds=60 stubborn=1 escape=2", "b": "seconds=60 stubborn=1"})
    with started(project, command(*SETUP), terminal=how == "INT") as build:
        wait_for_compilers(build)
        if how == "INT":
            build.press(b"\x03")
        else:
            build.hit("frontend", getattr(signal, f"SIG{how}"))
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.wait() == -getattr(signal, f"SIG{how}")
        assert build.leftovers() == []
    assert bystanders.dead() == []


def test_an_interrupted_command_may_tidy_up(project: Project) -> None:
    script = "trap 'echo tidy; exit 3' INT; echo ready; while :; do sleep 0.1; done"
    with started(project, command("sh", "-c", script)) as build:
        build.wait_until(lambda: "ready\n" in build.text(), "the command")
        (record,) = living(project.environ())
        assert record.project == "project"
        build.hit("frontend", signal.SIGINT)
        assert build.wait() == -signal.SIGINT
        assert "tidy\n" in build.text()


def test_whose_python_a_command_is(tmp_path: Path) -> None:
    script = tmp_path / "pip"
    for line, python in (
        ("#!/opt/env/bin/python3.11", "/opt/env/bin/python3.11"),
        ("#!/opt/env/bin/python -I", "/opt/env/bin/python"),
        ("#!/bin/sh", None),
        ("\x7fELF", None),
    ):
        script.write_text(f"{line}\n")
        assert run_.interpreter(script) == python
    assert run_.interpreter(Path(sys.executable)) == sys.executable
    assert run_.interpreter(Path(os.devnull)) is None
