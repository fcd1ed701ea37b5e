"""Whatever is hit, and however: within 3 seconds nothing of the build is left, and the next build goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest
from kill_harness import PROMISE, Build, Bystanders, Project, build_again, number_of, started

pytestmark = pytest.mark.frontend

STUBBORN = "seconds=60 stubborn=1 escape=1"
PLAIN = "seconds=60"


def sources(slow: str) -> dict[str, str]:
    """One that is done when the signal comes, two that are being compiled, and one that is still to come."""
    return {"first": "seconds=0.05", "slow_a": slow, "slow_b": slow, "last": "seconds=0.05"}


def wait_for_compilers(build: Build) -> None:
    first = build.project.objects / "first.o"
    build.wait_for("cicc", 2)
    build.wait_until(first.exists, "the first object")


def assert_cleared(build: Build, bystanders: Bystanders) -> None:
    seconds = build.seconds_to_clear()
    assert seconds <= PROMISE, f"{seconds:.1f} s; still there: {build.names()}\n{build.text()}"
    # A subreaper that we do not know of may still be removing the workspace when the last process is gone.
    assert build.leftovers() == []
    assert bystanders.dead() == []


def assert_next_build_reuses(project: Project) -> None:
    first = project.objects / "first.o"
    before = first.stat()
    for name in ("slow_a", "slow_b"):
        (project.root / "csrc" / f"{name}.cu").write_text("//! seconds=0.05\n")
    text = build_again(project)
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "first.cu" not in text.partition("running compile")[2].partition("installing to")[0], text
    assert sorted(path.name for path in project.objects.glob("*.o")) == [
        "first.o",
        "last.o",
        "slow_a.o",
        "slow_b.o",
    ]
    assert project.half_written() == []


@pytest.mark.parametrize(
    ("victim", "name"),
    [
        ("frontend", "KILL"),
        ("frontend", "TERM"),
        ("frontend", "INT"),
        ("group", "TERM"),
        ("group", "KILL"),
        ("hook", "HUP"),
        ("hook", "QUIT"),
        ("hook", "KILL"),
        ("seb-super", "KILL"),
        ("seb-super", "TERM"),
        ("seb-super", "INT"),
        ("seb-builder", "KILL"),
        ("seb-builder", "INT"),
        ("seb-ninja", "QUIT"),
        ("seb-ninja", "KILL"),
        ("ninja", "INT"),
        ("ninja", "HUP"),
        ("ninja", "KILL"),
        ("seb-job", "TERM"),
        ("seb-job", "KILL"),
        ("frontend+hook+seb-super", "KILL"),
    ],
)
def test_stubborn_compilers(project: Project, bystanders: Bystanders, victim: str, name: str) -> None:
    """The compilers ignore INT, TERM and HUP, and each has a respawning daemon in a session of its own."""
    project.write_sources(sources(STUBBORN))
    with started(project, project.pip()) as build:
        wait_for_compilers(build)
        build.hit(victim, number_of(name))
        assert_cleared(build, bystanders)
        assert build.wait() != 0
    assert_next_build_reuses(project)


@pytest.mark.parametrize(
    ("victim", "name"), [("nvcc", "KILL"), ("nvcc", "HUP"), ("cicc", "INT"), ("cicc", "TERM"), ("cicc", "KILL")]
)
def test_a_compiler_killed_from_outside_ends_the_build(
    project: Project, bystanders: Bystanders, victim: str, name: str
) -> None:
    project.write_sources(sources(PLAIN))
    with started(project, project.pip()) as build:
        wait_for_compilers(build)
        build.hit(victim, number_of(name))
        assert_cleared(build, bystanders)
        assert build.wait() == 1
        assert "Traceback" not in build.text().partition("note: This error originates")[0]
        assert "the build was stopped: the compiler of" in build.text()
    assert_next_build_reuses(project)


@pytest.mark.parametrize("how", ["INT", "QUIT", "HANGUP", "frontend TERM"])
def test_in_a_terminal(project: Project, bystanders: Bystanders, how: str) -> None:
    """pip in the foreground: what is typed goes to it and to the hook process at the same moment."""
    project.write_sources(sources(STUBBORN))
    with started(project, project.pip("-v"), terminal=True) as build:
        wait_for_compilers(build)
        if how == "HANGUP":
            build.hang_up()
        elif how == "frontend TERM":
            build.hit("frontend", signal.SIGTERM)
        else:
            build.press({"INT": b"\x03", "QUIT": b"\x1c"}[how])
        assert_cleared(build, bystanders)
    assert_next_build_reuses(project)


def test_a_stopped_hook_whose_frontend_is_killed(project: Project, bystanders: Bystanders) -> None:
    project.write_sources(sources(STUBBORN))
    with started(project, project.pip()) as build:
        wait_for_compilers(build)
        os.kill(build.victims("hook")[0], signal.SIGSTOP)
        build.hit("frontend", signal.SIGKILL)
        assert_cleared(build, bystanders)


@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_a_stopped_supervisor_whose_frontend_is_killed(
    project: Project, bystanders: Bystanders, name: str
) -> None:
    project.write_sources(sources(STUBBORN))
    with started(project, project.pip()) as build:
        wait_for_compilers(build)
        os.kill(build.victims("seb-super")[0], signal.SIGSTOP)
        build.hit("frontend", number_of(name))
        assert_cleared(build, bystanders)


def test_impatience(project: Project, bystanders: Bystanders) -> None:
    """TERM to the hook process, and KILL while it clears up."""
    project.write_sources(sources(STUBBORN))
    with started(project, project.pip()) as build:
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
    with started(project, project.pip()) as build:
        wait_for_compilers(build)
        build.wait_for("escapee", 2)
        build.hit("hook", signal.SIGTERM)
        assert_cleared(build, bystanders)


def test_an_escapee_does_not_outlive_a_build_that_succeeds(project: Project, bystanders: Bystanders) -> None:
    project.write_sources({"a": "seconds=0.1 escape=2", "b": "seconds=0.1 escape=1"})
    with started(project, project.pip()) as build:
        assert build.wait() == 0, build.text()
        build.mark("")
        assert_cleared(build, bystanders)


def test_the_guard_is_replaced(project: Project) -> None:
    """The guard is for when the others are gone: without it the build goes on, under another."""
    project.write_sources({"a": "seconds=1.5", "b": "seconds=1.5"})
    with started(project, project.pip()) as build:
        build.wait_for("cicc", 2)
        guard = build.victims("seb-guard")[0]
        build.hit("seb-guard", signal.SIGKILL)
        build.wait_until(lambda: any(p.pid != guard for p in build.named("seb-guard")), "another guard")
        assert build.wait() == 0, build.text()
        assert build.seconds_to_clear() <= PROMISE
        assert build.leftovers() == []
    assert [path.suffix for path in project.wheels.iterdir()] == [".whl"]


@pytest.mark.parametrize(
    ("victim", "name"), [("frontend", "KILL"), ("frontend", "INT"), ("hook", "TERM"), ("seb-builder", "KILL")]
)
def test_while_the_setup_script_sleeps(
    project: Project, bystanders: Bystanders, victim: str, name: str
) -> None:
    """In the metadata hook, before there is any compiler."""
    sleepy = Project(project.root, project.compiler, project.scratch, {"STANDIN_SLEEP": "60"})
    with started(sleepy, sleepy.pip()) as build:
        build.wait_for("seb-builder")
        build.hit(victim, number_of(name))
        assert_cleared(build, bystanders)
        assert build.wait() != 0


@pytest.mark.parametrize("victim", ["frontend", "hook", "group"])
def test_uv(project: Project, bystanders: Bystanders, victim: str) -> None:
    project.write_sources(sources(STUBBORN))
    with started(project, project.uv()) as build:
        wait_for_compilers(build)
        build.hit(victim, signal.SIGTERM)
        assert_cleared(build, bystanders)
        assert build.wait() == (2 if victim == "hook" else -signal.SIGTERM)
    assert_next_build_reuses(project)
