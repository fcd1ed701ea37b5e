"""What to build with: the torch of the target environment, and the toolkit that fits it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import target

if TYPE_CHECKING:
    from ..settings import Settings
    from .borrow import TorchSource
    from .torch import TorchFacts


@dataclass(frozen=True)
class Torch:
    """The torch to build against, and this process' own environment."""

    source: TorchSource
    own: target.Environment
    facts: TorchFacts | None = None

    @property
    def volatile(self) -> tuple[Path, ...]:
        """Directories of a build environment that its frontend deletes after the build."""
        return () if self.source.kind == "own" else isolated_directories(self.own, self.source)


@dataclass(frozen=True)
class Cuda:
    """The toolkit that device code is compiled with; `build` is what its nvcc calls itself ("V13.0.88").

    `archs` is the TORCH_CUDA_ARCH_LIST, `lines` what is to be said of both. `known`: what nvcc compiles for
    (`86`); empty if it cannot tell.
    """

    home: Path
    build: str
    archs: str
    lines: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def find_torch(settings: Settings, parent: int, environ: Mapping[str, str]) -> Torch:
    """Find the torch to build against; `parent` is the process id of the frontend. Raises TorchError."""
    from . import borrow
    from .torch import read_torch

    own = target.own()
    found, why = _target(settings, parent, environ, own)
    named = settings.torch.runtime is not None
    source = borrow.decide(own, found, settings.torch.match, why, named=named)
    search = [Path(entry) for entry in (own.path if found is None else found.path)]
    facts = read_torch(source.package, search) if source.package else None
    return Torch(source, own, facts)


def _target(
    settings: Settings, parent: int, environ: Mapping[str, str], own: target.Environment
) -> tuple[target.Environment | None, str]:
    if settings.torch.runtime is None:
        return target.find_target(parent, environ, own)
    return target.named_target(settings.torch.runtime, settings.source("torch.runtime"), parent, environ, own)


def isolated_directories(own: target.Environment, source: TorchSource) -> tuple[Path, ...]:
    """Where a frontend has put this process' packages for this one build: what a path may not be kept from."""
    target_prefix = source.borrowed.python.parent.parent if source.borrowed else None
    temporary = Path(tempfile.gettempdir()).resolve()
    found: dict[Path, None] = {}
    if own.prefix not in (target_prefix, Path(sys.base_prefix)):
        found[own.prefix] = None
    for path in map(Path, own.path):
        if temporary in path.resolve().parents and own.prefix not in path.parents:
            found[path] = None
    return tuple(found)


def find_cuda(settings: Settings, torch: Torch, environ: Mapping[str, str], cache: Path) -> Cuda | None:
    """The toolkit for this torch; None when torch is not a CUDA build, or no CUDA compiler is here at all.

    Raises ToolkitError when compilers are here, or one was named, and none fits; the caller decides whether
    that matters for what it is about to do.
    """
    facts = torch.facts
    if facts is None or facts.cuda is None:
        return None
    from . import archs, compose, cuda, rank

    sites = [*map(Path, torch.own.path), facts.package.parent]
    source = settings.source("cuda.home")
    found = cuda.discover(settings.cuda.home, source, environ, site_dirs=sites)
    if not found.found and not any(one.candidate.required for one in found.rejected):
        return None
    source = settings.source("cuda.archs")
    wanted = archs.normalise_archs(settings.cuda.archs or "", source)
    choice = rank.choose(facts.cuda, found.found, found.rejected, settings.cuda.mismatch, wanted)
    known = archs.torch_archs(facts)
    listed, lines = archs.select_archs(wanted, source, choice.toolkit.archs, known, cuda.gpus(environ))
    home = compose.complete(choice.toolkit, facts, cache, volatile=torch.volatile)
    said = (*found.lines, choice.line, *lines)
    return Cuda(home, choice.toolkit.build, listed, said, choice.toolkit.archs)
