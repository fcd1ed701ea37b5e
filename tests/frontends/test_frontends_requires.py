"""`get_requires_for_build_*` runs the setup script only where `setup_requires` occurs in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from frontend_runs import Ground, on_torch, write_project

pytest_plugins = ["frontend_fixtures"]
pytestmark = pytest.mark.frontend

KINDS = ["wheel", "sdist", "editable"]
RAISES = "raise RuntimeError('the setup script was run')\n"


@pytest.mark.parametrize("kind", KINDS)
def test_setup_script_is_not_run(kind: str, ground: Ground, tmp_path: Path) -> None:
    run = ground.hook(write_project(tmp_path, RAISES), f"get_requires_for_build_{kind}").check()
    assert run.output.splitlines() == ["[]"]


@pytest.mark.parametrize(
    ("kind", "expected"), [("wheel", "['wheel']"), ("editable", "['wheel']"), ("sdist", "[]")]
)
def test_wheel_is_asked_for_as_it_used_to_be(kind: str, expected: str, ground: Ground, tmp_path: Path) -> None:
    setup = f"from wheel.bdist_wheel import bdist_wheel\n{RAISES}"
    run = ground.hook(write_project(tmp_path, setup), f"get_requires_for_build_{kind}").check()
    assert run.output.splitlines() == [expected]


@on_torch
@pytest.mark.parametrize("kind", KINDS)
def test_setup_requires_is_returned(kind: str, ground: Ground, tmp_path: Path) -> None:
    setup = "from setuptools import setup\nsetup(setup_requires=['cython>=3', 'pybind11'])\n"
    run = ground.hook(write_project(tmp_path, setup), f"get_requires_for_build_{kind}").check()
    assert run.output.splitlines()[-1] == "['cython>=3', 'pybind11']"


@on_torch
def test_setup_requires_of_setup_cfg(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, "from setuptools import setup\nsetup()\n")
    (project / "setup.cfg").write_text("[options]\nsetup_requires = cython>=3\n")
    run = ground.hook(project, "get_requires_for_build_wheel").check()
    assert run.output.splitlines()[-1] == "['cython>=3']"


@on_torch
def test_setup_script_with_setup_requires_is_run(ground: Ground, tmp_path: Path) -> None:
    run = ground.hook(write_project(tmp_path, RAISES + "setup_requires = 1\n"), "get_requires_for_build_wheel")
    assert run.status == 1
    assert "the setup script was run" in run.output
