"""A build of ours inside of another one of ours: who ends the outer one has nothing left of the inner one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kill_harness import MARKER, PROMISE, Build, Project, started

from safe_ext_build.supervise import workspace
from safe_ext_build.supervise.processes import ID_VARIABLE

SLOW = {"a": "seconds=60 stubborn=1 escape=1", "b": "seconds=60 stubborn=1"}


def within(project: Project, elsewhere: Path | None = None, *, wiped: bool = False) -> list[str]:
    """`run -- pip wheel`; `elsewhere`: where the inner build has its workspaces. `wiped`: nothing is left to it of
    the outer one's environment."""
    inner = project.pip()
    if wiped:
        kept = {**project.environ(), MARKER: "$SEB_KILL_TEST", "SAFE_EXT_BUILD_WORKSPACE_DIR": str(elsewhere)}
        given = " ".join(f'"{name}={value}"' for name, value in kept.items())
        inner = ["sh", "-c", f"exec env -i {given} {shlex.join(inner)}"]
    elif elsewhere:
        variable = f"SAFE_EXT_BUILD_WORKSPACE_DIR={elsewhere}"
        inner = ["sh", "-c", f"{variable} exec {shlex.join(inner)}"]
    return [sys.executable, "-m", "safe_ext_build", "run", "--", *inner]


def assert_cleared(build: Build, *roots: Path) -> None:
    seconds = build.seconds_to_clear()
    assert seconds <= PROMISE, f"{seconds:.1f} s; still there: {build.names()}\n{build.text()}"
    deadline = time.monotonic() + PROMISE
    while left := [path for root in roots for path in root.iterdir() if path.name != ".lock"]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.mark.frontend
@pytest.mark.parametrize(
    ("victim", "number"),
    [("frontend", signal.SIGKILL), ("frontend", signal.SIGTERM), ("seb-super", signal.SIGKILL)],
)
@pytest.mark.parametrize("how", ["beside", "elsewhere", "wiped"])
def test_the_outer_build_is_hit(project: Project, victim: str, number: int, how: str) -> None:
    project.write_sources(SLOW)
    elsewhere = project.scratch / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    command = within(project, elsewhere if how != "beside" else None, wiped=how == "wiped")
    with started(project, command) as build:
        build.wait_for("cicc", 2)
        assert len(build.named("seb-super")) == 2
        build.hit(victim, number)
        assert_cleared(build, project.workspaces, elsewhere)


@pytest.fixture
def outer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> workspace.Workspace:
    made = workspace.create(tmp_path / "outer", [])
    monkeypatch.setenv(workspace.WITHIN_VARIABLE, str(made.path))
    return made


def test_an_inner_build_that_was_ended_goes_with_the_outer(outer: workspace.Workspace, tmp_path: Path) -> None:
    inner = workspace.create(tmp_path / "inner", [])
    shims = tmp_path / "shims" / inner.id
    shims.mkdir(parents=True)
    (inner.path / "shims").symlink_to(shims)
    environ = {ID_VARIABLE: inner.id, "PATH": os.environ["PATH"]}
    stray = subprocess.Popen(["sleep", "60"], env=environ)
    try:
        os.close(inner.lock)
        outer.remove()
        assert stray.poll() is not None
    finally:
        stray.kill()
        stray.wait()
    assert not inner.path.exists()
    assert not shims.exists()
    assert not outer.path.exists()


def test_one_that_lives_stays(outer: workspace.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_DYING", 0.0)
    inner = workspace.create(tmp_path / "inner", [])
    outer.remove()
    assert inner.path.is_dir()
    inner.remove()


def test_what_is_none_of_ours_stays(outer: workspace.Workspace, tmp_path: Path) -> None:
    kept = tmp_path / "data"
    (kept / "tmp").mkdir(parents=True)
    (outer.path / workspace.INNER).mkdir()
    (outer.path / workspace.INNER / "data").symlink_to(kept)
    outer.remove()
    assert (kept / "tmp").is_dir()


def test_an_outer_build_that_is_gone_or_never_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    for place in (tmp_path / "gone", tmp_path / "data", Path("relative")):
        monkeypatch.setenv(workspace.WITHIN_VARIABLE, str(place))
        workspace.create(tmp_path / "root", []).remove()
    assert list((tmp_path / "data").iterdir()) == []
