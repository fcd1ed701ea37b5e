"""Whose fault it was: real compilers killed by the kernel and by hand, and compilers that only look like it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from memory_builds import StandinBuild
from real_cgroups import MIB, Group, made

from safe_ext_build.toolchain import cuda

# g++ holds some 400 MiB in the end, and grows to it steadily.
HEAVY = "int a[] = {" + ",".join(f"({n})+({n})" for n in range(600_000)) + "};\n"
# Only device code: nvcc's cicc holds some 900 MiB, its other tools a third of it at most.
DEVICE = "#ifdef __CUDA_ARCH__\n__device__ int a[] = {" + ",".join(f"({n})+({n})" for n in range(600_000))
DEVICE += "};\n#endif\n__global__ void kernel(int *p) {}\n"


@pytest.fixture
def cgroup() -> Iterator[Group]:
    with made("memory") as group:
        yield group


def limit(cgroup: Group, mib: int) -> None:
    cgroup.set_limit(mib * MIB)
    cgroup.forbid_swap(mib * MIB)


def host_build(tmp_path: Path, *names: str) -> StandinBuild:
    """Sources that the real g++ compiles."""
    compiler = shutil.which("g++")
    assert compiler, "the tests need g++"
    build = StandinBuild(tmp_path / "host", Path(compiler))
    build.variables |= {"STANDIN_FLAGS": "-x c++", "STANDIN_DEPENDENCIES": "-MMD -MF", "MAX_JOBS": str(len(names))}
    return with_sources(build, names, HEAVY)


def device_build(tmp_path: Path, *names: str) -> StandinBuild:
    """Sources that the real nvcc compiles."""
    toolkits = cuda.discover(None, "", os.environ).found
    if not toolkits:
        pytest.skip("no nvcc is installed")
    build = StandinBuild(tmp_path / "device", toolkits[0].home / "bin" / "nvcc")
    return with_sources(build, names, DEVICE)


def with_sources(build: StandinBuild, names: tuple[str, ...], text: str) -> StandinBuild:
    build.write_sources(dict.fromkeys(names, ""))
    for name in names:
        (build.root / "csrc" / f"{name}.cu").write_text(text)
    return build


def failed(build: StandinBuild, process: subprocess.Popen[str]) -> list[str]:
    """Wait for a build that must fail; the lines that it printed."""
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    assert "Traceback" not in text
    build.assert_nothing_left()
    assert build.outputs() == []
    return text.splitlines()


def assert_memory_is_blamed(lines: list[str], build: StandinBuild, limit: float) -> None:
    """`limit`: GiB."""
    error, hint = lines[-2:]
    source = build.root / "csrc" / "big.cu"
    assert error.startswith(
        f"safe-ext-build: error[SEB-6004]: {source}: the compiler was killed because memory ran out"
    ), error
    assert ", although nothing else of this build ran (it held " in error
    assert error.endswith(f" of {limit:.1f})")
    assert hint.startswith("safe-ext-build: hint: Compile for fewer GPU architectures")


def test_cc1plus_killed_by_the_kernel_is_run_again(tmp_path: Path, cgroup: Group) -> None:
    """Not guarded, two start at once, and the kernel must kill one."""
    limit(cgroup, 700)
    build = host_build(tmp_path, "left", "right")
    build.variables["SAFE_EXT_BUILD_JOBS_MEMORY_GUARD"] = "false"
    text = build.finish(build.start(cgroup))
    assert cgroup.oom_kills > 0
    assert "compiled 2 objects" in text
    assert "error" not in text
    assert build.outputs() == ["left.o", "right.o"]
    build.assert_nothing_left()


def test_cc1plus_that_never_fits(tmp_path: Path, cgroup: Group) -> None:
    limit(cgroup, 250)
    build = host_build(tmp_path, "big")
    assert_memory_is_blamed(failed(build, build.start(cgroup)), build, 0.2)
    assert cgroup.oom_kills >= 2


@pytest.mark.cuda
def test_cicc_that_never_fits(tmp_path: Path, cgroup: Group) -> None:
    limit(cgroup, 600)
    build = device_build(tmp_path, "big")
    assert_memory_is_blamed(failed(build, build.start(cgroup)), build, 0.6)
    assert cgroup.oom_kills >= 2


@pytest.mark.cuda
def test_cicc_killed_by_hand_ends_the_build(tmp_path: Path) -> None:
    build = device_build(tmp_path, "first", "second")
    process = build.start()
    find(process, "cicc").kill()
    *_, error, hint = failed(build, process)
    assert error.startswith("safe-ext-build: error[SEB-5003]: the build was stopped: the compiler of "), error
    assert error.endswith(".cu was killed by signal 9")
    assert hint.startswith("safe-ext-build: hint: Somebody ended it, ")
    assert hint.endswith(" Finished objects are kept and used again.")


def find(process: subprocess.Popen[str], name: str) -> psutil.Process:
    """The first process of that name below `process`."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                if child.name() == name:
                    return child
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.02)
    raise AssertionError(f"{name} never ran")


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 137", 137), ("echo Killed >&2; exit 1", 1), ("echo out of memory allocating 8 bytes >&2; exit 1", 1)],
)
def test_a_compiler_that_only_looks_like_it(tmp_path: Path, script: str, code: int) -> None:
    """No memory was short: it has failed, at once, and is not run again."""
    compiler = tmp_path / "nvcc"
    counter = tmp_path / "runs"
    compiler.write_text(f"#!/bin/sh\ncase $* in *' -c '*) echo >>{counter}; {script};; esac\n")
    compiler.chmod(0o755)
    build = StandinBuild(tmp_path / "odd", compiler)
    build.write_sources({"big": ""})
    error = next(
        line for line in failed(build, build.start()) if f"error[SEB-{6002 if code == 137 else 6001}]: " in line
    )
    assert error.endswith(f"big.cu does not compile: the compiler ended with exit status {code}"), error
    assert counter.read_text() == "\n"
