"""The host compiler: which one nvcc and torch's helper will call, whether it fits, and which one to call instead.

nvcc compiles the host half of a CUDA source with `-ccbin`, else with what NVCC_CCBIN names, else with the `gcc`
on PATH; torch's helper makes a `-ccbin` of CC. C++ sources are compiled with CXX, else with `c++`; torch's helper
refuses one that nvcc would refuse, too. Any gcc from 5 on, and any clang that uses libstdc++, makes objects that
may be linked together.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safe_ext_build import probe as tools
from safe_ext_build.errors import ToolkitError

from .torch import TorchFacts

_LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")
_CCBIN = ("-ccbin", "--compiler-bindir")
_ALLOWS = re.compile(r"--?allow-unsupported-compiler\b")
_NEWEST = 1000
# Keeps torch's helper from its own check of the same things.
_UNCHECKED = "TORCH_DONT_CHECK_COMPILER_ABI"
# The first compilers whose default or -std=c++NN satisfies the headers of a torch of that standard; for C++20
# gcc 10 still calls itself 201709L.
_OLDEST = {14: {"gcc": 5, "clang": 4}, 17: {"gcc": 9, "clang": 9}, 20: {"gcc": 11, "clang": 10}}
_SAYS_GCC = re.compile(r"\b(gcc|g\+\+|GCC|Free Software Foundation)")
_NAMED_GCC = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+)(-[\d.]+)?")
_NAMES = ("g++", "g++-[0-9]*", "*-linux-gnu-g++", "*-linux-gnu-g++-[0-9]*", "clang++", "clang++-[0-9]*")
_PLACES = ("usr/bin", "usr/local/bin", "opt/rh/*/root/usr/bin")


@dataclass(frozen=True)
class Compiler:
    """A compiler that said its version."""

    path: Path
    kind: str
    """`gcc`, `clang`, or `other`, of which nothing is known: whoever named it knows best."""
    version: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def describe(self) -> str:
        return str(self.path) if self.kind == "other" else f"{self.kind} {self.version} ({self.path})"


@dataclass(frozen=True)
class Surveyed:
    """A compiler that is there. `objection`: why it does not fit, '' if it does. `named_by`: the variables that
    name it, in words; '' where it is merely installed."""

    compiler: Compiler
    objection: str
    named_by: str = ""

    def describe(self) -> str:
        if self.objection:
            verdict = f"does not fit: {self.objection}"
        else:
            verdict = "taken as it is, of a kind that is not known" if self.compiler.kind == "other" else "fits"
        named = f" (of {self.named_by})" if self.named_by else ""
        return f"{self.compiler.describe()}{named}: {verdict}"


@dataclass(frozen=True)
class Bounds:
    """The major versions that fit, by the compiler's kind, both ends included; and who says so."""

    who: str
    majors: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def objection(self, compiler: Compiler) -> str:
        """Why a compiler does not fit; '' if it does, or if nothing is known of its kind."""
        low, high = self.majors.get(compiler.kind, (0, _NEWEST))
        return "" if low <= compiler.major <= high else f"{self.who} {self.span(compiler.kind)}"

    def span(self, kind: str) -> str:
        low, high = self.majors.get(kind, (0, _NEWEST))
        if high == _NEWEST:
            return f"needs {kind} {low} or later"
        return f"takes {kind} {low} to {high}" if low else f"takes {kind} up to {high}"


@dataclass(frozen=True)
class Host:
    """What to export so that the build finds compilers that fit, and the lines that say so."""

    environment: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def read_bounds(text: str, who: str = "nvcc") -> Bounds:
    """What `crt/host_config.h` of a toolkit accepts: the condition before each of its two errors."""
    majors = {}
    for kind, macro, error in (
        ("gcc", "__GNUC__", r"unsupported GNU version"),
        ("clang", "__clang_major__", r"unsupported clang version"),
    ):
        before = re.search(rf"#\s*if\s+([^\n]*{macro}[^\n]*)\n\s*#\s*error[ -]*{error}", text)
        if before:
            majors[kind] = _range(before[1], macro)
    return Bounds(who, majors)


