"""Projects without torch through every real frontend, and from directories with difficult names."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from frontend_runs import Ground, Run, copy_project, is_pure, only_wheel, unpacked

pytest_plugins = ["frontend_fixtures"]
pytestmark = pytest.mark.frontend

BUILDS = ["pip", "pip without isolation", "uv", "uv without isolation", "build", "build without isolation"]
HOSTILE = ["with spaces in it", 'it\'s "quoted"', "naïve-日本語", "dollar $HOME #1", "a:b;c&d"]


def build_wheel(how: str, ground: Ground, project: Path, dist: Path) -> Run:
    program, _, without = how.partition(" ")
    if program == "pip":
        if not without:
            return ground.isolating_pip("wheel", "-v", "--no-deps", "-w", dist, ".", cwd=project)
        return ground.pip("wheel", "-v", "--no-deps", "--no-build-isolation", "-w", dist, ".", cwd=project)
    if program == "uv":
        options = ["--no-build-isolation"] if without else []
        return ground.uv("build", "--wheel", *options, "--python", ground.python, "-o", dist, cwd=project)
    options = ["--no-isolation"] if without else []
    return ground.run([ground.python, "-m", "build", "--wheel", *options, "-o", dist], project)


@pytest.mark.parametrize("how", BUILDS)
def test_wheel_of_an_extension(how: str, ground: Ground, tmp_path: Path) -> None:
    project = copy_project("host_only", tmp_path)
    build_wheel(how, ground, project, tmp_path / "dist").check()
    wheel = only_wheel(tmp_path / "dist")
    assert not is_pure(wheel)
    assert ground.evaluate("host_only", "host_only.answer()", PYTHONPATH=str(unpacked(wheel))) == "42"


@pytest.mark.parametrize("how", ["pip without isolation", "uv without isolation", "build without isolation"])
def test_pure_wheel(how: str, ground: Ground, tmp_path: Path) -> None:
    project = copy_project("plain", tmp_path)
    run = build_wheel(how, ground, project, tmp_path / "dist").check()
    wheel = only_wheel(tmp_path / "dist")
    assert is_pure(wheel)
    assert ground.evaluate("plain", "plain.ANSWER", PYTHONPATH=str(unpacked(wheel))) == "42"
    assert run.said == []  # nothing is decided for it, so nothing is said


@pytest.mark.parametrize("how", ["uv", "build"])
def test_wheel_goes_through_sdist(how: str, ground: Ground, tmp_path: Path) -> None:
    project = copy_project("host_only", tmp_path)
    if how == "uv":
        ground.uv("build", "--python", ground.python, "-o", tmp_path / "dist", cwd=project).check()
    else:
        ground.run([ground.python, "-m", "build", "-n", "-o", tmp_path / "dist"], project).check()
    assert not is_pure(only_wheel(tmp_path / "dist"))
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1


def test_sdist_only(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("host_only", tmp_path)
    run = ground.run([ground.python, "-m", "build", "-n", "--sdist", "-o", tmp_path / "dist"], project).check()
    (sdist,) = (tmp_path / "dist").iterdir()
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("csrc/module.c") for name in archive.getnames())
    assert not run.says("at a time")


def test_pip_install(target: Ground, tmp_path: Path) -> None:
    project = copy_project("host_only", tmp_path)
    target.pip("install", "--no-deps", "--no-build-isolation", project, cwd=tmp_path).check()
    assert target.evaluate("host_only", "host_only.answer()") == "42"


@pytest.mark.parametrize("frontend", ["pip", "uv"])
@pytest.mark.parametrize("options", [(), ("-C", "editable_mode=strict")])
def test_editable(frontend: str, options: tuple[str, ...], target: Ground, tmp_path: Path) -> None:
    project = copy_project("host_only", tmp_path)
    command = ("install", "--no-deps", "--no-build-isolation", *options, "-e", str(project))
    if frontend == "uv":
        target.uv("pip", *command, "--python", target.python, cwd=tmp_path).check()
    else:
        target.pip(*command, cwd=tmp_path).check()
    assert target.evaluate("host_only", "host_only.answer()") == "42"
    package = project / "host_only" / "__init__.py"
    package.write_text(package.read_text() + "EDITED = True\n")
    assert target.evaluate("host_only", "host_only.EDITED") == "True"


def test_setuptools_older_editables(ground: Ground) -> None:
    module, expression = "safe_ext_build.build_meta as backend", "hasattr(backend, 'build_editable')"
    assert ground.evaluate(module, expression) == "True"
    assert ground.evaluate(module, expression, SETUPTOOLS_ENABLE_FEATURES="legacy-editable") == "False"


@pytest.mark.parametrize("name", ["plain", "host_only"])
@pytest.mark.parametrize("place", HOSTILE)
def test_directory_names(name: str, place: str, ground: Ground, tmp_path: Path) -> None:
    (tmp_path / place).mkdir()
    project = copy_project(name, tmp_path / place)
    dist = tmp_path / "dist"
    run = build_wheel("build without isolation", ground, project, dist).check()
    assert is_pure(only_wheel(dist)) == (name == "plain"), run.output


def test_undecodable_directory_name(ground: Ground, tmp_path: Path) -> None:
    place = Path(str(tmp_path), "latin-\udce9")
    place.mkdir()
    ground.hook(copy_project("host_only", place), "build_wheel", str(tmp_path / "dist")).check()
    assert not is_pure(only_wheel(tmp_path / "dist"))
