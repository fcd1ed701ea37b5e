"""What to do about a torch, a toolkit or a package that is not what a build needs. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .errors import SafeExtBuildError, ToolkitError, TorchError

if TYPE_CHECKING:
    from .toolchain.find import Cuda, Torch
    from .toolchain.torch import TorchFacts

NO_COMPILER = "no CUDA compiler was found, so only what needs none can be built"
GET_TORCH = (
    "Install torch into that environment first (python -m pip install torch), then build again; or declare it in "
    "build-system.requires, with the version that is used at run time."
)
GET_CUDA_TORCH = (
    "Install a CUDA build of torch from pytorch.org's index for your CUDA version "
    "(python -m pip install torch --index-url https://download.pytorch.org/whl/cu130, for CUDA 13.0), "
    "then build again."
)
# What a failure says when a CUDA extension meets a torch or a machine without CUDA.
_ABOUT_CUDA = re.compile(r"CUDA|nvcc|'NoneType' and 'str'|NoneType.*(path|join)", re.IGNORECASE)


def unmet(source: str, torch: Torch, cuda: Cuda | None) -> SafeExtBuildError | None:
    """Why a build that requires CUDA cannot come to a result that has it. `source`: who requires it."""
    facts = torch.facts
    if facts is None:
        what = f"{source} asks for CUDA: {torch.source.line}"
        return TorchError(what, code="SEB-3006", hint=GET_CUDA_TORCH)
    if facts.cuda is None:
        where = f"{facts.describe()} in {facts.package.parent}"
        what = f"{source} asks for CUDA, and {where} is no CUDA build"
        return TorchError(what, code="SEB-3007", hint=GET_CUDA_TORCH)
    if cuda is None:
        return ToolkitError(
            f"{source} asks for CUDA, and no CUDA compiler was found for {facts.describe()}",
            code="SEB-2006",
            hint=torch.how_to_install(),
        )
    return None


def afterthought(failure: str, torch: Torch | None, cuda: Cuda | None) -> str:
    """What may be behind a failure that did not explain itself; may be empty."""
    if torch and torch.source.kind == "none":
        return f"{torch.source.line}\n{GET_TORCH}" if "torch" in failure.lower() else ""
    if torch is None or torch.facts is None:
        return ""
    if not torch.facts.cuda:
        return _no_cuda(failure, torch.facts)
    if cuda is None:
        return f"{NO_COMPILER}\n{torch.how_to_install()}"
    from .toolchain import rank

    return rank.foreign_hint(cuda.build, torch.facts.cuda)


def _no_cuda(failure: str, facts: TorchFacts) -> str:
    if not _ABOUT_CUDA.search(failure):
        return ""
    return f"{facts.describe()} in {facts.package.parent} cannot build CUDA extensions.\n{GET_CUDA_TORCH}"