def _range(condition: str, macro: str) -> tuple[int, int]:
    """The versions that a condition for an error lets pass."""
    low, high = 0, _NEWEST
    for operator, number in re.findall(rf"{macro}\s*(>=|>|<)\s*(\d+)", condition):
        if operator == "<":
            low = int(number)
        else:
            high = int(number) - (operator == ">=")
    return low, high


def _together(nvcc: Bounds, torch: Bounds) -> Bounds:
    majors = {}
    for kind in {*nvcc.majors, *torch.majors}:
        ranges = [bounds.majors[kind] for bounds in (nvcc, torch) if kind in bounds.majors]
        majors[kind] = max(low for low, _ in ranges), min(high for _, high in ranges)
    return Bounds(f"{nvcc.who} with {torch.who}", majors)


def torch_bounds(torch: TorchFacts) -> Bounds:
    oldest = _OLDEST.get(torch.cxx_standard, {})
    return Bounds(f"torch {torch.version}", {kind: (major, _NEWEST) for kind, major in oldest.items()})


def nvcc_bounds(home: Path, build: str) -> Bounds:
    who = f"nvcc {build.removeprefix('V')}"
    try:
        text = (home / "include" / "crt" / "host_config.h").read_text(errors="replace")
    except OSError:
        return Bounds(who)
    return read_bounds(text, who)


def fit_host(
    torch: TorchFacts, home: Path | None, build: str, environ: Mapping[str, str], root: Path = Path("/")
) -> Host:
    """Find host compilers that fit this torch, and the nvcc in `home` (None: nothing is compiled for CUDA).

    Raises ToolkitError when one that the user named does not fit, or none that does is installed.
    """
    search = _Search(environ, root)
    bounds = torch_bounds(torch)
    if home is None:
        return _host(_for_cxx(bounds, search), _Choice(), search)
    if _ALLOWS.search(" ".join(_nvcc_flags(environ))):
        line = "-allow-unsupported-compiler is set: the host compiler is not checked"
        return Host({_UNCHECKED: "1"}, (line,))
    bounds = _together(nvcc_bounds(home, build), bounds)
    return _host(_for_cxx(bounds, search), _for_nvcc(bounds, home, search), search)


def survey(
    torch: TorchFacts, home: Path | None, build: str, environ: Mapping[str, str], root: Path = Path("/")
) -> list[Surveyed]:
    """Every host compiler that is there: those that variables name, whatever they are called, come first."""
    bounds = torch_bounds(torch)
    if home is not None:
        bounds = _together(nvcc_bounds(home, build), bounds)
    search = _Search(environ, root)
    named = _named(search, home is not None)
    paths = {compiler.path.resolve() for compiler in named}
    others = [found for found in search.installed() if found.path.resolve() not in paths]
    return [
        *(Surveyed(compiler, bounds.objection(compiler), ", ".join(by)) for compiler, by in named.items()),
        *(Surveyed(compiler, bounds.objection(compiler)) for compiler in others),
    ]


def _named(search: _Search, with_nvcc: bool) -> dict[Compiler, list[str]]:
    """The compilers that somebody has named, by whatever names them; one that is not there is a build's error."""
    places = [(search.environ.get("CXX", "").strip(), "CXX")]
    if with_nvcc and (for_nvcc := named_for_nvcc(search.environ)):
        places.append(for_nvcc)
    found: dict[Compiler, list[str]] = {}
    for text, source in places:
        with contextlib.suppress(ToolkitError):
            if text:
                found.setdefault(search.named(text, source), []).append(source)
    return found


@dataclass(frozen=True)
class _Choice:
    """What to export for C++, or for nvcc; and which compiler is used instead of the usual one, and why."""

    environment: Mapping[str, str] = field(default_factory=dict)
    line: str = ""
    instead: Compiler | None = None
    why: str = ""


