"""Real memory, real limits: nothing is killed by the kernel, and every object is there in the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from memory_builds import Maker, StandinBuild

from safe_ext_build.toolchain import cuda

pytest_plugins = ["memory_fixtures"]


def build_of(tmp_path: Path, compiler: Path, name: str, sources: int, mib: int, seconds: float) -> StandinBuild:
    build = StandinBuild(tmp_path / name, compiler, {"MAX_JOBS": str(sources)})
    build.write_sources({f"k{number}": f"seconds={seconds} mib={mib}" for number in range(sources)})
    return build


def whole(build: StandinBuild, sources: int) -> None:
    assert build.objects() == {f"k{number}": "half whole\n" for number in range(sources)}
    build.assert_nothing_left()


def test_three_times_the_memory(tmp_path: Path, compiler: Path, limited: Maker) -> None:
    """20 compiles of 450 MiB, MAX_JOBS=20, in 3 GiB."""
    cgroup = limited(3072)
    build = build_of(tmp_path, compiler, "one", 20, 450, 0.7)
    text = build.finish(build.start(cgroup))
    assert cgroup.oom_kills == 0, text
    assert "at most 20 compiles at a time, as MAX_JOBS in the environment says" in text
    whole(build, 20)


def test_the_limit_of_a_parent(tmp_path: Path, compiler: Path, limited: Maker) -> None:
    outer = limited(3072)
    build = build_of(tmp_path, compiler, "nested", 10, 600, 0.5)
    innermost = outer.child("inner").child("innermost")
    text = build.finish(build.start(innermost))
    assert outer.oom_kills + innermost.oom_kills == 0, text
    whole(build, 10)


def test_two_builds_at_once(tmp_path: Path, compiler: Path, limited: Maker) -> None:
    cgroup = limited(4096)
    builds = [build_of(tmp_path, compiler, name, 8, 600, 0.7) for name in ("left", "right")]
    processes = [build.start(cgroup) for build in builds]
    texts = [build.finish(process) for build, process in zip(builds, processes, strict=True)]
    assert cgroup.oom_kills == 0, "\n".join(texts)
    for build in builds:
        whole(build, 8)


def test_a_history_that_lies(tmp_path: Path, compiler: Path, limited: Maker) -> None:
    """What was seen of the same compiles before is half of what they take now."""
    build = build_of(tmp_path, compiler, "changed", 10, 300, 2.0)
    build.finish(build.start())
    build.write_sources({f"k{number}": "seconds=2 mib=600" for number in range(10)})
    cgroup = limited(3072)
    text = build.finish(build.start(cgroup))
    assert cgroup.oom_kills == 0, text
    whole(build, 10)


def test_a_neighbour_arrives(tmp_path: Path, compiler: Path, limited: Maker) -> None:
    """Another program takes half of the memory in mid-build, and keeps it for a while."""
    cgroup = limited(4096)
    build = build_of(tmp_path, compiler, "crowded", 12, 500, 1.5)
    process = build.start(cgroup)
    time.sleep(6)
    hog = "import time; block = bytearray(1800 << 20); time.sleep(8)"
    with subprocess.Popen(cgroup.inside([sys.executable, "-c", hog])) as neighbour:
        text = build.finish(process)
        assert neighbour.wait(60) == 0
    assert cgroup.oom_kills == 0, text
    whole(build, 12)


def test_without_the_guard(tmp_path: Path, compiler: Path, limited: Maker) -> None:
    """Turned off, loudly; then the kernel kills, and what it killed still runs again."""
    cgroup = limited(2048)
    build = build_of(tmp_path, compiler, "open", 4, 700, 2.0)
    build.variables["SAFE_EXT_BUILD_JOBS_MEMORY_GUARD"] = "false"
    text = build.finish(build.start(cgroup))
    assert "MEMORY IS NOT GUARDED, as SAFE_EXT_BUILD_JOBS_MEMORY_GUARD in the environment says" in text
    assert cgroup.oom_kills > 0
    whole(build, 4)


KERNEL = """#include <thrust/device_ptr.h>
#include <thrust/sort.h>
void run{n}(float *p, int n) {{
  thrust::sort(thrust::device_pointer_cast(p), thrust::device_pointer_cast(p + n));
}}
"""
SETUP = """from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
sources = ["module.cpp", *(f"k{n}.cu" for n in range(6))]
setup(packages=[], ext_modules=[CUDAExtension("heavy", sources)], cmdclass={"build_ext": BuildExtension})
"""
MODULE = """#define PY_SSIZE_T_CLEAN
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "heavy", 0, -1, 0};
PyMODINIT_FUNC PyInit_heavy(void) { return PyModule_Create(&module); }
"""
PROJECT = """[build-system]
requires = ["safe-ext-build"]
build-backend = "safe_ext_build.build_meta"

[project]
name = "heavy"
version = "1"
"""


@pytest.mark.cuda
@pytest.mark.torch
def test_real_compilers(tmp_path: Path, limited: Maker) -> None:
    """Six real compiles of some 650 MiB each in 1.7 GiB: all at once they need more than twice that.

    Plain setuptools and torch, on the same machine with the same MAX_JOBS, lose compilers to the kernel.
    """
    pytest.importorskip("torch", reason="torch is not installed")
    toolkits = cuda.discover(None, "", os.environ).found
    if not toolkits:
        pytest.skip("no nvcc is installed")
    build = StandinBuild(tmp_path / "heavy", Path("/nonexistent"))
    build.variables |= {"MAX_JOBS": "6", "TORCH_CUDA_ARCH_LIST": "8.0"}
    write_heavy(build.root)
    cgroup = limited(1750)
    text = build.finish(build.start(cgroup))
    assert cgroup.oom_kills == 0, text
    assert "compiled 7 objects" in text
    build.assert_nothing_left()

    shutil.rmtree(build.root / "build")
    build.variables["CUDA_HOME"] = str(toolkits[0].home)
    plain = build.start(cgroup, "setuptools.build_meta")
    text, _ = plain.communicate(timeout=600)
    assert plain.returncode != 0, text
    assert cgroup.oom_kills > 0, text


def write_heavy(root: Path) -> None:
    for path in root.iterdir():
        if path.is_file():
            path.unlink()
    for number in range(6):
        (root / f"k{number}.cu").write_text(KERNEL.format(n=number))
    for name, text in (("setup.py", SETUP), ("module.cpp", MODULE), ("pyproject.toml", PROJECT)):
        (root / name).write_text(text)
