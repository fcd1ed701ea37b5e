"""What to do: the texts that a user reads when torch, CUDA or a package is not there. Cases 50, 55, 65 and 94."""

from __future__ import annotations

from pathlib import Path

import pytest

from safe_ext_build import advice
from safe_ext_build.errors import ToolkitError, TorchError
from safe_ext_build.toolchain.borrow import TorchSource
from safe_ext_build.toolchain.find import Cuda, Torch
from safe_ext_build.toolchain.target import Environment
from safe_ext_build.toolchain.torch import TorchFacts

OWN = Environment(Path("/b/bin/python"), Path("/b"), (3, 11), ".so", (), None)
LINE = "no torch to build against: /env (the environment of pip) has no torch"
CUDA = Cuda(Path("/cuda"), "V13.0.88", "8.0")


def having(cuda: str | None, hip: str | None = None) -> Torch:
    package = Path("/env/site-packages/torch")
    facts = TorchFacts("2.14.1", cuda, hip, package, 20)
    return Torch(TorchSource("borrowed", package, "a line"), OWN, facts)


NONE = Torch(TorchSource("none", None, LINE), OWN)
NEEDS_CUDA = [
    (having(None), None, TorchError, "torch 2.14.1 (CPU only) in /env/site-packages is no CUDA build"),
    (having(None, "6.4"), None, TorchError, "torch 2.14.1 (ROCm 6.4) in /env/site-packages is no CUDA build"),
    (having("13.0"), None, ToolkitError, "no CUDA compiler was found for torch 2.14.1 (CUDA 13.0)"),
    (NONE, None, TorchError, LINE),
]


@pytest.mark.parametrize(("torch", "cuda", "kind", "text"), NEEDS_CUDA)
def test_what_a_build_that_requires_cuda_lacks(
    torch: Torch, cuda: Cuda | None, kind: type[Exception], text: str
) -> None:
    error = advice.unmet("require-cuda in pyproject.toml", torch, cuda)
    assert isinstance(error, kind)
    assert str(error).startswith("require-cuda in pyproject.toml asks for CUDA") and text in str(error)
    assert "nstall " in error.hint


def test_a_build_that_requires_cuda_and_has_it() -> None:
    assert advice.unmet("-C require-cuda", having("13.0"), CUDA) is None


REACHED = [
    "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
    "TypeError: unsupported operand type(s) for +: 'NoneType' and 'str'",
    "TypeError: expected str, bytes or os.PathLike object, not NoneType (join)",
    "RuntimeError: --cuda_ext was requested, but nvcc was not found.",
]


@pytest.mark.parametrize("failure", REACHED)
def test_a_cuda_extension_meets_a_torch_without_cuda(failure: str) -> None:
    first, second = advice.afterthought(failure, having(None), None).splitlines()
    assert first == "torch 2.14.1 (CPU only) in /env/site-packages cannot build CUDA extensions."
    assert "--index-url https://download.pytorch.org/whl/" in second
    assert "ROCm 6.4" in advice.afterthought(failure, having(None, "6.4"), None)
    said = advice.afterthought(failure, having("13.0"), None).splitlines()
    assert said[0] == advice.NO_COMPILER and "cuda-toolkit-13-0" in said[1]
    assert advice.afterthought(failure, having("13.0"), CUDA) == ""


def test_other_failures_have_nothing_to_do_with_it() -> None:
    assert advice.afterthought("RuntimeError: the reactor is too hot", having(None), None) == ""
    assert advice.afterthought("RuntimeError: the reactor is too hot", None, None) == ""
    assert advice.afterthought("RuntimeError: the reactor is too hot", NONE, None) == ""


@pytest.mark.parametrize(
    "failure", ["ModuleNotFoundError: No module named 'torch'", "RuntimeError: PyTorch must be installed first"]
)
def test_torch_is_missing(failure: str) -> None:
    first, second = advice.afterthought(failure, NONE, None).splitlines()
    assert first == LINE
    assert "python -m pip install torch" in second and "build-system.requires" in second
