from __future__ import annotations

from pathlib import Path

import fakes
import pytest
from test_torch import ask_torch, real_torch

from safe_ext_build.errors import SettingsError, ToolkitError
from safe_ext_build.toolchain.archs import TorchArchs, normalise_archs, select_archs, torch_archs
from safe_ext_build.toolchain.torch import read_torch

NVCC = ("75", "80", "86", "90", "100", "120")
TORCH = TorchArchs(
    name="torch 2.14.1",
    supported=("3.5", "7.0", "7.5", "8.0", "8.6", "9.0", "9.0a", "10.0", "12.0"),
    default=("7.5", "8.0", "9.0", "12.0"),
)
NO_GPU = "no GPU here, so for what torch 2.14.1 was built for: 7.5;8.0;9.0;12.0"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("8.6", "8.6"),
        (" 8.6 ", "8.6"),
        ("8.6;", "8.6"),
        ("8.6,8.9", "8.6 8.9"),
        ("8.6\uff1b8.9\uff0c9.0", "8.6 8.9 9.0"),
        ("8.0 8.6\n9.0", "8.0 8.6 9.0"),
        ('"8.0;8.6"', "8.0 8.6"),
        ("86", "8.6"),
        ("sm_86", "8.6"),
        ("SM86", "8.6"),
        ("compute_86", "8.6+PTX"),
        ("sm_86 compute_86", "8.6+PTX"),
        ("86-real;90-virtual", "8.6 9.0+PTX"),
        ("8.6+PTX", "8.6+PTX"),
        ("8.6+ptx;8.6", "8.6+PTX"),
        ("90a", "9.0a"),
        ("9.0A", "9.0a"),
        ("sm_90a;90", "9.0a 9.0"),
        ("100f", "10.0f"),
        ("12.0f", "12.0f"),
        ("120", "12.0"),
        ("3.5", "3.5"),
        ("Volta", "7.0+PTX"),
        ("ampere", "8.0 8.6+PTX"),
        ("Ampere+Tegra", "8.7"),
        ("Turing;ADA;Hopper+PTX", "7.5+PTX 8.9+PTX 9.0+PTX"),
        ("Blackwell", "10.0 10.3 12.0 12.1+PTX"),
        ("All", "all"),
        ("native;9.0", "native 9.0"),
        ("Auto", "native"),
        ("", ""),
        (" ; ", ""),
        # As an East Asian keyboard writes them.
        ("\uff18.\uff16\uff1b9.0\uff0bPTX", "8.6 9.0+PTX"),
        ("8.6 + PTX; 9.0 +ptx", "8.6+PTX 9.0+PTX"),
    ],
)
def test_normalised(value: str, expected: str) -> None:
    assert normalise_archs(value, "TORCH_CUDA_ARCH_LIST") == expected.split()


@pytest.mark.parametrize(
    "word", ["8", "8.66", "fermi", "gfx90a", "sm_", "8.6b", "9.0+PTY", "-86", "8..6", "all+PTX"]
)
def test_junk(word: str) -> None:
    with pytest.raises(SettingsError) as caught:
        normalise_archs(f"8.0;{word}", "TORCH_CUDA_ARCH_LIST in the environment")
    assert str(caught.value) == (
        f"TORCH_CUDA_ARCH_LIST in the environment is '8.0;{word}', in which '{word}' is no architecture"
    )
    assert "8.6+PTX" in caught.value.hint and "native" in caught.value.hint


@pytest.mark.parametrize(
    ("requested", "gpus", "value", "lines"),
    [
        (["8.6", "9.0a"], [], "8.6;9.0a", []),
        (["8.6+PTX"], ["9.0"], "8.6+PTX", []),
        (
            ["7.0", "8.6", "12.0f"],
            [],
            "8.6",
            ["cuda.archs: dropped 7.0 (nvcc does not know it), 12.0f (torch 2.14.1 does not know it)"],
        ),
        (["all"], [], "7.5;8.0;8.6;9.0;10.0;12.0+PTX", []),
        (["all", "9.0a"], [], "7.5;8.0;8.6;9.0;10.0;12.0+PTX;9.0a", []),
        (["native"], ["8.6"], "8.6+PTX", ["cuda.archs is native: for the GPUs here: 8.6+PTX"]),
        (["native", "9.0"], ["8.6"], "8.6+PTX;9.0", ["cuda.archs is native: for the GPUs here: 8.6+PTX"]),
        (
            ["native"],
            [],
            "7.5;8.0;9.0;12.0",
            [f"cuda.archs is native: {NO_GPU}"],
        ),
        (None, [], "7.5;8.0;9.0;12.0", [NO_GPU]),
        ([], ["12.0", "8.6", "8.6"], "8.6;12.0+PTX", ["for the GPUs here: 8.6;12.0+PTX"]),
        (None, ["12.1"], "12.0+PTX", ["nvcc does not know the GPU here, 12.1: PTX of 12.0 is built for it"]),
        (
            None,
            ["8.9", "9.0"],
            "8.6;9.0+PTX",
            ["nvcc does not know the GPU here, 8.9: PTX of 8.6 is built for it"],
        ),
        (
            None,
            ["6.1", "9.0"],
            "9.0+PTX",
            ["the GPU here of architecture 6.1 is left out: nvcc does not know it"],
        ),
    ],
)
def test_selected(requested: list[str] | None, gpus: list[str], value: str, lines: list[str]) -> None:
    assert select_archs(requested, "cuda.archs", NVCC, TORCH, gpus) == (value, lines)