def _host(cxx: _Choice, cuda: _Choice, search: _Search) -> Host:
    found = {**cxx.environment, **cuda.environment}
    blank = _instead_of_blank(search.environ, found)
    said = [f"{name} is empty: taken as {value}" for name, value in blank.items()]
    said += [choice.line for choice in (cxx, cuda) if choice.line]
    if cxx.instead and cxx.instead == cuda.instead:
        said.append(f"{cuda.why}; C++ and nvcc's host code are compiled with {cuda.instead.describe()}")
    else:
        said += [f"{cxx.why}; C++ is compiled with {cxx.instead.describe()}"] if cxx.instead else []
        said += (
            [f"{cuda.why}; nvcc's host code is compiled with {cuda.instead.describe()}"] if cuda.instead else []
        )
    beside, lines = _beside_the_compilers(cxx, cuda, search)
    return Host({**blank, **found, **beside}, (*said, *lines))


def _beside_the_compilers(cxx: _Choice, cuda: _Choice, search: _Search) -> tuple[dict[str, str], list[str]]:
    """What else is called by its name: the assembler and the linker; and the C compiler, by setuptools."""
    chosen = [choice.instead.path for choice in (cuda, cxx) if choice.instead]
    path = search.environ.get("PATH", "")
    apart = [str(one.parent) for one in chosen if str(one.parent) not in path.split(os.pathsep)]
    added, lines = {}, []
    if apart:
        added["PATH"] = path = os.pathsep.join(filter(None, [path, *dict.fromkeys(apart)]))
        lines.append(f"PATH is given {' and '.join(dict.fromkeys(apart))} as well, for the tools of the compiler")
    usual = _python_cc()
    if "CC" not in search.environ and not shutil.which(usual, path=path):
        cxx_on_path = shutil.which(compiler_of(search.environ.get("CXX", "").strip() or "c++"), path=path)
        known = [*chosen, *([Path(cxx_on_path)] if cxx_on_path else [])]
        if c := next(filter(None, map(_for_c, known)), None):
            added["CC"] = str(c)
            lines.append(f"there is no {usual} on PATH; C is compiled with {c}")
    return added, lines


def _python_cc() -> str:
    """The C compiler that this Python was made with, which setuptools calls where CC is not set."""
    return (sysconfig.get_config_var("CC") or "cc").split()[0]


def _for_c(cxx: Path) -> Path | None:
    """The C compiler of the same kind and version, which lies beside it."""
    for theirs, ours in (("clang++", "clang"), ("g++", "gcc"), ("c++", "cc")):
        beside = cxx.with_name(cxx.name.replace(theirs, ours))
        if theirs in cxx.name:
            return beside if beside.exists() else None
    return None


