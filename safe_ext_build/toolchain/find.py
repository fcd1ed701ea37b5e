"""What to build with: the torch of the target environment, and the toolkit that fits it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import probe
from ..errors import ToolkitError
from . import target

if TYPE_CHECKING:
    from ..settings import Settings
    from . import wheels
    from .borrow import TorchSource
    from .cuda import Discovery, Toolkit
    from .rank import Choice
    from .torch import TorchFacts


@dataclass(frozen=True)
class Torch:
    """The torch to build against, this process' own environment, the target's, and the frontend's name."""

    source: TorchSource
    own: target.Environment
    facts: TorchFacts | None = None
    target: target.Environment | None = None
    frontend: str = ""

    @property
    def volatile(self) -> tuple[Path, ...]:
        """Directories of a build environment that its frontend deletes after the build."""
        return isolated_directories(self.own, self.target)

    def how_to_install(self) -> str:
        """How a compiler for this torch is installed, as an imperative; empty if torch is no CUDA build."""
        if self.facts is None or self.facts.cuda is None:
            return ""
        from . import wheels

        return wheels.how_to_install(self.facts.cuda, wheels.requirements(self.facts), self._installer())

    def _installer(self) -> wheels.Installer | None:
        from . import wheels

        if self.target is None or self.source.kind == "declared":
            return None
        return wheels.Installer(self.target.python, self.frontend == "uv" or _is_made_by_uv(self.target.prefix))


def _is_made_by_uv(prefix: Path) -> bool:
    """Whether uv made a virtual environment: it puts no pip into it."""
    try:
        return any(line.startswith("uv =") for line in (prefix / "pyvenv.cfg").read_text().splitlines())
    except OSError:
        return False


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
    process = target.read_process(parent)
    return Torch(source, own, facts, found, target.frontend(process) if process else "")


def _target(
    settings: Settings, parent: int, environ: Mapping[str, str], own: target.Environment
) -> tuple[target.Environment | None, str]:
    if settings.torch.runtime is None:
        return target.find_target(parent, environ, own)
    return target.named_target(settings.torch.runtime, settings.source("torch.runtime"), parent, environ, own)


def isolated_directories(own: target.Environment, final: target.Environment | None) -> tuple[Path, ...]:
    """Where a frontend has put this process' packages for this one build: what a path may not be kept from.

    `own` is this process' environment, `final` the one that stays.
    """
    stay = (Path(sys.base_prefix), *((final.prefix,) if final else ()))
    temporary = Path(tempfile.gettempdir()).resolve()
    found: dict[Path, None] = {}
    if own.prefix not in stay:
        found[own.prefix] = None
    for path in map(Path, own.path):
        stays = final is not None and str(path) in final.path
        if temporary in path.resolve().parents and own.prefix not in path.parents and not stays:
            found[path] = None
    return tuple(found)


def find_cuda(settings: Settings, torch: Torch, environ: Mapping[str, str], cache: Path | None) -> Cuda | None:
    """The toolkit for this torch; None when torch is not a CUDA build, or no CUDA compiler is here at all.

    Without a `cache` nothing is written: a toolkit that would have to be completed stays as it is.
    Raises ToolkitError when compilers are here, or one was named, and none fits; the caller decides whether
    that matters for what it is about to do.
    """
    facts = torch.facts
    if facts is None or facts.cuda is None:
        return None
    from . import archs, cuda, rank, wheels

    found = _discover(settings, torch, facts, environ)
    insists = settings.cuda.provision == "always" and wheels.requirements(facts)
    if not found.found and not insists and not _is_refused(found):
        return None
    source = settings.source("cuda.archs")
    wanted = archs.normalise_archs(settings.cuda.archs or "", source)
    choice = _choose(settings, torch, facts, found, wanted)
    known = archs.torch_archs(facts)
    gpus = cuda.gpus(environ)
    listed, lines = archs.select_archs(wanted, source, choice.toolkit.archs, known, gpus)
    home, alone = choice.toolkit.home, ""
    if cache is not None:
        home, alone = _complete(choice.toolkit, facts, cache, torch.volatile)
    said = (
        *found.lines,
        choice.line,
        rank.lacking_line(choice.toolkit, torch.how_to_install()),
        rank.driver_line(choice.toolkit.version, cuda.driver_cuda(environ) if gpus else None),
        alone,
        *lines,
    )
    return Cuda(home, choice.toolkit.build, listed, tuple(line for line in said if line), choice.toolkit.archs)


def _complete(toolkit: Toolkit, facts: TorchFacts, cache: Path, volatile: Sequence[Path]) -> tuple[Path, str]:
    """The complete toolkit's directory; and a line where that is not in the cache, which cannot hold it."""
    from . import compose

    try:
        return compose.complete(toolkit, facts, cache, volatile=volatile), ""
    except OSError as error:
        why = f"{cache} cannot hold a toolkit ({error.strerror or error})"
    try:
        here = Path(probe.scratch() or tempfile.gettempdir())
        return compose.complete(
            toolkit, facts, here, volatile=volatile
        ), f"{why}: put together for this build only"
    except OSError as error:
        raise ToolkitError(
            f"{toolkit.describe()} cannot be completed: {why}, nor can {here} ({error.strerror or error})",
            code="SEB-2009",
            hint="Free some room in one of them, or name a complete toolkit: cuda.home.",
        ) from error


