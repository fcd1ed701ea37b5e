from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from safe_ext_build.toolchain.intent import asks_for_cuda, has_script

REPOSITORY = Path(__file__).resolve().parents[2]
HELPER = "from torch.utils import cpp_extension\n"


def project(place: Path, setup: str, modules: Mapping[str, str] = MappingProxyType({})) -> Path:
    for name, text in {"setup.py": setup, **modules}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


@pytest.mark.parametrize(
    "setup",
    [
        "from torch.utils.cpp_extension import CUDAExtension",
        "import torch.utils.cpp_extension as t\nt.CUDAExtension('a', [])",
        f"{HELPER}getattr(cpp_extension, 'CUDAExtension')",
        f"{HELPER}if cpp_extension.CUDA_HOME is None: pass",
        "import os\nos.environ.get('CUDA_HOME')",
        "import subprocess\nsubprocess.run(['nvcc', '--version'])",
        "from setuptools import Extension\nExtension('a', ['csrc/a.cu'])",
        "import glob\nglob.glob('csrc/**/*.cu')",
        f"{HELPER}cpp_extension.load('a', [], with_cuda=True)",
        "print 'Python 2'; CUDAExtension('a')",
    ],
)
def test_asks(tmp_path: Path, setup: str) -> None:
    assert asks_for_cuda(project(tmp_path, setup))


@pytest.mark.parametrize(
    "setup",
    [
        "",
        "from setuptools import setup\nsetup(name='cuda-tools', description='CUDA kernels', keywords=['CUDA'])",
        f"{HELPER}cpp_extension.CppExtension('a', ['csrc/a.cpp'])",
        f"{HELPER}# CUDAExtension would need nvcc\ncpp_extension.CppExtension('a', ['csrc/a.cpp'])",
        '"""Once this had a CUDAExtension."""\nimport torch\n',
        "Extension('a', ['csrc/a.cuh.cpp', 'a.current'])",
    ],
)
def test_does_not_ask(tmp_path: Path, setup: str) -> None:
    assert not asks_for_cuda(project(tmp_path, setup))


def test_without_a_setup_script(tmp_path: Path) -> None:
    (tmp_path / "a.cu").touch()
    assert not asks_for_cuda(tmp_path)


def test_the_projects_own_modules_count(tmp_path: Path) -> None:
    modules = {"tools/build.py": "from tools.more import extensions\n", "tools/more.py": "CUDAExtension = 1\n"}
    place = project(tmp_path, "from tools import build\n", modules)
    assert asks_for_cuda(place)
    (place / "setup.py").write_text("from os import path\n")
    assert not asks_for_cuda(place)


@pytest.mark.parametrize("line", ["from .more import x", "from . import more", "from ..other import y"])
def test_relative_imports_are_followed(tmp_path: Path, line: str) -> None:
    asks = "import nvcc\n"
    modules = {"tools/__init__.py": line, "tools/more.py": asks, "other.py": asks}
    assert asks_for_cuda(project(tmp_path, "import tools\n", modules))
    (tmp_path / "tools" / "__init__.py").write_text("from ..................... import nowhere\n")
    assert not asks_for_cuda(tmp_path)


def test_modules_that_import_each_other(tmp_path: Path) -> None:
    modules = {"a.py": "import b\n", "b.py": "import a, setup\n"}
    assert not asks_for_cuda(project(tmp_path, "import a\n", modules))


@pytest.mark.parametrize(
    ("name", "text", "asks"),
    [
        ("CMakeLists.txt", "project(kernels LANGUAGES CXX CUDA)", True),
        ("CMakeLists.txt", "enable_language( CUDA )", True),
        ("CMakeLists.txt", "find_package(CUDAToolkit REQUIRED)", True),
        ("CMakeLists.txt", "project(kernels LANGUAGES CXX)  # no CUDA\nset(WITH_CUDA OFF)", False),
        ("CMakeLists.txt", "project(cuda_tools CXX)", False),
        ("meson.build", "project('kernels', 'cpp', 'cuda')", True),
        ("meson.build", "import('unstable-cuda')", True),
        ("meson.build", "project('kernels', 'cpp')  # 'cuda'", False),
    ],
)
def test_other_build_scripts(tmp_path: Path, name: str, text: str, asks: bool) -> None:
    assert not has_script(tmp_path)
    (tmp_path / name).write_text(text)
    assert has_script(tmp_path)
    assert asks_for_cuda(tmp_path) is asks


@pytest.mark.parametrize(("source", "asks"), [("csrc/deep/a.cu", True), ("build/a.cu", False), (".v/a.cu", False)])
def test_cuda_sources_behind_torchs_helper(tmp_path: Path, source: str, asks: bool) -> None:
    path = tmp_path / source
    path.parent.mkdir(parents=True)
    path.touch()
    assert asks_for_cuda(project(tmp_path, f"{HELPER}from sources import KIND\n", {"sources.py": ""})) is asks
    assert not asks_for_cuda(project(tmp_path, "from setuptools import setup\nsetup()\n"))


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("example_package", True),
        ("tests/projects/tiny_cuda", True),
        ("tests/projects/host_only", False),
        ("tests/projects/plain", False),
    ],
)
def test_real_projects(name: str, asks: bool) -> None:
    assert asks_for_cuda(REPOSITORY / name) is asks