def _instead_of_blank(environ: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """torch and setuptools take an empty variable for the name of a program."""
    usual = {"CC": found.get("NVCC_CCBIN", "gcc"), "CXX": found.get("CXX", "c++")}
    return {name: value for name, value in usual.items() if name in environ and not environ[name].strip()}


@dataclass(frozen=True)
class _Search:
    """Where compilers are looked for."""

    environ: Mapping[str, str]
    root: Path

    def default(self, name: str) -> Compiler | None:
        """The compiler that is called when nobody names one."""
        path = shutil.which(name, path=self.environ.get("PATH"))
        return probe(Path(path), self.environ) if path else None

    def named(self, text: str, source: str) -> Compiler:
        """The compiler that somebody has named. Raises ToolkitError when it is not there, or does not run."""
        name = text if self._find(text) else compiler_of(text)
        path = self._find(f"{name}/gcc" if Path(name).is_dir() else name)  # nvcc takes a directory, too
        if path is None:
            where = "does not exist" if "/" in name else "is not on PATH"
            what = f"{source} is {text!r}, but {name} {where}"
            raise ToolkitError(what, code="SEB-2101", hint=_correct(source))
        found = probe(Path(path), self.environ)
        if found is None:
            what = f"{source} is {text!r}, which tells no version when it is run with --version"
            raise ToolkitError(what, code="SEB-2102", hint=_correct(source))
        return found

    def _find(self, name: str) -> str | None:
        return shutil.which(name, path=self.environ.get("PATH"))

    def fitting(self, bounds: Bounds) -> Compiler | None:
        """The best compiler that is installed and fits: a gcc before a clang, and the newest of either."""
        known = self.installed()
        usable = [found for found in known if found.kind in bounds.majors and not bounds.objection(found)]
        return max(usable, key=lambda found: (found.kind == "gcc", found.major), default=None)

    def installed(self) -> list[Compiler]:
        """Every compiler that says what it is."""
        return [found for path in self._installed() if (found := probe(path, self.environ))]

    def _installed(self) -> Iterator[Path]:
        places = [Path(entry) for entry in self.environ.get("PATH", "").split(":") if entry]
        if self.environ.get("CONDA_PREFIX"):
            places.append(Path(self.environ["CONDA_PREFIX"], "bin"))
        places += [place for pattern in _PLACES for place in sorted(self.root.glob(pattern))]
        seen = set()
        for place in dict.fromkeys(places):
            for path in (path for name in _NAMES for path in sorted(place.glob(name))):
                if path.resolve() not in seen:
                    seen.add(path.resolve())
                    yield path


def compiler_of(text: str) -> str:
    """The compiler in a CC or CXX of several words, `ccache g++ -m64`."""
    words = [word for word in text.split() if Path(word).name not in _LAUNCHERS]
    return words[0] if words else text


def probe(path: Path, environ: Mapping[str, str]) -> Compiler | None:
    """Ask a compiler what it is; None if it does not say."""
    environ = {**environ, "LC_ALL": "C"}
    try:
        status, said = tools.run([str(path), "--version"], environ)
        if status:
            return None
        if clang := re.search(r"clang version (\d+(?:\.\d+)*)", said):
            return Compiler(path, "clang", clang[1])
        if not (_SAYS_GCC.search(said) or _NAMED_GCC.fullmatch(path.name)):
            return Compiler(path, "other", "0")
        _, said = tools.run([str(path), "-dumpfullversion", "-dumpversion"], environ)
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"\d+(?:\.\d+)*", said)
    return Compiler(path, "gcc", number[0]) if number else None


# C++ sources


def _for_cxx(bounds: Bounds, search: _Search) -> _Choice:
    text = search.environ.get("CXX", "").strip()
    if not text:
        return _usual("c++", "C++ is compiled with c++", bounds, search, lambda found: {"CXX": str(found.path)})
    compiler = search.named(text, "CXX")
    if objection := bounds.objection(compiler):
        raise _misfit(f"CXX is {text!r}", compiler, objection, bounds, search)
    # torch asks the first word of CXX for its version.
    return _Choice({_UNCHECKED: "1"} if len(text.split()) > 1 else {})


def _usual(
    name: str, what: str, bounds: Bounds, search: _Search, export: Callable[[Compiler], dict[str, str]]
) -> _Choice:
    """The compiler that is called when nobody names one, or one that fits in its place."""
    default = search.default(name)
    objection = bounds.objection(default) if default else f"there is no {name} on PATH"
    if not objection:
        return _Choice()
    fitting = search.fitting(bounds)
    if fitting:
        why = f"{default.describe()} does not fit: {objection}" if default else objection
        return _Choice(export(fitting), instead=fitting, why=why)
    if default:
        raise _misfit(what, default, objection, bounds, search)
    what = f"no C++ compiler that fits was found: {objection}, and no g++ or clang++"
    raise ToolkitError(what, code="SEB-2103", hint=_INSTALL)


