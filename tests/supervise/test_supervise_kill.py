"""Whatever is hit, and however: within 3 seconds nothing of the build is left, and the next build goes on."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from kill_harness import PROMISE, Build, Bystanders, Project, build_again, number_of, started

pytestmark = pytest.mark.frontend

STUBBORN = "seconds=60 stubborn=1 escape=1"
PLAIN = "seconds=60"


def sources(slow: str) -> dict[str, str]:
    """One that is done when the signal comes, two that are being compiled, and one that is still to come."""
    return {"0_first": "seconds=0.05", "1_slow_a": slow, "1_slow_b": slow, "2_last": "seconds=0.05"}


def wait_for_compilers(build: Build) -> None:
    first = build.project.objects / "0_first.o"
    build.wait_until(first.exists, "the first object")
    build.wait_for("cicc", 2)


def assert_cleared(build: Build, bystanders: Bystanders) -> None:
    seconds = build.seconds_to_clear(frontend=build.hit_frontend)
    assert seconds <= PROMISE, f"{seconds:.1f} s; still there: {build.names()}\n{build.text()}"
    build.wait()
    assert build.leftovers() == []
    assert bystanders.dead() == []


def assert_next_build_reuses(project: Project) -> None:
    first = project.objects / "0_first.o"
    before = first.stat()
    for name in ("1_slow_a", "1_slow_b"):
        (project.root / "csrc" / f"{name}.cu").write_text("//! seconds=0.05\n")
    text = build_again(project)
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "0_first.cu" not in text.partition("running compile")[2].partition("installing to")[0], text
    built = sorted(path.stem for path in project.objects.glob("*.o"))
    assert built == ["0_first", "1_slow_a", "1_slow_b", "2_last"]
    assert project.half_written() == []


@pytest.mark.parametrize(
    ("tool", "victim", "name"),
    [
        ("pip", "frontend", "KILL"),
        ("uv", "frontend", "KILL"),
        ("pip", "frontend", "INT"),
        ("uv", "frontend", "TERM"),
        ("uv", "group", "KILL"),
        ("uv", "group", "HUP"),
        ("pip", "hook", "TERM"),
        ("uv", "hook", "TERM"),
        ("uv", "hook", "QUIT"),
        ("uv", "hook", "KILL"),
        ("uv", "seb-super", "KILL"),
        ("uv", "seb-super", "TERM"),
        ("uv", "seb-builder", "KILL"),
        ("uv", "seb-ninja", "QUIT"),
        ("uv", "ninja", "INT"),
        ("uv", "ninja", "KILL"),
        ("uv", "seb-job", "TERM"),
        ("uv", "seb-job", "KILL"),
        ("uv", "frontend+hook+seb-super", "KILL"),
    ],
)
def test_stubborn_compilers(project: Project, bystanders: Bystanders, tool: str, victim: str, name: str) -> None:
    """The compilers ignore INT, TERM and HUP, and each has a respawning daemon in a session of its own."""
    project.write_sources(sources(STUBBORN))
    with started(project, project.frontend(tool)) as build:
        wait_for_compilers(build)
        build.hit(victim, number_of(name))
        assert_cleared(build, bystanders)
        assert build.wait() == expected_status(tool, victim, name)
    assert_next_build_reuses(project)


def expected_status(tool: str, victim: str, name: str) -> int:
    """The frontend's own: pip exits 1 and uv 2 when a hook fails, however it fails."""
    if "frontend" not in victim and victim != "group":
        return {"pip": 1, "uv": 2}[tool]
    return 1 if (tool, name) == ("pip", "INT") else -number_of(name)


@pytest.mark.parametrize(
    ("victim", "name"), [("nvcc", "HUP"), ("nvcc", "KILL"), ("cicc", "INT"), ("cicc", "KILL")]
)
def test_a_compiler_killed_from_outside_ends_the_build(
    project: Project, bystanders: Bystanders, victim: str, name: str
) -> None:
    project.write_sources(sources(PLAIN))
    with started(project, project.uv()) as build:
        wait_for_compilers(build)
        build.hit(victim, number_of(name))
        assert_cleared(build, bystanders)
        assert build.wait() == 2
        text = build.text()
    assert "Traceback" not in text
    assert re.search(
        r"safe-ext-build: error\[SEB-5003\]: the build was stopped: the compiler of \S+/1_slow_[ab]\.cu was "
        rf"killed by signal {number_of(name):d}\n(.*\n)?.*safe-ext-build: hint: Somebody ended it, .*"
        r" Finished objects are kept and used again\.",
        text,
    ), text
    assert_next_build_reuses(project)


