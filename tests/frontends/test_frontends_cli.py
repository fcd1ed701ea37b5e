"""`safe-ext-build wheel` on real packages: their own backend inside ours, their files as they were."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from frontend_runs import ARCHS, Ground, Run, copy_project, on_cuda, on_torch, only_wheel, unpacked

pytest_plugins = ["frontend_fixtures"]
pytestmark = pytest.mark.frontend

# A project of the time before pyproject.toml: its setup script imports what lies beside it.
LEGACY = """
import wheel
from numbers_of_mine import VERSION
from setuptools import setup

setup(name="legacy", version=VERSION, py_modules=["legacy"])
"""


def build(ground: Ground, package: Path | str, cwd: Path, *options: str, **environ: str) -> Run:
    command = [ground.python, "-m", "safe_ext_build", "wheel", package, *options]
    return ground.run(command, cwd, PIP_QUIET="1", **environ)


def sdist(project: Path) -> Path:
    """Pack a project as its authors would publish it, without our backend."""
    archive = project.parent / f"{project.name}-1.0.tar.gz"
    (project / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {project.name}\nVersion: 1.0\n")
    with tarfile.open(archive, "w:gz") as opened:
        opened.add(project, f"{project.name}-1.0")
    return archive


def set_backend(project: Path, lines: str) -> None:
    text = (project / "pyproject.toml").read_text()
    _, _, rest = text.partition("[project]")
    (project / "pyproject.toml").write_text(f"[build-system]\n{lines}\n[project]{rest}")


def test_an_old_sdist(ground: Ground, tmp_path: Path) -> None:
    project = tmp_path / "legacy"
    project.mkdir()
    (project / "setup.py").write_text(LEGACY)
    (project / "numbers_of_mine.py").write_text("VERSION = '1.0'\n")
    (project / "legacy.py").write_text("")
    greedy = f'workspace.dir = "{tmp_path / "theirs"}"\nreport.path = "{tmp_path / "theirs" / "a.html"}"\n'
    (project / "pyproject.toml").write_text(f"[tool.safe-ext-build]\n{greedy}")
    run = build(ground, sdist(project), tmp_path).check()
    for name in ("workspace.dir", "report.path"):
        assert run.says(f"warning: [tool.safe-ext-build] {name} in pyproject.toml is not used: a package that was")
    assert not (tmp_path / "theirs").exists()
    assert only_wheel(tmp_path / "dist").name == "legacy-1.0-py3-none-any.whl"
    assert run.said[-1] == "built dist/legacy-1.0-py3-none-any.whl"


def test_a_directory_with_a_backend_of_its_own(ground: Ground, tmp_path: Path) -> None:
    """Nothing of the project changes on disk; what is no setting of ours reaches its backend."""
    project = copy_project("in_tree", tmp_path)
    set_backend(project, 'requires = []\nbuild-backend = "tiny_backend"\nbackend-path = ["backend"]\n')
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    run = build(ground, project, tmp_path, "-o", "out", "-C", "colour=green", "-C", "jobs.max=1").check()
    assert only_wheel(tmp_path / "out").name == "in_tree-1.0-py3-none-any.whl"
    assert (project / "built.txt").read_text() == "colour=green\n"
    assert "tiny_backend runs in the build" in run.output
    assert "of nobody" not in run.output
    assert {path: path.read_bytes() for path in before} == before


@on_cuda
def test_an_sdist_with_device_code(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    set_backend(project, 'requires = ["setuptools", "torch==1.0"]\nbuild-backend = "setuptools.build_meta"\n')
    run = build(ground, sdist(project), tmp_path, TORCH_CUDA_ARCH_LIST=ARCHS).check()
    assert run.says("warning:", "the package asks for torch==1.0; it is built against torch")
    assert run.says("building against torch", "which will import the result")
    assert run.says("compiled 3 objects")
    site = unpacked(only_wheel(tmp_path / "dist"))
    assert ground.evaluate("torch, tiny_cuda", "tiny_cuda._C.versions()[0] > 0", PYTHONPATH=str(site)) == "True"


@on_torch
def test_an_sdist_that_lacks_its_sources(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    (project / "csrc" / "module.cpp").unlink()
    text = (project / "setup.py").read_text().replace("CUDAExtension", "CppExtension")
    (project / "setup.py").write_text(text.replace('"csrc/scale.cu", "csrc/versions.cu"', ""))
    set_backend(project, 'requires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n')
    run = build(ground, sdist(project), tmp_path)
    assert run.status == 1
    assert run.said[-2:] == [
        "error[SEB-6007]: setup.py names csrc/module.cpp, which this sdist does not contain",
        "hint: Report it to its authors, or build from its repository.",
    ]
    assert "Traceback" not in run.output
    assert not (tmp_path / "dist").exists()


@on_torch
def test_an_sdist_that_does_not_compile(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    (project / "csrc" / "module.cpp").write_text("int answer() { return forty_two; }\n")
    text = (project / "setup.py").read_text().replace("CUDAExtension", "CppExtension")
    (project / "setup.py").write_text(text.replace('"csrc/scale.cu", "csrc/versions.cu"', ""))
    set_backend(project, 'requires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n')
    run = build(ground, sdist(project), tmp_path)
    assert run.status == 1
    assert run.said[-2].startswith("error[SEB-6001]: csrc/module.cpp does not compile: csrc/module.cpp:1:")
    assert "forty_two" in run.said[-2]
    assert run.said[-1].startswith("hint: It is the package's own source that does not compile with torch ")


def test_a_requirement_that_nobody_has(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("plain", tmp_path)
    missing = (tmp_path / "missing.whl").as_uri()
    set_backend(project, f'requires = ["missing @ {missing}"]\nbuild-backend = "setuptools.build_meta"\n')
    run = build(ground, project, tmp_path)
    assert run.status == 1
    assert run.says("error[SEB-8014]:", "pip could not install what the build needs")


@on_cuda
def test_cmake_meets_the_scheduler(ground: Ground, tmp_path: Path) -> None:
    """scikit-build-core's CMake compiles for what was planned, with torch's toolkit, each object through a job."""
    project = tmp_path / "cmake_cuda"
    copy_project("cmake_cuda", tmp_path)
    run = ground.wheel(project, TORCH_CUDA_ARCH_LIST=f"{ARCHS};9.0+PTX").check()
    assert "-- architectures 80-real;90, toolkit" in run.output
    compiled = [line for line in run.output.splitlines() if "seb-job" in line]
    assert any("module.cpp" in line for line in compiled)
    assert any("nvcc" in line and "scale.cu" in line and "code=[sm_80]" in line for line in compiled)
    assert run.says("compiled", "objects")
    assert (project / "CMakeLists.txt").exists()  # which CMake's build.ninja names as an output
    site = unpacked(only_wheel(tmp_path / "dist"))
    answer = ground.evaluate("torch, cmake_cuda._C", "cmake_cuda._C.multiply(2, 3)", PYTHONPATH=str(site))
    assert answer.startswith("(")
