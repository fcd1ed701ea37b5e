"""A CUDA extension through the real frontends: pip, uv, build; isolated or not; compiled once."""

from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path

import pytest
from frontend_runs import ARCHS, Ground, Run, copy_project, is_pure, needs_cuda, only_wheel, unpacked

pytest_plugins = ["frontend_fixtures"]
pytestmark = [*needs_cuda, pytest.mark.frontend]

NOTHING = "ninja: no work to do."


@pytest.fixture(scope="module")
def cuda(ground: Ground) -> Ground:
    return ground.having(TORCH_CUDA_ARCH_LIST=ARCHS)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project("tiny_cuda", tmp_path_factory.mktemp("in_tree"))


@pytest.fixture(scope="module")
def first(cuda: Ground, project: Path) -> Run:
    """The first build, by pip, isolated: the others of this module find what it compiled."""
    return cuda.isolating_pip("wheel", "-v", "--no-deps", "-w", "../dist", ".", cwd=project).check()


@pytest.fixture
def target_cuda(target: Ground) -> Ground:
    return target.having(TORCH_CUDA_ARCH_LIST=ARCHS)


def check_module(ground: Ground, **environ: str) -> None:
    """The module runs, was compiled with torch's CUDA, and with a cuSPARSE that the system may not have."""
    printed = ground.evaluate(
        "torch, tiny_cuda", "tiny_cuda.versions(), tiny_cuda.multiply(2.0, 3.0), torch.version.cuda", **environ
    )
    runtime, sparse, status, product = map(float, re.findall(r"[\d.]+", printed)[:4])
    assert runtime // 1000 == float(printed.split()[-1].partition(".")[0])
    assert sparse > 10000
    assert product == (6.0 if status == 0 else 2.0)


def test_plan_is_said_once(first: Run) -> None:
    (torch,) = [line for line in first.said if line.startswith("building against torch")]
    assert re.fullmatch(r"building against torch \d\S* of /.+, which will import the result", torch)
    (toolkit,) = [line for line in first.said if line.startswith("CUDA ")]
    assert re.match(r"CUDA \d+\.\d+ in /", toolkit)
    (jobs,) = [line for line in first.said if "at a time" in line]
    assert re.match(
        r"at most \d+ compiles? at a time, fewer whenever memory is short \(CPUs \d+ .*; memory about \d+", jobs
    )


def test_cost_is_said(first: Run) -> None:
    assert re.match(r"compiled 3 objects in \d+ s \(\d+ CPU s, peak \d+\.\d GiB in \w+\.\w+\)", first.said[-1])


def test_wheel_works(cuda: Ground, first: Run, project: Path) -> None:
    wheel = only_wheel(project.parent / "dist")
    assert not is_pure(wheel)
    check_module(cuda, PYTHONPATH=str(unpacked(wheel)))


@pytest.mark.parametrize("how", ["pip", "pip without isolation", "uv", "build"])
def test_nothing_is_compiled_twice(how: str, cuda: Ground, first: Run, project: Path, tmp_path: Path) -> None:
    uv = ("build", "--wheel", "-v", "--python", cuda.python, "-o", tmp_path, project)
    if how == "pip":
        run = cuda.isolating_pip("wheel", "-v", "--no-deps", "-w", tmp_path, ".", cwd=project)
    elif how == "pip without isolation":
        run = cuda.wheel(project, "-w", str(tmp_path))
    elif how == "uv":
        run = cuda.uv(*uv, cwd=tmp_path)
    else:
        run = cuda.run([cuda.python, "-m", "build", "--wheel", "-o", tmp_path, project], tmp_path)
    assert NOTHING in run.check().output
    assert not run.says("compiled")
    assert not is_pure(only_wheel(tmp_path))


def test_build_goes_through_sdist(cuda: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    cuda.run([cuda.python, "-m", "build", "-o", tmp_path / "dist"], project).check()
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("csrc/scale.cu") for name in archive.getnames())
    assert not is_pure(only_wheel(tmp_path / "dist"))
    assert not (project / "build").exists()


def test_pip_install(cuda: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    cuda.isolating_pip("install", "--no-deps", "--target", tmp_path / "lib", project, cwd=tmp_path).check()
    check_module(cuda, PYTHONPATH=str(tmp_path / "lib"))


@pytest.mark.parametrize("isolation", [True, False])
def test_uv_pip_install(isolation: bool, target_cuda: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    options = () if isolation else ("--no-build-isolation",)
    command = ("pip", "install", "--no-deps", *options, "--python", str(target_cuda.python), str(project))
    target_cuda.uv(*command, cwd=tmp_path).check()
    check_module(target_cuda)


def test_editable(target_cuda: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    install = ("install", "-v", "--no-deps", "--no-build-isolation", "-e")
    assert target_cuda.pip(*install, project, cwd=tmp_path).check().says("compiled 3 objects")
    assert NOTHING in target_cuda.pip(*install, project, cwd=tmp_path).check().output
    check_module(target_cuda)
    package = project / "tiny_cuda" / "__init__.py"
    package.write_text(package.read_text() + "EDITED = True\n")
    assert target_cuda.evaluate("tiny_cuda", "tiny_cuda.EDITED") == "True"


def test_a_path_that_ninja_cannot_name(target_cuda: Ground, tmp_path: Path) -> None:
    """torch escapes none of it, nor does nvcc in its dependency files."""
    place = tmp_path / "a$b: 'c' #é|"
    place.mkdir()
    project = copy_project("tiny_cuda", place)
    target_cuda.hook(project, "build_wheel", str(tmp_path)).check()
    check_module(target_cuda, PYTHONPATH=str(unpacked(only_wheel(tmp_path))))
    again = target_cuda.hook(project, "build_wheel", str(tmp_path)).check()
    assert NOTHING in again.output
    header = project / "csrc" / "tiny.h"
    header.write_text(header.read_text() + "// changed\n")
    os.utime(header, (0, 0))
    assert target_cuda.hook(project, "build_wheel", str(tmp_path)).check().says("compiled 3 objects")


def test_compile_error_comes_last(target_cuda: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    source = project / "csrc" / "scale.cu"
    source.write_text(source.read_text().replace("cudaFree(data);", "cudaFree(dada);"))
    run = target_cuda.hook(project, "build_wheel", str(tmp_path))
    assert run.status == 1
    assert "Traceback" not in run.output
    *_, error = [line for line in run.output.splitlines() if "dada" in line]
    last = run.said[-1]
    assert 'identifier "dada" is undefined' in error
    assert last.startswith("error[SEB-6001]: ") and "scale.cu does not compile" in last and "dada" in last
    assert run.output.rstrip().endswith(last)


def test_metadata_needs_no_compiler(target_cuda: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    run = target_cuda.hook(project, "prepare_metadata_for_build_wheel", str(tmp_path), PATH="/usr/bin:/bin")
    assert (tmp_path / run.check().output.splitlines()[-1] / "METADATA").is_file()
    assert run.said == []


def test_toolkit_is_found_without_path(target_cuda: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    run = target_cuda.hook(project, "build_wheel", str(tmp_path), PATH="/usr/bin:/bin").check()
    assert run.says("CUDA ")
    assert not is_pure(only_wheel(tmp_path))
