"""What a person sets reaches the build, or is refused by name; by -C, by variables, by pyproject.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from frontend_runs import Ground, copy_project, on_cuda, on_torch, only_wheel, write_project

pytest_plugins = ["frontend_fixtures"]
pytestmark = pytest.mark.frontend

# It shows what a setup script sees.
ASKING = """
import json, os
from setuptools import setup

names = ("MAX_JOBS", "NVCC_THREADS", "CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "CC", "TMPDIR")
print("SEEN " + json.dumps({name: os.environ.get(name) for name in names}))
setup(packages=["sample"])
"""
DECLARED = '[tool.safe-ext-build.torch]\nmatch = "declared"'


def seen(output: str) -> dict[str, str | None]:
    """What the setup script saw when it was run last."""
    *_, last = [line.strip() for line in output.splitlines() if line.strip().startswith("SEEN ")]
    found: dict[str, str | None] = json.loads(last.removeprefix("SEEN "))
    return found


def test_jobs_by_option(ground: Ground, tmp_path: Path) -> None:
    run = ground.wheel(write_project(tmp_path, ASKING), "-C", "jobs.max=1").check()
    assert run.says("at most 1 compile at a time, as -C jobs.max says")
    assert seen(run.output)["MAX_JOBS"] == "1"


def test_jobs_by_option_of_uv_and_build(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, ASKING)
    options = ("--wheel", "-C", "jobs.max=1", "-o", str(tmp_path / "dist"))
    by_uv = ground.uv("build", "--no-build-isolation", *options, "--python", ground.python, cwd=project)
    by_build = ground.run([ground.python, "-m", "build", "-n", *options], project)
    for run in (by_uv, by_build):
        assert run.check().says("at most 1 compile at a time, as -C jobs.max says")
        assert seen(run.output)["MAX_JOBS"] == "1"


def test_variables_are_honoured(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, ASKING)
    run = ground.hook(project, "build_wheel", str(tmp_path), MAX_JOBS=" 3 ", NVCC_THREADS="2", CC="gcc").check()
    found = seen(run.output)
    assert (found["MAX_JOBS"], found["NVCC_THREADS"], found["CC"]) == ("3", "2", "gcc")
    assert run.says("at most 3 compiles at a time, as MAX_JOBS in the environment says")


def test_environment_wins_over_option_and_file(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, ASKING, extra="[tool.safe-ext-build.jobs]\nmax = 7")
    run = ground.hook(project, "build_wheel", str(tmp_path)).check()
    assert seen(run.output)["MAX_JOBS"] == "7"
    assert run.says("as [tool.safe-ext-build] jobs.max in pyproject.toml says")
    run = ground.wheel(project, "-C", "jobs.max=6", MAX_JOBS="5").check()
    assert seen(run.output)["MAX_JOBS"] == "5"


@pytest.mark.parametrize("value", ["", "auto"])
def test_jobs_are_derived(value: str, ground: Ground, tmp_path: Path) -> None:
    run = ground.hook(write_project(tmp_path, ASKING), "build_wheel", str(tmp_path), MAX_JOBS=value).check()
    assert int(seen(run.output)["MAX_JOBS"] or 0) >= 1
    assert run.says("at a time, fewer whenever memory is short (CPUs")


def test_builder_has_a_temporary_directory_of_ours(ground: Ground, tmp_path: Path) -> None:
    run = ground.hook(write_project(tmp_path, ASKING), "build_wheel", str(tmp_path)).check()
    directory = Path(seen(run.output)["TMPDIR"] or "/")
    assert directory.is_relative_to(ground.environ["SAFE_EXT_BUILD_WORKSPACE_DIR"])
    assert not directory.exists()


@on_cuda
def test_setup_script_sees_the_toolkit(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, ASKING)
    run = ground.hook(project, "build_wheel", str(tmp_path), TORCH_CUDA_ARCH_LIST="80, sm_90").check()
    found = seen(run.output)
    assert found["CUDA_HOME"] == found["CUDA_PATH"] and found["CUDA_HOME"]
    assert found["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"


REFUSED = [
    (("-C", "job.max=1"), {}, "-C job.max: there is no such setting", "did you mean -C jobs.max=1?"),
    (("-C", "max-jobs=2"), {}, "-C max-jobs: there is no such setting", "did you mean -C jobs.max=2?"),
    (("-C", "jobs.max=0"), {}, '-C jobs.max is "0", but it must be a whole number from 1 up', "derived"),
    ((), {"MAX_JOBS": "4.0"}, 'MAX_JOBS in the environment is "4.0", but it must be', "ignores in silence"),
    ((), {"MAX_JOBS": "0"}, 'MAX_JOBS in the environment is "0", but it must be', "reads 0 as no limit"),
    ((), {"SAFE_EXT_BUILD_JOB_MAX": "2"}, "SAFE_EXT_BUILD_JOB_MAX in the env", "SAFE_EXT_BUILD_JOBS_MAX=2"),
]


@pytest.mark.parametrize(("options", "environ", "message", "hint"), REFUSED)
def test_refused(
    options: tuple[str, ...], environ: dict[str, str], message: str, hint: str, ground: Ground, tmp_path: Path
) -> None:
    run = ground.wheel(write_project(tmp_path, ASKING), *options, **environ)
    assert run.status == 1
    assert "Traceback" not in run.output
    assert run.says("error[SEB-100", message), run.output
    assert run.says("hint: ", hint), run.output
    assert "SEEN" not in run.output


def test_refused_once(ground: Ground, tmp_path: Path) -> None:
    run = ground.hook(write_project(tmp_path), "get_requires_for_build_wheel", MAX_JOBS="-1")
    assert run.status == 1
    assert len(run.said) == 2 and len(run.output.splitlines()) == 2


def test_setuptools_own_options_pass(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("plain", tmp_path)
    ground.wheel(project, "-C", "--build-option=--python-tag=py39", "-C", "--global-option=--quiet").check()
    assert only_wheel(tmp_path / "dist").name == "plain-1.0-py39-none-any.whl"


@on_torch
def test_torch_that_is_declared_but_missing(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, "import torch\n" + ASKING, extra=DECLARED)
    run = ground.isolating_pip("wheel", "-v", "--no-deps", "-w", "../dist", ".", cwd=project)
    assert run.status == 1
    assert run.says("no torch to build against", "build-system.requires has no torch")
    assert not run.says("building against torch")


def test_torch_that_is_declared_is_not_looked_for(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, f"# It would like torch.\n{ASKING}", extra=DECLARED)
    run = ground.isolating_pip("wheel", "-v", "--no-deps", "-w", "../dist", ".", cwd=project).check()
    assert run.says("no torch to build against", "torch.match is `declared`")
    assert not run.says("building against torch")
