"""Another backend inside ours: found as PEP 517 says, its optional hooks left out, its options handed on."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from frontend_runs import Ground, copy_project, only_wheel, write_project

pytest_plugins = ["frontend_fixtures"]
pytestmark = pytest.mark.frontend


def test_a_backend_without_optional_hooks_builds_once(ground: Ground, tmp_path: Path) -> None:
    """pip asks for requirements and metadata, which it does not have; the wheel made for the metadata is kept."""
    project = copy_project("in_tree", tmp_path)
    run = ground.wheel(project, "-C", "colour=green", "-C", "jobs.max=1").check()
    assert (project / "built.txt").read_text() == "colour=green\n"
    assert "tiny_backend runs in the build" in run.output
    assert "of nobody" not in run.output
    with zipfile.ZipFile(only_wheel(tmp_path / "dist")) as archive:
        assert "in_tree/__init__.py" in archive.namelist()


def test_hooks_that_another_backend_lacks(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("in_tree", tmp_path)
    assert ground.hook(project, "get_requires_for_build_wheel").check().output.splitlines()[-1] == "[]"
    run = ground.hook(project, "build_editable", str(tmp_path))
    assert run.status == 1
    assert run.says("error[SEB-1016]:", "tiny_backend has no hook build_editable")


def test_requirements_of_another_backend_are_asked_for(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("in_tree", tmp_path)
    with (project / "backend" / "tiny_backend.py").open("a") as file:
        file.write("def get_requires_for_build_wheel(config_settings=None):\n    return ['cmake>=3.15']\n")
    run = ground.hook(project, "get_requires_for_build_wheel").check()
    assert run.output.splitlines()[-1] == "['cmake>=3.15']"


def test_a_backend_that_is_not_there(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, extra='[tool.safe-ext-build]\nbackend = "no_such_backend.api"')
    run = ground.hook(project, "build_wheel", str(tmp_path))
    assert run.status == 1
    assert run.says("error[SEB-1015]:", "the backend no_such_backend.api is not installed where the build runs")
    assert run.says("hint:", "build-system.requires")
    assert "Traceback" not in run.output


def test_a_backend_outside_of_its_path(ground: Ground, tmp_path: Path) -> None:
    """PEP 517: what backend-path names must be where the backend is found."""
    extra = '[tool.safe-ext-build]\nbackend = "json"\nbackend-path = "."'
    run = ground.hook(write_project(tmp_path, extra=extra), "build_wheel", str(tmp_path))
    assert run.status == 1
    assert run.says("error[SEB-1014]:", "the backend json lies in", "not in backend-path (.)")


def test_what_the_backend_itself_misses_is_said(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("in_tree", tmp_path)
    (project / "backend" / "tiny_backend.py").write_text("import no_such_module\n")
    run = ground.hook(project, "build_wheel", str(tmp_path))
    assert run.status == 1
    assert run.says("error[SEB-6104]:", "No module named 'no_such_module'")
