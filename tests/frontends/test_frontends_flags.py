"""Flags that setup scripts pin, made to fit, with the real nvcc and torch's own helper."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from frontend_runs import Ground, Run, copy_project, is_pure, needs_cuda, only_wheel

pytest_plugins = ["frontend_fixtures"]
pytestmark = [*needs_cuda, pytest.mark.frontend]

CHECKS = """
#ifndef WORD
#error the flags in CC and CXX are lost
#endif
static_assert(__cplusplus >= 202002L, "a standard that torch refuses");
#ifdef __CUDACC__
#define LIST(...) #__VA_ARGS__
#define TEXT(list) LIST(list)
static_assert(sizeof(TEXT(__CUDA_ARCH_LIST__)) == sizeof("{archs}"), "other architectures than planned");
#endif
"""


def build(ground: Ground, parent: Path, cxx: list[str], nvcc: list[str], archs: str, **environ: str) -> Run:
    """Build the small CUDA project with these flags; its sources demand C++20 and what `archs` says."""
    project = copy_project("tiny_cuda", parent)
    setup = project / "setup.py"
    text = setup.read_text().replace('{"cxx": ["-O1"], "nvcc": ["-O1"]}', repr({"cxx": cxx, "nvcc": nvcc}))
    assert "-O1" not in text
    setup.write_text(text)
    header = project / "csrc" / "tiny.h"
    header.write_text(header.read_text() + CHECKS.format(archs=archs))
    named = {"CC": f"{real('gcc')} -DWORD", "CXX": f"{real('c++')} -DWORD"}
    return ground.wheel(project, **{**named, **environ})


def real(name: str) -> str:
    path = shutil.which(name)
    assert path, "these tests need a C++ compiler"
    return os.path.realpath(path)


def count(run: Run, *words: str) -> int:
    return sum(all(word in line for word in words) for line in run.said)


def test_a_low_standard_is_raised_and_dropped_architectures_come_back(ground: Ground, tmp_path: Path) -> None:
    flags = ["-std=c++17", "-Xcompiler", "-march=native"]
    run = build(ground, tmp_path, ["-std=gnu++17"], flags, "800,900", TORCH_CUDA_ARCH_LIST="8.0;9.0").check()
    assert count(run, "-std=c++17 is raised to c++20, the least that torch") == 1
    assert count(run, "-std=gnu++17 is raised to gnu++20") == 1
    assert count(run, "because of the flag -march=native: added those of 8.0;9.0") == 1
    assert not is_pure(only_wheel(tmp_path / "dist"))


def test_architectures_that_nvcc_dropped_are_left_out(ground: Ground, tmp_path: Path) -> None:
    flags = ["-gencode", "arch=compute_35,code=sm_35", "-gencode=arch=compute_80,code=sm_80"]
    run = build(ground, tmp_path, [], flags, "800", TORCH_CUDA_ARCH_LIST="9.0").check()
    assert count(run, "does not know sm_35: left out", "compile for sm_80 now") == 1
    assert count(run, "TORCH_CUDA_ARCH_LIST", "asks for 9.0", "compiled for sm_80") == 1


def test_no_architecture_left_ends_the_build(ground: Ground, tmp_path: Path) -> None:
    run = build(ground, tmp_path, [], ["-arch=sm_35"], "", TORCH_CUDA_ARCH_LIST="8.0")
    assert run.status != 0
    reason = r"compiled for sm_35 only, which nvcc \S+ does not know; it knows [\d, ]+"
    error, hint = run.said[-2:]
    assert re.fullmatch(rf"error\[SEB-6005\]: \S+\.cu does not compile: {reason}", error)
    assert hint.startswith("hint: Take -gencode and -arch out of the flags")


def fake(place: Path, name: str, body: str, version: str = "99.0.0") -> Path:
    """A compiler that claims to be of another version."""
    path = place / name
    path.write_text(
        f'#!/bin/sh\ncase "$*" in --version|-v) echo "{name} (Fake) {version}"; exit;; '
        f"-dump*) echo {version}; exit;; esac\n{body}\n"
    )
    path.chmod(0o755)
    return path


def test_a_fitting_host_compiler_is_used_instead(ground: Ground, tmp_path: Path) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("gcc", "c++", "g++"):
        fake(place, name, 'echo "#error -- unsupported GNU version!" >&2; exit 1')
    usable = fake(place, "g++-12", f'exec {real("c++")} -DWORD "$@"', "12.2.0")
    unset = {"CC": "", "CXX": "", "PATH": f"{place}:{os.environ['PATH']}"}
    run = build(ground, tmp_path, [], [], "800", TORCH_CUDA_ARCH_LIST="8.0", **unset).check()
    (line,) = [line for line in run.said if "nvcc's host code are compiled with" in line]
    assert line.startswith(f"gcc 99.0.0 ({place / 'gcc'}) does not fit: nvcc ") and line.endswith(f"({usable})")


def test_a_host_compiler_that_does_not_fit_ends_before_compiling(ground: Ground, tmp_path: Path) -> None:
    compiler = fake(tmp_path, "gcc-99", "exit 1")
    run = build(ground, tmp_path, [], [], "800", TORCH_CUDA_ARCH_LIST="8.0", CC=str(compiler))
    assert run.status != 0
    *_, error, hint = run.said
    assert error.startswith(f"error[SEB-2104]: CC is '{compiler}': gcc 99.0.0 ({compiler}) does not fit, as nvcc ")
    assert hint.startswith("hint: ")
    assert "ninja" not in run.output and "running build_ext" not in run.output