# The host half of CUDA sources


def _for_nvcc(bounds: Bounds, home: Path, search: _Search) -> _Choice:
    named = named_for_nvcc(search.environ)
    if named is None:
        what = "nvcc compiles host code with gcc"
        return _usual("gcc", what, bounds, search, lambda found: _ccbin(found.path, home, search.environ))
    text, source = named
    compiler = search.named(text, source)
    if objection := bounds.objection(compiler):
        raise _misfit(f"{source} is {text!r}", compiler, objection, bounds, search)
    if source == "NVCC_CCBIN" and len(text.split()) > 1:
        return _Choice({"NVCC_CCBIN": str(compiler.path)})
    return _Choice(line=_beside(text, compiler, search) if source == "CC" else "")


def _beside(text: str, compiler: Compiler, search: _Search) -> str:
    """CC without CXX: two compilers are at work, which whoever set it may not know."""
    other = None if search.environ.get("CXX", "").strip() else search.default("c++")
    if other is None or (other.kind, other.major) == (compiler.kind, compiler.major):
        return ""
    return f"CC is {text!r} and CXX is not set: C++ is compiled with {other.describe()}"


def _nvcc_flags(environ: Mapping[str, str]) -> tuple[str, str]:
    return environ.get("NVCC_PREPEND_FLAGS", ""), environ.get("NVCC_APPEND_FLAGS", "")


def named_for_nvcc(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """What somebody has named for nvcc, and where: the last -ccbin counts, of which torch writes one for CC."""
    before, behind = map(_last_ccbin, _nvcc_flags(environ))
    places = {
        "-ccbin in NVCC_APPEND_FLAGS": behind,
        "CC": environ.get("CC", "").strip(),
        "-ccbin in NVCC_PREPEND_FLAGS": before,
        "NVCC_CCBIN": environ.get("NVCC_CCBIN", "").strip(),
    }
    return next(((text, source) for source, text in places.items() if text), None)


def _last_ccbin(flags: str) -> str:
    found, words = "", flags.split()
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        if before in _CCBIN:
            found = word
        elif name in _CCBIN and equals:
            found = value
    return found


def _ccbin(path: Path, home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that make nvcc call this compiler: CMake has one of its own, an older nvcc no NVCC_CCBIN."""
    try:
        knows = b"NVCC_CCBIN" in (home / "bin" / "nvcc").read_bytes()
    except OSError:
        knows = False
    if knows:
        return {"NVCC_CCBIN": str(path), "CUDAHOSTCXX": str(path)}
    flags = f"-ccbin {path} {environ.get('NVCC_PREPEND_FLAGS', '')}".strip()
    return {"NVCC_PREPEND_FLAGS": flags, "CUDAHOSTCXX": str(path)}


# Errors

_INSTALL = (
    "install one (apt install g++, dnf install gcc-c++, or conda install -c conda-forge gxx_linux-64), or set CC "
    "and CXX"
)


def _correct(source: str) -> str:
    return f"unset {source.rpartition(' ')[2]} to have a compiler found, or name one that is installed"


def _misfit(what: str, compiler: Compiler, objection: str, bounds: Bounds, search: _Search) -> ToolkitError:
    fitting = search.fitting(bounds)
    low, high = bounds.majors.get("gcc", (0, _NEWEST))
    which = f"gcc {low} or later" if high == _NEWEST else f"a gcc from {max(low, 5)} to {high}"
    install = str(low if high == _NEWEST else high)
    hint = (
        f"{shlex.quote(str(fitting.path))} fits: name it instead, or unset the variable to have it found"
        if fitting
        else f"install {which}: apt install g++-{install}, dnf install gcc-toolset-{install}, or conda install -c "
        f"conda-forge gxx_linux-64={install}"
    )
    message = f"{what}: {compiler.describe()} does not fit, as {objection}"
    return ToolkitError(message, code="SEB-2104", hint=hint)
