"""How a compile is called through a compiler cache, so that it hits where it may, and only there. Pure; standard
library only (the supervisor imports this).

Both tools have been caught giving back the wrong object for nvcc (ccache 4.14, sccache 0.16): see `_for_ccache`
and the digests. What they are told here is what makes their answers right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import names, storage

CCACHE, SCCACHE = "ccache", "sccache"
VERDICT = "verdict"
"""In a compile's own directory: what ccache has written about it."""

# Of a build's environment (gcc's manual, "Environment Variables"; nvcc's, "Environment Variables").
FOR_COMPILERS = (
    *("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "SOURCE_DATE_EPOCH", "LD_LIBRARY_PATH", "GCC_EXEC_PREFIX"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "NVCC_CCBIN"),
    *("LC_ALL", "LC_CTYPE", "LC_MESSAGES", "SCCACHE_DIRECT", "SCCACHE_CONF", "SAFE_EXT_BUILD_ID"),
)

# All headers, or ccache would not look at those of the system; in short, as before 4.12.3 it knows nothing else.
_IN_SHORT = {
    **dict.fromkeys(("-MMD", "--generate-dependencies-with-compile"), "-MD"),
    "--generate-nonsystem-dependencies-with-compile": "-MD",
    "--dependency-output": "-MF",
    "--dependency-target-name": "-MT",
}


@dataclass(frozen=True)
class Launching:
    """Which compiler cache stands before the compilers of a build, and what it has to know.

    `tool`: `ccache`, `sccache`, or '' for none. `keeps`: one that a command brings along itself stays; else it is
    dropped. `programs`: tool -> path. `digests`: "cuda" and "host" -> a file whose content is that of the
    compilers. `places`: directory -> name (see names). `toolkit`: the CUDA toolkit, `front`: what sccache is to
    take for its nvcc. `server`: the socket of the sccache server, `ours`: we start it, `bases`: directories that
    its keys leave out, `log`: what it writes, `busters`: as `digests`, the digest itself. `farm`: the socket of
    the sccache server that has compiles run on other machines, or ''. `slots`: how many of them at a time, which
    follows what `scheduler` (a URL) says where the build `shares` the farm. `config`: sccache's configuration
    without its farm, where it has one. `shared`: ccache has a storage that others share, and nobody else reads its
    log. `secrets`: what stands in no output of theirs.
    """

    tool: str = ""
    keeps: bool = True
    programs: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    busters: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    toolkit: str = ""
    front: str = ""
    server: str = ""
    ours: bool = True
    bases: Sequence[str] = ()
    log: str = ""
    farm: str = ""
    slots: int = 0
    scheduler: str = ""
    shares: bool = True
    config: str = ""
    shared: bool = False
    secrets: Sequence[str] = ()

    def choose(self, own: str) -> str:
        """The tool for a compile whose command brought along `own`, or nothing."""
        named = os.path.basename(own)
        return self.tool or (named if self.keeps and named in (CCACHE, SCCACHE) else "")

    def program(self, tool: str, own: str) -> str:
        return self.programs.get(tool) or own or tool


@dataclass(frozen=True)
class Compile:
    """What a compiler is called with. `directory`: the compile's own, `cwd` the one that it runs in."""

    words: tuple[str, ...]
    prepend: str
    append: str
    cuda: bool
    source: str
    cwd: str
    directory: str


@dataclass(frozen=True)
class Called:
    """How it is called. `used`: name -> directory. `variables`: what its environment has beside the build's,
    `keeps`: all that it has of that, if not everything."""

    words: tuple[str, ...]
    prepend: str = ""
    append: str = ""
    used: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    keeps: Sequence[str] = ()


def call(compile: Compile, launching: Launching, tool: str, own: str, *, named: bool) -> Called:
    """The command with the tool before its compiler. `named`: with names in place of directories."""
    compiler, *arguments = compile.words
    prepend, append = compile.prepend, compile.append
    if compile.cuda:
        # Neither tool lets these variables count, or not as nvcc does, which cuts them at blanks.
        arguments = [*prepend.split(), *arguments, *append.split()]
        prepend = append = ""
    used: dict[str, str] = {}
    kind = "cuda" if compile.cuda else "host"
    if tool == CCACHE:
        arguments, variables = _for_ccache(arguments, compile, launching.digests.get(kind, ""))
        variables["CCACHE_LOGFILE"] = f"{compile.directory}/{storage.LOG}" if launching.shared else ""
    else:
        variables = {"SCCACHE_C_CUSTOM_CACHE_BUSTER": launching.busters.get(kind, "")}
    if named:
        places = {**launching.places, compile.cwd: names.HERE}
        arguments, used = names.mapped(arguments, compile.source, places)
    if named and compile.cuda and compiler == f"{launching.toolkit}/bin/nvcc":
        if name := places.get(launching.toolkit):  # not where that is /usr, the same everywhere
            used = {**used, name: launching.toolkit}
            compiler = f"{names.link(name)}/bin/nvcc"
        compiler = launching.front if tool == SCCACHE else compiler
    words = (launching.program(tool, own), compiler, *arguments)
    return Called(words, prepend, append, used, {name: value for name, value in variables.items() if value})


def on_farm(called: Called, launching: Launching) -> Called:
    """The same, for other machines: what the environment has goes there with every step, so it is only what
    compilers look at. The one directory that is made there, too, is the one where the server puts its outputs."""
    there = {"SCCACHE_SERVER_UDS": launching.farm, "TMPDIR": farm_directory(launching)}
    return replace(called, variables={**called.variables, **there}, keeps=FOR_COMPILERS)


def farm_directory(launching: Launching) -> str:
    """Where the farm's client keeps what it sends and gets; below a build's workspace."""
    return os.path.join(os.path.dirname(launching.log), "farm")


def farm_log(launching: Launching) -> str:
    """What the farm's client writes."""
    return f"{launching.log}.farm"


def _for_ccache(arguments: list[str], compile: Compile, digest: str) -> tuple[list[str], dict[str, str]]:
    """ccache looks at what `nvcc -E` prints, which is the device's side only: an edit of what is for the host,
    such as the size of a launch, would hit the object from before. In depend mode it looks at the files."""
    variables = {"CCACHE_STATSLOG": f"{compile.directory}/{VERDICT}", "CCACHE_EXTRAFILES": digest}
    if not compile.cuda:
        return arguments, variables
    arguments = [_IN_SHORT.get(word, word) for word in arguments]
    if "-MD" not in arguments:
        arguments += ["-MD", "-MF", f"{compile.directory}/depends"]
    return arguments, {**variables, "CCACHE_DEPEND": "1"}
