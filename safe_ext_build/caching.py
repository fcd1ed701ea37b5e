"""Sets up the compiler cache of one build: names, digests, sccache's front of nvcc, the environment."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import ui
from .errors import FarmError
from .farm.share import Share, local_configuration, write_configuration
from .launcher import configured, digest, names, redact
from .launcher.call import CCACHE, SCCACHE, Launching
from .launcher.tools import TORCH_VARIABLE, Launcher
from .supervise import shims
from .supervise.workspace import Workspace
from .toolchain.host import compiler_of, named_for_nvcc

if TYPE_CHECKING:
    from .toolchain.find import Cuda, Torch

_MEMORY = "compilers.json"
_SOCKET, _FARM_SOCKET = "sccache", "farm"


@dataclass(frozen=True)
class Ground:
    """Where a build finds things. `source`: the project's directory. `store`: where objects are kept, if that is
    not below it. `cuda_home`: what is exported as such. `cache`: the user's."""

    source: Path
    store: Path | None
    cuda_home: Path | None
    cache: Path


@dataclass(frozen=True)
class Prepared:
    """What the supervisor has to know, and variables for the builder."""

    launching: Launching
    variables: Mapping[str, str] = field(default_factory=dict)


def prepare(
    launcher: Launcher,
    farm: Share | None,
    place: Workspace,
    ground: Ground,
    torch: Torch | None,
    cuda: Cuda | None,
    environ: Mapping[str, str],
) -> Prepared:
    """Set up what was chosen. `farm`: what may be had of one.

    torch's own helper never puts a cache before a compiler: that would stand in build.ninja, and to turn it on or
    off would compile everything again.
    """
    variables = {TORCH_VARIABLE: "1"}
    tools = {tool.name: str(tool.path) for tool in launcher.tools if not tool.too_old}
    if launcher.tool is None and not launcher.keeps:
        return Prepared(Launching(keeps=False), {**variables, "CCACHE_DISABLE": "1"})
    if not tools:
        return Prepared(Launching(), variables)
    chosen = launcher.tool.name if launcher.tool else ""
    places = _places(ground, torch, cuda)
    toolkit = str(cuda.home) if cuda else ""
    launching = Launching(
        tool=chosen,
        keeps=launcher.keeps,
        programs=tools,
        places=places,
        toolkit=toolkit,
        front=_front(place, toolkit, places) if toolkit and SCCACHE in tools else "",
        server=launcher.server or str(place.shims / _SOCKET),
        ours=not launcher.server,
        bases=[f"{path}/" for path in filter(None, (ground.source, ground.store, place.path))],
        log=str(place.path / "sccache.log"),
        farm=str(place.shims / _FARM_SOCKET) if farm and farm.slots else "",
        slots=farm.slots if farm else 0,
        scheduler=farm.scheduler if farm else "",
        shares=not (farm and farm.fixed),
        config=_configuration(place, environ) if SCCACHE in tools else "",
        shared=CCACHE in tools and configured.is_shared(tools[CCACHE], environ),
        secrets=redact.ordered([*redact.of_caches(environ), *configured.secrets(tools, environ)]),
    )
    if chosen or launching.slots:
        digests, busters = _digests(place, ground, cuda, environ)
        launching = replace(launching, digests=digests, busters=busters)
    variables |= _for_tools(chosen, launching, environ)
    return Prepared(launching, variables)


def _configuration(place: Workspace, environ: Mapping[str, str]) -> str:
    """sccache's, where it names a farm, without that: what is to run here must not go there. So where we cannot
    read it, sccache must not either."""
    try:
        return str(local_configuration(environ, place.path) or "")
    except FarmError as error:
        ui.warn(f"{error}: all of it is ignored, and sccache keeps objects where it does without one")
        return str(write_configuration({}, place.path))


