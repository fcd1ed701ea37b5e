"""What is deleted, full or in the way: a clear line, and never a traceback of ours."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from kill_harness import Project, build_again

# Before setuptools gets to work, the setup script does this.
DELETES_WORKSPACE = """import os, shutil
shutil.rmtree(os.path.dirname(os.environ["TMPDIR"]))
raise SystemExit(3)
"""
DELETES_PROJECT = "import os, shutil; shutil.rmtree(os.getcwd())\n"


def run(project: Project, command: list[str]) -> str:
    """Run what is to fail; returns what it said."""
    done = subprocess.run(
        command,
        cwd=project.root,
        env=project.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout
    assert [path.name for path in project.workspaces.iterdir() if path.name != ".lock"] == []
    return done.stdout


def write_first(project: Project, line: str) -> None:
    script = project.root / "setup.py"
    script.write_text(line + script.read_text())


def test_a_directory_that_is_gone(project: Project) -> None:
    said = run(project, ["sh", "-c", f'rm -r "$PWD" && exec {shlex.join(project.hook())}'])
    assert "safe-ext-build: error[SEB-4014]: the current directory does not exist any more" in said


def test_a_project_that_is_deleted_while_it_is_built(project: Project) -> None:
    write_first(project, DELETES_PROJECT)
    assert "hint: The project's directory was deleted while the build ran." in run(project, project.hook())


def test_a_workspace_that_is_deleted_while_it_is_used(project: Project) -> None:
    write_first(project, DELETES_WORKSPACE)
    said = run(project, project.hook())
    assert f"safe-ext-build: error[SEB-5016]: {project.workspaces}/" in said
    assert "was deleted while it ran" in said and "killed" not in said


@pytest.mark.parametrize("name", ["", "objects", "reports", "history.sqlite", ".lock", "shims"])
def test_something_else_in_the_place_of_a_cache(project: Project, name: str) -> None:
    """A cache is never the reason why a build fails. Editable: that keeps its objects in the cache."""
    project.write_sources({"a": "seconds=0.05"})
    path = project.scratch / "cache" / "safe-ext-build" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if "." in name:
        path.mkdir()
    else:
        path.write_text("")
    text = build_again(project, "build_editable")
    assert "compiled 1 object" in text and "Traceback" not in text
    if name == "objects":
        assert f"safe-ext-build: no objects are kept in {path}/" in text
    assert path.is_dir() if "." in name else path.read_text() == ""


def test_a_home_that_does_not_exist_is_not_made(project: Project) -> None:
    home = project.scratch / "no" / "home"
    build_again(replace(project, variables={**project.variables, "HOME": str(home), "XDG_CACHE_HOME": ""}))
    assert not home.parent.exists()


def test_too_few_open_files(project: Project) -> None:
    said = run(project, ["sh", "-c", f"ulimit -n 9; exec {shlex.join(project.hook())}"])
    assert "safe-ext-build: error[SEB-4013]: the system refuses to go on: Too many open files" in said
    assert "safe-ext-build: hint: Raise the limit of open files, `ulimit -n 1024`" in said


@pytest.mark.parametrize("limits", ["-S -s 256", "-n 64", "-v 2000000"])
def test_small_limits(project: Project, limits: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"ulimit {limits}; exec {shlex.join(project.hook())}"],
        cwd=project.root,
        env=project.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "compiled 3 objects" in done.stdout, done.stdout


def test_a_path_that_is_not_utf_8(project: Project) -> None:
    root = project.root.rename(os.fsdecode(os.fsencode(project.root.parent) + b"/pro\xffject"))
    project = replace(project, root=root)
    text = build_again(project)
    assert "is not UTF-8, in which torch writes it down, so a copy of " in text and "compiled 3 objects" in text
    assert "ninja: no work to do." in build_again(project)
    assert "hint: Rename the directory" in run(project, project.hook("build_editable"))
