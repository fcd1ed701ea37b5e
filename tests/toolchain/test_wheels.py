from __future__ import annotations

from pathlib import Path

import fakes
import pytest

from safe_ext_build.toolchain import wheels
from safe_ext_build.toolchain.torch import read_torch
from safe_ext_build.toolchain.wheels import Installer, how_to_install

SINGLE = (
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
)


def asked(site: Path, cuda: str | None, *requires: str) -> tuple[str, ...]:
    package = fakes.torch(site, cuda=cuda)
    fakes.metadata(site, "torch", "2.14.1", *requires)
    return wheels.requirements(read_torch(package))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.parametrize(
    ("cuda", "requires", "expected"),
    [
        (
            "13.0",
            ["filelock", 'cuda-toolkit[cublas,cudart]==13.0.3; sys_platform != "win32"'],
            ("cuda-toolkit[nvcc,cccl]==13.0.3",),
        ),
        ("13.0", ["nvidia-cuda-runtime==13.0.48"], SINGLE),
        ("13.0", [], SINGLE),
        ("13.0", ['cuda-toolkit[cudart]==13.0.3; sys_platform == "win32"'], SINGLE),
        ("13.0", ["cuda-toolkit[cudart]==13.2.1"], SINGLE),
        ("13.0", ["cuda-toolkit[cudart]>=13.0.3"], SINGLE),
        ("13.0", ["cuda-toolkit[what is this]"], SINGLE),
        ("12.8", ["cuda-toolkit[cudart]==12.8.1"], ()),
        (None, [], ()),
    ],
)
def test_what_is_asked_for(
    tmp_path: Path, cuda: str | None, requires: list[str], expected: tuple[str, ...]
) -> None:
    assert asked(tmp_path, cuda, *requires) == expected


def test_no_wheels_for_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "ppc64le")
    assert asked(tmp_path, "13.0") == ()


def test_a_torch_without_metadata(tmp_path: Path) -> None:
    assert wheels.requirements(read_torch(fakes.torch(tmp_path))) == SINGLE


def test_how_to_install() -> None:
    wanted = ["cuda-toolkit[nvcc,cccl]==13.0.3"]
    rest = "or install cuda-toolkit-13-0 from NVIDIA's package repository"
    assert how_to_install("13.0", wanted, Installer(Path("/a b/bin/python"))) == (
        f"'/a b/bin/python' -m pip install \"cuda-toolkit[nvcc,cccl]==13.0.3\", {rest}"
    )
    assert how_to_install("13.0", wanted, Installer(Path("/v/bin/python"), uv=True)) == (
        f'uv pip install --python /v/bin/python "cuda-toolkit[nvcc,cccl]==13.0.3", {rest}'
    )
    assert how_to_install("13.0", wanted, None) == (
        f'add "cuda-toolkit[nvcc,cccl]==13.0.3" to build-system.requires, {rest}'
    )


def test_how_to_install_what_no_wheels_have() -> None:
    assert how_to_install("12.8", [], Installer(Path("/v/bin/python"))) == (
        "install cuda-toolkit-12-8 from NVIDIA's package repository "
        "(apt install cuda-toolkit-12-8, dnf install cuda-toolkit-12-8), "
        "or conda install -c nvidia cuda-toolkit=12.8, "
        "or, from https://developer.nvidia.com/cuda-toolkit-archive, "
        "sh cuda_12.8.*_linux.run --silent --toolkit (the wheels of CUDA 12 have no nvcc)"
    )
    assert "no nvcc" not in how_to_install("13.0", [], None)