@dataclass(frozen=True)
class Survey:
    """Every place that was looked at; what was chosen of it; or why nothing was."""

    found: Discovery
    choice: Choice | None = None
    error: ToolkitError | None = None


def survey(settings: Settings, torch: Torch, environ: Mapping[str, str]) -> Survey:
    """All that may be a toolkit here, for people. Raises ToolkitError for a `cuda.home` that makes no sense."""
    from . import archs, cuda

    facts = torch.facts
    if facts is None or facts.cuda is None:
        sites = [*map(Path, torch.own.path)]
        return Survey(cuda.discover(settings.cuda.home, settings.source("cuda.home"), environ, site_dirs=sites))
    found = _discover(settings, torch, facts, environ)
    wanted = archs.normalise_archs(settings.cuda.archs or "", settings.source("cuda.archs"))
    try:
        return Survey(found, _choose(settings, torch, facts, found, wanted))
    except ToolkitError as error:
        return Survey(found, error=error)


def compiler_requirements(settings: Settings, torch: Torch, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the frontend is to install for a compiler to be there, by `cuda.provision`.

    Whether the project needs one at all is for the caller to know.
    """
    from . import cuda, wheels

    facts, provision = torch.facts, settings.cuda.provision
    wanted = wheels.requirements(facts) if facts else ()
    if facts is None or not wanted or provision == "never":
        return ()
    if provision == "always":
        named = settings.cuda.home is not None and not cuda.is_variable(settings.source("cuda.home"))
        return () if named else wanted
    found = _discover(settings, torch, facts, environ)
    # A toolkit that was named and does not fit is an error when it is to be used, and not replaced in silence.
    if any(one.explicit for one in found.found) or _is_refused(found):
        return ()
    try:
        return wanted if _choose(settings, torch, facts, found, ()).toolkit.lacks else ()
    except ToolkitError:
        return wanted


def what_there_is(settings: Settings, torch: Torch, environ: Mapping[str, str]) -> str:
    """The places that look as if they had a CUDA compiler and have none; empty if there are no such places."""
    if torch.facts is None:
        return ""
    from .cuda import RUNTIME_ONLY, WHEELS

    rejected = _discover(settings, torch, torch.facts, environ).rejected
    # Torch's own wheels never have one.
    telling = [one for one in rejected if (one.candidate.origin, one.reason) != (WHEELS, RUNTIME_ONLY)]
    return "; ".join(f"{one.candidate.path} ({one.candidate.origin}) {one.reason}" for one in telling)


def _discover(settings: Settings, torch: Torch, facts: TorchFacts, environ: Mapping[str, str]) -> Discovery:
    from . import compose, cuda

    sites = [*map(Path, torch.own.path), facts.package.parent]
    source = settings.source("cuda.home")
    prefixes = [torch.target.prefix] if torch.target else []
    found = cuda.discover(settings.cuda.home, source, environ, site_dirs=sites, prefixes=prefixes)
    probed = (replace(one, lacks=compose.lacking(one, facts)) if one.missing else one for one in found.found)
    return replace(found, found=tuple(probed))


def _is_refused(found: Discovery) -> bool:
    """Whether `cuda.home` names a place without a compiler, which is an error whatever else there is."""
    return any(one.candidate.required for one in found.rejected)


def _choose(settings: Settings, torch: Torch, facts: TorchFacts, found: Discovery, archs: Sequence[str]) -> Choice:
    from . import rank, wheels

    offered, line = found.found, ""
    if settings.cuda.provision == "always" and wheels.requirements(facts) and not _is_refused(found):
        offered, line = _provisioned(settings, torch, offered)
    install = torch.how_to_install()
    choice = rank.choose(facts.cuda or "", offered, found.rejected, settings.cuda.mismatch, archs, install)
    return replace(choice, line=line + choice.line)


def _provisioned(settings: Settings, torch: Torch, found: Sequence[Toolkit]) -> tuple[tuple[Toolkit, ...], str]:
    """Of all toolkits the wheels, and what `cuda.home` names; and the line of what is passed over for it."""
    from . import cuda

    always = f'{settings.source("cuda.provision")} is "always"'
    by_variable = [one for one in found if one.explicit and cuda.is_variable(one.origin)]
    named = [one for one in found if one.explicit and one not in by_variable]
    fetched = [replace(one, explicit=False) for one in found if one.is_wheels and one not in named]
    if not named and not fetched:
        what = f"{always}, and the wheels of the compiler are not installed"
        raise ToolkitError(what, code="SEB-2005", hint=torch.how_to_install())
    passed = [one for one in by_variable if not one.is_wheels]
    line = "".join(f"{one.origin} is {one.home}: not used, as {always}. " for one in passed)
    return (*named, *fetched), line
