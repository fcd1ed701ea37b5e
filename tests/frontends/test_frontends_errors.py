"""How builds fail: with the project's own words where it has some, with ours where it does not."""

from __future__ import annotations

import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from frontend_runs import Ground, Run, copy_project, only_wheel, write_project

pytest_plugins = ["frontend_fixtures"]
pytestmark = pytest.mark.frontend

# Frontends run several hooks; only this one is to fail.
WHEN_BUILDING = """
import sys
from setuptools import setup
if "bdist_wheel" in sys.argv:
    {}
setup(packages=["sample"])
"""


def build(ground: Ground, parent: Path, statement: str) -> Run:
    return ground.wheel(write_project(parent, WHEN_BUILDING.format(statement)))


def test_exception_shows_its_traceback(ground: Ground, tmp_path: Path) -> None:
    run = build(ground, tmp_path, "raise RuntimeError('the reactor is too hot')")
    assert run.status == 1
    assert run.output.count("Traceback (most recent call last)") == 1
    assert "RuntimeError: the reactor is too hot\n" in run.output
    assert run.says("error[SEB-6101]: RuntimeError: the reactor is too hot")


@pytest.mark.parametrize("code", ["3", "'what is wrong'"])
def test_setup_script_that_exits(code: str, ground: Ground, tmp_path: Path) -> None:
    run = build(ground, tmp_path, f"sys.exit({code})")
    assert run.status == 1
    assert "Traceback" not in run.output
    assert code.strip("'") in run.output
    assert run.says("error[SEB-6102]: the setup script gave up: ", code.strip("'"))


def test_setup_script_that_vanishes(ground: Ground, tmp_path: Path) -> None:
    run = build(ground, tmp_path, "import os; os._exit(5)")
    assert run.status == 1
    assert run.says("error[SEB-6103]: the setup script ended the process that ran it (exit status 5)")


def test_setup_script_that_crashes(ground: Ground, tmp_path: Path) -> None:
    run = build(ground, tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert run.status == 1
    assert "Traceback" not in run.output
    assert run.says("error[SEB-5005]: ", "killed by signal 11 (SIGSEGV)")


def test_syntax_error(ground: Ground, tmp_path: Path) -> None:
    run = ground.wheel(write_project(tmp_path, "def setup(:\n"))
    assert run.status == 1
    assert "SyntaxError: invalid syntax" in run.output and "def setup(:" in run.output


def test_a_module_that_is_not_there_is_named(ground: Ground, tmp_path: Path) -> None:
    run = ground.wheel(write_project(tmp_path, "import no_such_module\n"))
    assert run.status == 1
    assert run.said[-1].startswith("hint: the build needs no_such_module, which was not installed for it: add ")


def test_undecodable_output_passes(ground: Ground, tmp_path: Path) -> None:
    run = build(ground, tmp_path, r"sys.stdout.buffer.write(b'caf\xe9 au lait\n'); sys.stdout.flush()").check()
    assert "au lait" in run.output


def test_undecodable_error(ground: Ground, tmp_path: Path) -> None:
    run = build(ground, tmp_path, r"raise RuntimeError('caf\udce9')")
    assert run.status == 1
    assert run.says("error[SEB-6101]: RuntimeError: caf")


def test_much_output_passes_whole(ground: Ground, tmp_path: Path) -> None:
    run = build(
        ground, tmp_path, "print('y' * 79 + '\\n', end='') or [print('y' * 79) for _ in range(9999)]"
    ).check()
    assert run.output.count("y" * 79) == 10000


def test_reading_standard_input_does_not_hang(ground: Ground, tmp_path: Path) -> None:
    build(ground, tmp_path, "assert sys.stdin.read() == ''").check()


def test_host_compile_error(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("host_only", tmp_path)
    source = project / "csrc" / "module.c"
    source.write_text(source.read_text().replace("FromLong(42)", "FromLong(forty_two)"))
    run = ground.wheel(project)
    assert run.status == 1
    assert "forty_two" in run.output
    assert run.says("error[SEB-")


@pytest.fixture
def bare(ground: Ground, wheelhouse: Path, tmp_path: Path) -> Ground:
    """An environment that has all that a build needs, except torch."""
    place = tmp_path / "bare"
    venv.create(place, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    keep = ("setuptools", "ninja", "packaging", "psutil", "tomli", "pip", "_distutils_hack")
    for directory in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(directory).iterdir():
            if entry.name.partition("-")[0] in keep:
                (site / entry.name).symlink_to(entry)
    (place / "bin" / "ninja").symlink_to(Path(sysconfig.get_path("scripts"), "ninja"))
    with zipfile.ZipFile(only_wheel(wheelhouse)) as archive:
        archive.extractall(site)
    return Ground(ground.environ, place / "bin" / "python")


def test_missing_torch_is_explained(bare: Ground, tmp_path: Path) -> None:
    run = bare.wheel(write_project(tmp_path, "import torch\n"))
    assert run.status == 1
    assert "No module named 'torch'" in run.output
    assert run.says("hint: no torch to build against: ", str(bare.prefix), "has no torch"), run.output


def test_missing_torch_is_no_matter_to_others(bare: Ground, tmp_path: Path) -> None:
    run = bare.wheel(copy_project("host_only", tmp_path)).check()
    assert not run.says("warning") and not run.says("error")
    assert bare.wheel(copy_project("plain", tmp_path)).check().said == []