def _for_tools(chosen: str, launching: Launching, environ: Mapping[str, str]) -> dict[str, str]:
    """What is true of every compile. What the user has said himself stays."""
    wanted = {"CCACHE_COMPILERCHECK": "content"}
    if "CCACHE_HASHDIR" not in environ:
        wanted["CCACHE_NOHASHDIR"] = "1"
    wanted["SCCACHE_DIRECT"] = "false"  # it trusts what it once saw a source include, wherever that lay
    found = {name: value for name, value in wanted.items() if name not in environ}
    if chosen == SCCACHE:
        found["CCACHE_DISABLE"] = "1"  # g++ may be ccache in disguise
    if launching.ours:
        # Whatever calls sccache in this build, its server is the build's own, and ends with it; and it is the
        # server that compiles, which tells what became of a compile (0.17 can do it in the client).
        found |= {"SCCACHE_SERVER_UDS": launching.server, "SCCACHE_CLIENT_SIDE": "false"}
        if launching.config and not launching.farm:
            found["SCCACHE_CONF"] = launching.config  # who calls it reads it, too, and fails where it is damaged
    return found


def _places(ground: Ground, torch: Torch | None, cuda: Cuda | None) -> dict[str, str]:
    """Directories, and the names under which every build knows them."""
    found: dict[str, str] = {}

    def add(name: str, *paths: Path | str | None) -> None:
        for path in paths:
            for spelling in (str(path), os.path.realpath(str(path))) if path else ():
                if len(Path(spelling).parts) > 2:  # `/usr` and the like are the same everywhere
                    found.setdefault(spelling, name)

    # The project, where its path does not last, is seen through a link beside its objects.
    kept = sorted(ground.store.glob("objects*/source")) if ground.store else []
    guesses = [ground.store / f"objects{number}" / "source" for number in range(4)] if ground.store else []
    for path in (*kept, *guesses):
        found.setdefault(str(path), "src")
    add("src", ground.source)
    if cuda:
        add("cuda", ground.cuda_home, cuda.home)
    if torch and torch.facts:
        add("torch", torch.facts.package.parent)
    add("build", Path(__file__).resolve().parents[1])
    for number, path in enumerate(torch.volatile if torch else ()):
        add(f"env{number:02}", path)
    for number, include in enumerate(_python_includes()):
        add(f"python{number}", include)
    return found


def _python_includes() -> Iterable[str]:
    found = [sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
    if sys.exec_prefix != sys.base_exec_prefix:
        found.append(f"{sys.exec_prefix}/include")
    return dict.fromkeys(filter(None, found))


def _digests(
    place: Workspace, ground: Ground, cuda: Cuda | None, environ: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The compilers' content, as files for ccache and as words for sccache."""
    memory = digest.Memory(ground.cache / _MEMORY)
    host = [compiler_of(environ.get(variable) or default) for variable, default in (("CC", "cc"), ("CXX", "c++"))]
    contents = {"host": "\n".join(digest.of_compiler(program, environ, memory) for program in host)}
    if cuda:
        named = named_for_nvcc(environ)
        beneath = compiler_of(named[0]) if named else "gcc"
        parts = [digest.of_toolkit(cuda.home, memory), digest.of_compiler(beneath, environ, memory)]
        contents["cuda"] = "\n".join(parts)
    memory.save()
    files = {}
    for kind, text in contents.items():
        path = place.path / f"{kind}-compiler"
        path.write_text(text)
        files[kind] = ":".join(filter(None, [environ.get("CCACHE_EXTRAFILES"), str(path)]))
    own = environ.get("SCCACHE_C_CUSTOM_CACHE_BUSTER", "")
    return files, {kind: " ".join([own, *text.split()]) for kind, text in contents.items()}


def _front(place: Workspace, toolkit: str, places: Mapping[str, str]) -> str:
    """What sccache is to take for nvcc (see launcher.dryrun)."""
    short = f"{names.link(places[toolkit]) if toolkit in places else toolkit}/bin/nvcc"
    pairs = [word for path, name in places.items() for word in (path, names.link(name))]
    return str(shims.write_front(place, short, f"{toolkit}/bin/nvcc", pairs))
