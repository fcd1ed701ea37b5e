"""A command of ours that is interrupted, wherever that finds it, dies by the signal, and shows no traceback."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kill_harness import PROMISE, Build, Project, started

from safe_ext_build.cli import explain, main, session
from safe_ext_build.supervise import hook

TOOL = """#!/bin/sh
echo asked > "$ASKED"
exec sleep 60
"""
COMMANDS = (["doctor"], ["plan"], ["run", "--", "true"])


@pytest.fixture
def hanging(project: Project) -> Project:
    """An nvcc that hangs when it is asked what it is."""
    nvcc = project.scratch / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(TOOL)
    nvcc.chmod(0o755)
    path = os.pathsep.join([str(nvcc.parent), os.environ["PATH"]])
    return replace(project, variables={**project.variables, "PATH": path, "ASKED": str(asked(project))})


def asked(project: Project) -> Path:
    return project.scratch / "asked"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "safe_ext_build", *words]


def assert_quiet(build: Build, number: int) -> None:
    assert build.seconds_to_clear() <= PROMISE, build.names()
    assert build.wait() == -number
    assert "Traceback" not in build.text()
    assert build.leftovers() == []


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_a_tool_is_asked(hanging: Project, words: list[str], number: int) -> None:
    with started(hanging, command(*words)) as build:
        build.wait_until(asked(hanging).exists, "the question")
        build.hit("frontend", number)
        assert_quiet(build, number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_while_doctor_tries_a_workspace(project: Project, number: int) -> None:
    """That of a build, beside the one for its questions: it is looked after, too."""
    code = (
        "import sys, time; from safe_ext_build.cli import main; from safe_ext_build.supervise import workspace;"
        "workspace.furnish = lambda *_: time.sleep(60); sys.exit(main.main(['doctor']))"
    )
    with started(project, [sys.executable, "-c", code]) as build:
        build.wait_until(lambda: any(project.workspaces.glob("*/tmp")), "a workspace")
        build.hit("frontend", number)
        assert_quiet(build, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_a_wheel_installs_what_it_needs(project: Project, number: int) -> None:
    """Under a supervisor, whose signals are not the command's own; the pip is a stand-in that hangs."""
    pip = project.scratch / "pip"
    pip.write_text(TOOL)
    pip.chmod(0o755)
    code = (
        "import sys; from safe_ext_build.cli import environment, main; environment.sys = type(sys)('sys');"
        f"environment.sys.executable = {str(pip)!r}; sys.exit(main.main(['wheel', '.']))"
    )
    project = replace(project, variables={**project.variables, "ASKED": str(asked(project))})
    with started(project, [sys.executable, "-c", code]) as build:
        build.wait_until(asked(project).exists, "pip")
        build.hit("frontend", number)
        assert_quiet(build, number)


@pytest.mark.parametrize("seconds", [0.05, 0.15, 0.3, 0.5])
def test_at_any_moment(project: Project, seconds: float) -> None:
    """Also while our modules are loaded. What comes before is Python's own start."""
    start = "import sys; sys.argv = ['x', 'plan']; print('here', flush=True)"
    code = f"{start}; from safe_ext_build.__main__ import main; sys.exit(main())"
    with started(project, [sys.executable, "-c", code]) as build:
        build.wait_until(lambda: "here" in build.text(), "its start")
        time.sleep(seconds)
        if build.process.poll() is None:
            build.hit("frontend", signal.SIGINT)
        build.wait()
        assert "Traceback" not in build.text()


@pytest.mark.parametrize(
    ("raised", "number"),
    [(KeyboardInterrupt(), signal.SIGINT), (session.Interrupted(signal.SIGHUP), signal.SIGHUP)],
)
def test_the_boundary(raised: BaseException, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise raised

    class Died(Exception):
        pass

    def die_by(signal_number: int) -> None:
        raise Died(signal_number)

    monkeypatch.setattr(explain, "run", interrupted)
    monkeypatch.setattr(hook, "die_by", die_by)
    with pytest.raises(Died) as died:
        main.main(["explain", "SEB-1001"])
    assert died.value.args == (number,)
