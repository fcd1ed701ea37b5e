"""Builds whose parent went away where nobody was looking: before the hook began, and between ninja and a job."""

from __future__ import annotations

import os
import shlex
import signal
import sys

import psutil
import pytest
from kill_harness import PROMISE, Project, started

SLOW = {"a": "seconds=60", "b": "seconds=60"}


def test_the_frontend_is_dead_before_the_hook_begins(project: Project) -> None:
    """The hook process is then a child of whoever collects orphans, which is no frontend."""
    project.write_sources(SLOW)
    command = ["sh", "-c", f"{shlex.join(project.hook())} & exit 0"]
    with started(project, command) as build:
        build.mark("frontend")
        assert build.process.wait(10) == 0
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.leftovers() == []
    assert not project.objects.exists()


def test_the_shell_between_ninja_and_a_job(project: Project) -> None:
    """ninja would wait for the job's output for as long as the compiler runs."""
    project.write_sources(SLOW)
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 2)
        shells = [process for process in build.named("sh") if _parent(process) == "ninja"]
        if not shells:
            pytest.skip("the shell of this system executes its last command in its own place")
        build.mark("sh")
        shells[0].send_signal(signal.SIGKILL)
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert "was killed" in build.text()
        assert build.leftovers() == []


def _parent(process: psutil.Process) -> str:
    parent = process.parent()
    return parent.name() if parent else ""


def test_a_stopped_supervisor_whose_hook_process_is_killed(project: Project) -> None:
    """It cannot see that by itself: the guard lets it go on."""
    project.write_sources(SLOW)
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 2)
        (supervisor,) = build.victims("seb-super")
        os.kill(supervisor, signal.SIGSTOP)
        build.hit("frontend", signal.SIGKILL)  # which is the hook process itself here
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.leftovers() == []


@pytest.mark.parametrize("how", ["trap '' CHLD", "ignored and blocked"])
def test_who_started_us_does_not_want_to_hear_of_children(project: Project, how: str) -> None:
    project.write_sources({"a": "seconds=0.1"})
    block = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD}); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    shell = ["sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"]
    command = shell if how.startswith("trap") else [sys.executable, "-c", block]
    with started(project, [*command, *project.hook()]) as build:
        assert build.wait(30) == 0, build.text()
        assert build.leftovers() == []