@pytest.mark.parametrize("how", ["INT", "QUIT", "HANGUP"])
def test_in_a_terminal(project: Project, bystanders: Bystanders, how: str) -> None:
    """pip in the foreground: what is typed goes to it and to the hook process at the same moment."""
    project.write_sources(sources(STUBBORN))
    with started(project, project.pip("-v"), terminal=True) as build:
        wait_for_compilers(build)
        if how == "HANGUP":
            build.hang_up()
        else:
            build.press({"INT": b"\x03", "QUIT": b"\x1c"}[how])
        assert_cleared(build, bystanders)
    assert_next_build_reuses(project)


def test_a_stopped_hook_whose_frontend_is_killed(project: Project, bystanders: Bystanders) -> None:
    project.write_sources(sources(STUBBORN))
    with started(project, project.uv()) as build:
        wait_for_compilers(build)
        os.kill(build.victims("hook")[0], signal.SIGSTOP)
        build.hit("frontend", signal.SIGKILL)
        assert_cleared(build, bystanders)


def test_a_stopped_supervisor_whose_frontend_is_killed(project: Project, bystanders: Bystanders) -> None:
    project.write_sources(sources(STUBBORN))
    with started(project, project.uv()) as build:
        wait_for_compilers(build)
        os.kill(build.victims("seb-super")[0], signal.SIGSTOP)
        build.hit("frontend", signal.SIGKILL)
        assert_cleared(build, bystanders)


def test_impatience(project: Project, bystanders: Bystanders) -> None:
    """TERM to the hook process, and KILL while it clears up."""
    project.write_sources(sources(STUBBORN))
    with started(project, project.uv()) as build:
        wait_for_compilers(build)
        hook = build.victims("hook")[0]
        build.mark("hook")
        os.kill(hook, signal.SIGTERM)
        time.sleep(0.2)
        os.kill(hook, signal.SIGKILL)
        assert_cleared(build, bystanders)


def test_an_escapee_without_our_marker(project: Project, bystanders: Bystanders) -> None:
    """Its environment is wiped and it has a session of its own: only its descent tells whose it is."""
    project.write_sources(sources("seconds=60 stubborn=1 escape=2"))
    with started(project, project.uv()) as build:
        wait_for_compilers(build)
        build.wait_for("escapee", 2)
        build.hit("hook", signal.SIGTERM)
        assert_cleared(build, bystanders)


def test_an_escapee_does_not_outlive_a_build_that_succeeds(project: Project, bystanders: Bystanders) -> None:
    project.write_sources({"a": "seconds=0.1 escape=2", "b": "seconds=0.1 escape=1"})
    with started(project, project.uv()) as build:
        assert build.wait() == 0, build.text()
        build.mark("")
        assert_cleared(build, bystanders)


def test_the_guard_is_replaced(project: Project) -> None:
    """The guard is for when the others are gone: without it the build goes on, under another."""
    project.write_sources({"a": "seconds=1.5", "b": "seconds=1.5"})
    with started(project, project.uv()) as build:
        build.wait_for("cicc", 2)
        guard = build.victims("seb-guard")[0]
        build.hit("seb-guard", signal.SIGKILL)
        build.wait_until(lambda: any(p.pid != guard for p in build.named("seb-guard")), "another guard")
        assert build.wait() == 0, build.text()
        assert build.seconds_to_clear() <= PROMISE
        assert build.leftovers() == []
    assert len(list(project.wheels.glob("*.whl"))) == 1


@pytest.mark.parametrize(("victim", "name"), [("frontend", "KILL"), ("hook", "TERM"), ("seb-builder", "INT")])
def test_while_the_setup_script_sleeps(project: Project, bystanders: Bystanders, victim: str, name: str) -> None:
    """In the metadata hook, before there is any compiler."""
    sleepy = Project(project.root, project.compiler, project.scratch, {"STANDIN_SLEEP": "60"})
    with started(sleepy, sleepy.pip()) as build:
        build.wait_for("seb-builder")
        build.hit(victim, number_of(name))
        assert_cleared(build, bystanders)
        assert build.wait() != 0
