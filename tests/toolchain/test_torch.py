from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import fakes
import pytest

from safe_ext_build.errors import TorchError
from safe_ext_build.toolchain.torch import TorchFacts, read_torch


def test_facts_come_from_files(tmp_path: Path) -> None:
    home = fakes.wheels(tmp_path)
    facts = read_torch(fakes.torch(tmp_path))
    assert (facts.version, facts.cuda, facts.hip) == ("2.14.1+cu130", "13.0", None)
    cudnn = tmp_path / "nvidia" / "cudnn"
    assert facts.include_dirs == (home / "include", cudnn / "include")
    assert facts.library_dirs == (home / "lib", cudnn / "lib")


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("__version__ = '2.4.0+cpu'\ncuda = None\nhip = None", "torch 2.4.0+cpu (CPU only)"),
        ("__version__ = '2.4.0'\ncuda = None\nhip: str = '6.2'", "torch 2.4.0 (ROCm 6.2)"),
        ("__version__ = '2.4.0'\ncuda: str | None = '12.4'", "torch 2.4.0 (CUDA 12.4)"),
        ("__version__ = str('x')\n__version__ = '2.1.0a0+git'\na = b = 1", "torch 2.1.0a0+git (CPU only)"),
    ],
)
def test_version_file(tmp_path: Path, text: str, described: str) -> None:
    package = fakes.torch(tmp_path)
    (package / "version.py").write_text(text)
    assert read_torch(package).describe() == described


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuda = '13.0'", "names no version"),
        ("version = (", "cannot be read"),
        ("\0", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_unreadable(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    with pytest.raises(TorchError, match=message):
        read_torch(tmp_path)


@pytest.mark.parametrize(
    ("version", "header", "standard"),
    [
        ("2.0.1", None, 14),
        ("2.1.0", None, 17),
        ("2.12.1+cu130", None, 17),
        ("2.13.0a0", None, 20),
        ("3.0", None, 20),
        ("nightly", None, 17),
        ("2.4.0", "#pragma once\n#error C++20 or later compatible compiler is required to use ATen.", 20),
        ("2.14.0", "#error C++17 or later compatible compiler is required to use ATen.", 17),
        ("2.14.0", "no word about it", 20),
    ],
)
def test_cxx_standard(tmp_path: Path, version: str, header: str | None, standard: int) -> None:
    package = fakes.torch(tmp_path, version)
    if header is not None:
        fakes.files(package / "include", ["ATen/ATen.h"])
        (package / "include" / "ATen" / "ATen.h").write_text(header)
    assert read_torch(package).cxx_standard == standard


def test_wheels_of_another_cuda_are_left_alone(tmp_path: Path) -> None:
    thirteen = fakes.wheels(tmp_path)
    fakes.files(tmp_path / "nvidia", ["cublas/include/cublas_v2.h", "cuda_runtime/include/cuda_runtime.h"])
    new = read_torch(fakes.torch(tmp_path / "new"), search=[tmp_path])
    old = read_torch(fakes.torch(tmp_path / "old", "2.6.0+cu124", "12.4"), search=[tmp_path])
    assert [path.parent.name for path in new.include_dirs] == ["cu13", "cudnn"]
    assert thirteen / "include" not in old.include_dirs
    assert [path.parent.name for path in old.include_dirs] == ["cublas", "cuda_runtime", "cudnn"]


def test_a_cpu_torch_has_no_wheels(tmp_path: Path) -> None:
    fakes.wheels(tmp_path)
    assert read_torch(fakes.torch(tmp_path, "2.14.1+cpu", None)).include_dirs == ()


def real_torch() -> TorchFacts:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return read_torch(Path(spec.submodule_search_locations[0]))


@functools.cache
def ask_torch() -> list[str]:
    """What an imported torch says: its version, CUDA, ROCm, and what it was compiled for."""
    code = "import torch, torch.version as v; print(v.__version__, v.cuda, v.hip, torch._C._cuda_getArchFlags())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return said.stdout.split()


@pytest.mark.torch
def test_the_real_torch_says_the_same_of_itself() -> None:
    facts = real_torch()
    said = ask_torch()[:3]
    assert said == [facts.version, str(facts.cuda), str(facts.hip)]
