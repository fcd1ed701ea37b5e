"""The compiler comes as wheels (100 MB, from the package index) where the machine has none that fits.

The machine's own toolkits are hidden by mounts that only the command sees.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
from frontend_runs import (
    ARCHS,
    Ground,
    Run,
    copy_project,
    is_pure,
    needs_cuda,
    only_wheel,
    unpacked,
    write_project,
)
from test_frontends_cuda import check_module

from safe_ext_build.toolchain.torch import read_torch
from safe_ext_build.toolchain.wheels import requirements

pytest_plugins = ["frontend_fixtures"]
UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]
HIDE = """
for home in /usr/local/cuda* /opt/cuda* /usr/lib/nvidia-cuda-toolkit; do
    if [ -d "$home" ] && [ ! -L "$home" ]; then mount -t tmpfs none "$home"; fi
done
for nvcc in $(which -a nvcc); do mount --bind /dev/null "$nvcc"; done
exec "$@"
"""
UV = Path(sysconfig.get_path("scripts"), "uv")
HIDING = [*UNSHARE, "sh", "-c", HIDE, "sh"]
NEWER = """#!/bin/sh
case "$1" in
--version) touch "$(dirname "$0")/asked"; echo "Cuda compilation tools, release 13.9, V13.9.1";;
--list-gpu-arch) echo compute_80;;
*) echo "this nvcc should not have been used" >&2; exit 1;;
esac
"""


def why_not() -> str:
    """Why these tests cannot run; empty when they can."""
    spec = importlib.util.find_spec("torch")
    facts = read_torch(Path(spec.origin).parent) if spec and spec.origin else None
    if facts is None or not requirements(facts):
        return "no wheels have the compiler for the torch beside pytest"
    mount = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    allowed = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    return "" if allowed else "mounting is not allowed here, so toolkits cannot be hidden"


pytestmark = [*needs_cuda, pytest.mark.frontend, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def bare(ground: Ground) -> Ground:
    return ground.having(TORCH_CUDA_ARCH_LIST=ARCHS)


def hidden(ground: Ground, command: Sequence[str | Path], cwd: Path, **environ: str) -> Run:
    return ground.run([*HIDING, *command], cwd, **environ)


def requires(ground: Ground, project: Path, hook: str, **environ: str) -> Run:
    code = f"from safe_ext_build import build_meta; print(build_meta.get_requires_for_build_{hook}())"
    return hidden(ground, [ground.python, "-c", code], project, **environ).check()


def test_pip(bare: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    command: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", tmp_path, project]
    run = hidden(bare, command, tmp_path).check()
    assert run.says(
        "no toolkit here is one for torch", "the build environment is to get cuda-toolkit[nvcc,cccl]=="
    )
    assert run.says("CUDA ", "nvidia/cu13 (wheels): the CUDA of torch")
    assert run.says("compiled 3 objects")
    check_module(bare, PYTHONPATH=str(unpacked(only_wheel(tmp_path))))


def test_uv_beside_a_newer_toolkit(bare: Ground, tmp_path: Path) -> None:
    """uv gets the compiler and nothing of torch, which is borrowed."""
    project = copy_project("tiny_cuda", tmp_path)
    newer = tmp_path / "newer" / "bin"
    newer.mkdir(parents=True)
    for name in ("nvcc", "ptxas", "cudafe++", "cicc"):
        (newer / name).write_text(NEWER)
        (newer / name).chmod(0o755)
    # Set by env, after what is on PATH has been hidden.
    seen: list[str | Path] = ["env", f"PATH={newer}:{bare.environ['PATH']}"]
    build: list[str | Path] = [UV, "build", "--wheel", "--python", bare.python, "-o", tmp_path / "dist", project]
    run = hidden(bare, seen + build, tmp_path, SAFE_EXT_BUILD_CUDA_MISMATCH="exact").check()
    assert (newer / "asked").exists()
    assert run.says("CUDA ", "nvidia/cu13 (wheels): the CUDA of torch")
    assert run.says("compiled 3 objects")
    assert not is_pure(only_wheel(tmp_path / "dist"))


@pytest.mark.parametrize("frontend", ["uv", "another"])
def test_without_isolation_the_error_says_what_to_install(frontend: str, bare: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    code = f"from safe_ext_build import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    # Under a shell: a Python that calls our hooks, such as that of the tests, counts as the target's.
    command: list[str | Path] = ["sh", "-c", '"$@"; exit $?', "sh", bare.python, "-c", code]
    start = f"{bare.python} -m pip install"
    if frontend == "uv":
        options = ("--wheel", "--no-build-isolation", "--python", bare.python, "-o", tmp_path)
        command = [UV, "build", *options, project]
        start = f"uv pip install --python {bare.python}"
    run = hidden(bare, command, project)
    assert run.status != 0
    assert run.says("warning: torch ", "no CUDA compiler was found", f'to have one: {start} "cuda-toolkit[nvcc')
    assert run.says(f'hint: {start} "cuda-toolkit[nvcc,cccl]==')


@pytest.mark.parametrize("hook", ["wheel", "editable", "sdist"])
def test_only_what_compiles_asks(hook: str, bare: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    asked = requires(bare, project, hook).output.splitlines()[-1]
    assert asked.startswith("['cuda-toolkit[nvcc,cccl]==") is (hook != "sdist")
    assert requires(bare, project, hook, SAFE_EXT_BUILD_CUDA_PROVISION="never").output == "[]\n"


def test_who_does_not_ask_for_cuda_gets_no_compiler(bare: Ground, tmp_path: Path) -> None:
    helper = "from torch.utils import cpp_extension\ncpp_extension.CppExtension('a', [])  # no CUDAExtension\n"
    for project in (copy_project("host_only", tmp_path), write_project(tmp_path, helper)):
        assert requires(bare, project, "wheel").output == "[]\n"
    always = requires(bare, tmp_path / "host_only", "wheel", SAFE_EXT_BUILD_CUDA_PROVISION="always")
    assert "cuda-toolkit[nvcc,cccl]" in always.output.splitlines()[-1]
