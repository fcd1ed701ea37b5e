"""What makes an object another one without standing in any depfile or command line."""

from __future__ import annotations

import os
from pathlib import Path

import fakes
import pytest

from safe_ext_build.toolchain import target
from safe_ext_build.toolchain.borrow import TorchSource
from safe_ext_build.toolchain.find import Cuda, Torch
from safe_ext_build.toolchain.fingerprint import fingerprint
from safe_ext_build.toolchain.torch import read_torch


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return fakes.toolkit(tmp_path / "cuda")


def with_torch(package: Path) -> Torch:
    return Torch(TorchSource("own", package, ""), target.own(), read_torch(package))


def test_the_same_is_the_same(tmp_path: Path, home: Path) -> None:
    torch, cuda = with_torch(fakes.torch(tmp_path)), Cuda(home, "V13.0.88", "8.0")
    assert fingerprint(torch, cuda, os.environ) == fingerprint(torch, cuda, dict(os.environ))


def test_another_torch_in_the_same_place(tmp_path: Path) -> None:
    package = fakes.torch(tmp_path)
    before = fingerprint(with_torch(package), None, {})
    version = package / "version.py"
    version.write_text(version.read_text().replace("2.14.1", "2.14.2"))
    after = fingerprint(with_torch(package), None, {})
    version.write_text(version.read_text() + "git_version = 'abc'\n")  # a build of one's own
    assert len({before, after, fingerprint(with_torch(package), None, {})}) == 3


@pytest.mark.parametrize("tool", ["bin/nvcc", "bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc"])
def test_another_toolkit_behind_the_same_path(home: Path, tool: str) -> None:
    cuda = Cuda(home, "V13.0.88", "8.0")
    before = fingerprint(None, cuda, {})
    with (home / tool).open("a") as file:
        file.write("# another\n")
    assert fingerprint(None, cuda, {}) != before


@pytest.mark.parametrize(
    "variable", ["CC", "CXX", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN", "CPATH"]
)
def test_what_compilers_read_from_the_environment(variable: str) -> None:
    assert fingerprint(None, None, {}) != fingerprint(None, None, {variable: "other"})


def test_torch_or_none(tmp_path: Path) -> None:
    assert fingerprint(None, None, {}) != fingerprint(with_torch(fakes.torch(tmp_path)), None, {})