def test_nothing_left() -> None:
    with pytest.raises(ToolkitError) as caught:
        select_archs(["3.5", "12.0f"], "cuda.archs", NVCC, TORCH, [])
    assert str(caught.value) == (
        "cuda.archs: no architecture is left of 3.5 (nvcc does not know it), 12.0f (torch 2.14.1 does not know it)"
    )
    assert (
        caught.value.hint
        == "choose from what this nvcc and torch 2.14.1 both know: 7.5, 8.0, 8.6, 9.0, 10.0, 12.0; 9.0a too"
    )
    with pytest.raises(ToolkitError, match=r"nothing to compile for: the GPU here of architecture 6.1"):
        select_archs(None, "", NVCC, TORCH, ["6.1"])


def test_what_cannot_tell_is_believed() -> None:
    silent = TorchArchs("torch", (), ("8.0", "9.0"))
    assert select_archs(["3.5", "15.0f"], "cuda.archs", (), silent, []) == ("3.5;15.0f", [])
    assert select_archs(["all"], "cuda.archs", (), silent, []) == ("8.0;9.0+PTX", [])


def test_torch_tells_from_its_files(tmp_path: Path) -> None:
    package = fakes.torch(tmp_path)
    fakes.files(package, ["utils/cpp_extension.py", "lib/libtorch_python.so"])
    helper = "x = 1\n    supported_arches = ['3.5', '9.0',\n   '9.0a',\n '10.0']\n y = ['4.4']\n"
    (package / "utils" / "cpp_extension.py").write_text(helper)
    library = b"ELF\0sm_60 is old\0sm_80 sm_86 sm_90a compute_90\0\0sm_70 sm_75\0"
    (package / "lib" / "libtorch_python.so").write_bytes(library)
    archs = torch_archs(read_torch(package))
    assert archs.supported == ("3.5", "9.0", "9.0a", "10.0")
    assert archs.default == ("8.0", "8.6", "9.0a", "9.0+PTX")


@pytest.mark.parametrize(
    ("cuda", "first"),
    [("11.8", "5.0"), ("12.4", "5.0"), ("12.8", "7.5"), ("13.2", "7.5"), ("10.2", None), (None, None)],
)
def test_torch_that_does_not_tell(tmp_path: Path, cuda: str | None, first: str | None) -> None:
    package = fakes.torch(tmp_path, cuda=cuda)
    fakes.files(package / "lib", ["libtorch_python.so"])
    archs = torch_archs(read_torch(package))
    assert (next(iter(archs.default), None), archs.supported) == (first, ())


def test_an_empty_library(tmp_path: Path) -> None:
    package = fakes.torch(tmp_path)
    (package / "lib").mkdir()
    (package / "lib" / "libtorch_python.so").touch()
    assert torch_archs(read_torch(package)).default


# What users have set, and torch's own helper stops at: IndexError, "No GPUs found", "Unknown CUDA arch".
REPORTED = {
    "": "7.5;8.0;9.0;12.0",
    "native": "7.5;8.0;9.0;12.0",
    "8.6;": "8.6",
    "8.6,9.0": "8.6;9.0",
    "8.6\uff1b9.0": "8.6;9.0",
    "86": "8.6",
    "sm_86": "8.6",
    " 8.6 ": "8.6",
    "ampere": "8.0;8.6+PTX",
    "All": "7.5;8.0;8.6;9.0;10.0;12.0+PTX",
    "8.6;12.0f": "8.6",
    "9.0a": "9.0a",
    "9.0+PTX;10.0;3.0": "9.0+PTX;10.0",
}


@pytest.mark.parametrize(("value", "expected"), REPORTED.items())
def test_reported_values_become_a_list_that_torch_takes(value: str, expected: str) -> None:
    found, _ = select_archs(normalise_archs(value, "X"), "X", NVCC, TORCH, [])
    assert found == expected
    accepted = {*TORCH.supported, *(f"{arch}+PTX" for arch in TORCH.supported)}
    assert found and set(found.split(";")) <= accepted


@pytest.mark.torch
@pytest.mark.cuda
def test_the_real_torch_tells() -> None:
    archs = torch_archs(real_torch())
    assert {"8.0", "9.0a"} <= set(archs.supported)
    flags = [flag for flag in ask_torch()[3:] if flag.startswith("sm_")]
    assert [arch.replace(".", "") for arch in archs.default] == [flag.removeprefix("sm_") for flag in flags]
