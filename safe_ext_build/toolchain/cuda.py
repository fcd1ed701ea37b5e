"""Which CUDA toolkits there are, and what each really has: nobody's word is taken, nvcc is run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safe_ext_build import probe as tools
from safe_ext_build.errors import ToolkitError

from .wheels import mixture

HEADERS = ("cuda_runtime.h", "crt/host_config.h", "cublas_v2.h", "cublasLt.h", "cusparse.h", "cusolverDn.h")
"""The headers that torch's own CUDA headers include."""
THRUST = "thrust/complex.h"
"""The header of CCCL that torch includes; it lies in include/, or from CUDA 13 on in include/cccl."""
EXTRA_HEADERS = ("curand_kernel.h", "cufft.h", "nvrtc.h")
"""Headers that some torch headers include, and extensions often do."""

WHEELS = "wheels"
"""The origin of toolkits that lie in a Python environment."""
RUNTIME_ONLY = "has no bin/nvcc: a runtime-only CUDA"

_ENVIRONMENT = ("CUDA_HOME", "CUDA_PATH")
_MODULES = (
    "CUDA_ROOT",
    "CUDATOOLKIT_HOME",
    "CUDAToolkit_ROOT",
    "CUDA_TOOLKIT_ROOT_DIR",
    "CUDA_INSTALL_PATH",
    "EBROOTCUDA",
    "NVHPC_CUDA_HOME",
)
_SYSTEM = (
    "usr/local/cuda-*",
    "usr/local/cuda",
    "opt/cuda-*",
    "opt/cuda",
    "usr/lib/nvidia-cuda-toolkit",
)
_HPC_SDK = "opt/nvidia/hpc_sdk/Linux_*/*/cuda/[0-9]*"
_TARGETS = {"x86_64": ("x86_64-linux",), "aarch64": ("sbsa-linux", "aarch64-linux")}
_RELEASE = re.compile(r"release (\d+)\.(\d+)(?:, (V[\d.]+))?")
_VARIABLE = re.compile(r"^#\$ (TOP|_HERE_)=(.*)$", re.MULTILINE)
_WHEELS_HOME = re.compile(r"cu\d+")
_DRIVER = re.compile(r"CUDA (?:UMD )?Version\s*: *(\d+)\.(\d+)")
_ARCH = re.compile(r"compute_(\d+)")
_QUOTES = "\"'"


@dataclass(frozen=True)
class Candidate:
    """A place where a toolkit may be."""

    path: str
    """A directory, or an nvcc, as it was found."""
    origin: str
    """Where it comes from: `CUDA_HOME`, `nvcc on PATH`, `/usr/local/cuda-*`."""
    explicit: bool = False
    """The user named it, so it wins over all others."""
    required: bool = False
    """The user named it for this project: no other one may stand in for it."""


@dataclass(frozen=True)
class Toolkit:
    """A toolkit whose nvcc ran."""

    home: Path
    """Its prefix, found through wrappers and links."""
    origin: str
    version: tuple[int, int]
    build: str
    """nvcc's own version, such as `V13.0.88`."""
    nvcc: Path
    include: Path
    """Where its headers really are."""
    lib: Path | None = None
    """Where its libraries really are."""
    missing: tuple[str, ...] = ()
    """What torch looks for under `home` and would not find."""
    lacks: tuple[str, ...] = ()
    """What of that not even torch's own wheels have: it cannot be completed."""
    archs: tuple[str, ...] = ()
    """What nvcc compiles for, such as `("75", "80")`; empty if this nvcc cannot tell."""
    explicit: bool = False
    extras: tuple[Path, ...] = ()
    """Further prefixes that belong to it (the HPC SDK keeps cuBLAS and its kin apart)."""

    @property
    def bin(self) -> Path:
        """The directory of nvcc and its tools, which is not `home / "bin"` in Debian's layout."""
        return self.nvcc.parent

    @property
    def is_system(self) -> bool:
        """Whether it is spread over a system prefix, whose headers and libraries are not all CUDA's."""
        return self.bin != self.home / "bin"

    @property
    def is_wheels(self) -> bool:
        """Whether it was installed as wheels, into a Python environment."""
        return self.home.parent.name == "nvidia" and _WHEELS_HOME.fullmatch(self.home.name) is not None

    def describe(self) -> str:
        return f"CUDA {self.version[0]}.{self.version[1]} in {self.home} ({self.origin})"


@dataclass(frozen=True)
class Rejected:
    """A place that has no toolkit to compile with, and why."""

    candidate: Candidate
    reason: str


@dataclass(frozen=True)
class Discovery:
    """All that was looked at, in order of trust, and the lines that say what was repaired."""

    found: tuple[Toolkit, ...]
    rejected: tuple[Rejected, ...]
    lines: tuple[str, ...]


# Candidates


def clean_cuda_home(value: str, source: str) -> tuple[Path | None, str]:
    """Repair the path of a toolkit as people write it: a list, a trailing /bin, blanks, quotes, `~`.

    Returns the path (None for an empty value, which counts as unset) and the line that says what was
    repaired, if anything. Raises ToolkitError for what cannot be repaired.
    """
    bare = value.strip().strip(_QUOTES).strip()
    if not bare:
        return None, f"{source} is empty, and counts as unset"
    if os.pathsep in bare and not Path(bare).is_dir():
        return _first_of_list(bare, value, source)
    path = Path(bare).expanduser()
    if not path.is_absolute():
        raise _unusable(value, source, "is not an absolute path")
    home = _without_bin(path)
    if not home.is_dir():
        raise _unusable(value, source, "does not exist" if not home.exists() else "is not a directory")
    return home, "" if str(home) == value.rstrip("/") else f"{source} is {value!r}: taken as {home}"


def _first_of_list(bare: str, value: str, source: str) -> tuple[Path, str]:
    parts = [_without_bin(Path(part.strip()).expanduser()) for part in bare.split(os.pathsep) if part.strip()]
    for home in parts:
        if home.is_absolute() and (home / "bin" / "nvcc").exists():
            return home, f"{source} is {value!r}, a list: the first that has nvcc is taken, {home}"
    raise _unusable(value, source, "is a list, and no entry of it has bin/nvcc")


def _without_bin(path: Path) -> Path:
    """The prefix of `prefix/bin/nvcc` or `prefix/bin`."""
    if path.name == "nvcc" and not path.is_dir():
        path = path.parent
    return path.parent if path.name == "bin" and not (path / "bin").exists() else path


def _unusable(value: str, source: str, what: str) -> ToolkitError:
    instead = "write the directory that has bin/nvcc, such as /usr/local/cuda-13.0"
    if is_variable(source):
        instead = f"unset {_first(source)} to have the toolkit found, or {instead}"
    return ToolkitError(f"{source} is {value!r}, which {what}", code="SEB-2001", hint=instead)


def is_variable(source: str) -> bool:
    """Whether a toolkit was named by a variable of the shell, and not for this project."""
    return _first(source) in _ENVIRONMENT


def _first(source: str) -> str:
    """`CUDA_HOME` of `CUDA_HOME in the environment`."""
    return source.partition(" ")[0]


def find_candidates(
    explicit: str | None,
    explicit_source: str,
    environ: Mapping[str, str],
    root: Path = Path("/"),
    site_dirs: Sequence[Path] = (),
    prefixes: Sequence[Path] = (),
) -> tuple[list[Candidate], list[str]]:
    """All places where a toolkit may be, in order of trust, each once; and the lines about what the user named.

    `explicit` is the setting `cuda.home`, `root` the root of the system's own places, `site_dirs` are the
    site directories whose wheels count, and `prefixes` environments, of conda perhaps, active or not.
    """
    named, lines = _named(explicit, explicit_source, environ)
    return _unique([*named, *_implicit(environ, root, site_dirs, prefixes)]), lines


def _named(
    explicit: str | None, explicit_source: str, environ: Mapping[str, str]
) -> tuple[list[Candidate], list[str]]:
    """What the user named, and the lines about it."""
    source = explicit_source or "cuda.home"
    values = {source: explicit} if explicit is not None else {}
    values |= {name: environ[name] for name in _ENVIRONMENT if name in environ and name != _first(source)}
    lines: list[str] = []
    for source, value in values.items():
        try:
            home, line = clean_cuda_home(value, source)
        except ToolkitError as error:
            if not is_variable(source):
                raise
            home, line = None, f"{error}: not used"  # often a stale line in a shell's start-up file
        lines += [line] if line else []
        if home is not None:
            return [Candidate(str(home), source, explicit=True, required=not is_variable(source))], lines
    return [], lines


def _implicit(
    environ: Mapping[str, str], root: Path, site_dirs: Sequence[Path], prefixes: Sequence[Path]
) -> Iterator[Candidate]:
    yield from _on_path(environ)
    for pattern in _SYSTEM:
        yield from _matching(root, pattern)
    if environ.get("CONDA_PREFIX"):
        yield Candidate(environ["CONDA_PREFIX"], "CONDA_PREFIX")
    for prefix in prefixes:
        if (prefix / "bin" / "nvcc").exists():
            yield Candidate(str(prefix), "the environment of torch")
    yield from _matching(root, _HPC_SDK)
    for name in _MODULES:
        if environ.get(name) and Path(environ[name]).is_dir():
            yield Candidate(environ[name], name)
    for site in site_dirs:
        for home in _newest_first((site / "nvidia").glob("cu[0-9]*")):
            yield Candidate(str(home), WHEELS)


def _on_path(environ: Mapping[str, str]) -> Iterator[Candidate]:
    shims = environ.get("SAFE_EXT_BUILD_SHIMS")
    for directory in environ.get("PATH", "").split(os.pathsep):
        nvcc = Path(directory) / "nvcc"
        if directory and directory != shims and nvcc.is_file() and os.access(nvcc, os.X_OK):
            yield Candidate(str(nvcc), "nvcc on PATH")


def _matching(root: Path, pattern: str) -> Iterator[Candidate]:
    for home in _newest_first(root.glob(pattern)):
        if home.is_dir():
            yield Candidate(str(home), f"/{pattern}")


def _newest_first(paths: Iterator[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True)


def _unique(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without those that lead to the same place; an nvcc beside its profile stands for its prefix."""
    seen: dict[Path, Candidate] = {}
    for candidate in candidates:
        seen.setdefault(_identity(candidate), candidate)
    return list(seen.values())


def _identity(candidate: Candidate) -> Path:
    path = Path(candidate.path).resolve()
    if path.name == "nvcc" and (path.parent / "nvcc.profile").exists():
        return path.parent.parent
    return path


# Probing


def discover(
    explicit: str | None,
    explicit_source: str,
    environ: Mapping[str, str],
    root: Path = Path("/"),
    site_dirs: Sequence[Path] = (),
    prefixes: Sequence[Path] = (),
) -> Discovery:
    """Find and probe all candidates, several at a time; each toolkit appears once."""
    candidates, lines = find_candidates(explicit, explicit_source, environ, root, site_dirs, prefixes)
    results = tools.each(lambda candidate: probe(candidate, environ), candidates)
    found: dict[Path, Toolkit] = {}
    for toolkit in results:
        if isinstance(toolkit, Toolkit):
            found.setdefault(toolkit.home.resolve(), toolkit)
    rejected = tuple(result for result in results if isinstance(result, Rejected))
    return Discovery(tuple(found.values()), rejected, tuple(lines))


def probe(candidate: Candidate, environ: Mapping[str, str] | None = None) -> Toolkit | Rejected:
    """Run the candidate's nvcc, and look at what lies around it."""
    path = Path(candidate.path)
    nvcc = path if path.is_file() else path / "bin" / "nvcc"
    if not path.exists():
        return Rejected(candidate, "does not exist")
    if not nvcc.exists():
        return Rejected(candidate, RUNTIME_ONLY if _has_cuda(path) else "has no bin/nvcc: not a CUDA toolkit")
    if candidate.origin == WHEELS and (mixed := mixture(path)):
        return Rejected(candidate, f"has wheels of several versions, which do not fit each other: {mixed}")
    try:
        return _probe_nvcc(candidate, nvcc, _quiet(os.environ if environ is None else environ))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Rejected(candidate, _why(error))


def _has_cuda(home: Path) -> bool:
    return any(True for name in ("lib64", "lib", "include") for _ in (home / name).glob("*cudart*"))


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"nvcc does not answer within {error.timeout:.0f} s"
    if isinstance(error, OSError):
        return f"nvcc does not run: {error.strerror or error}"
    return str(error)


def _quiet(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables that add options to every nvcc: a probe asks about the compiler alone."""
    return {k: v for k, v in environ.items() if k not in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")}


def _probe_nvcc(candidate: Candidate, nvcc: Path, environ: Mapping[str, str]) -> Toolkit:
    top = _top(nvcc, environ)
    if (top / "bin" / "nvcc").exists():
        nvcc = top / "bin" / "nvcc"
    code, output = tools.run([str(nvcc), "--version"], environ)
    release = _RELEASE.search(output)
    if release is None:
        raise ValueError(f"nvcc does not run: {_last_line(output) or f'it ends with status {code}'}")
    without = _absent_tools(top)
    if without:
        raise ValueError(f"has nvcc, but no {', '.join(without)}: an incomplete compiler")
    toolkit = _around(candidate, top, nvcc)
    return replace(
        toolkit,
        version=(int(release[1]), int(release[2])),
        build=release[3] or f"V{release[1]}.{release[2]}",
        missing=_missing(toolkit),
        archs=_archs(nvcc, environ),
    )


def _top(nvcc: Path, environ: Mapping[str, str]) -> Path:
    """The prefix that nvcc itself uses. A wrapper script has no profile beside it, so nvcc is asked."""
    if (nvcc.parent / "nvcc.profile").exists():
        return nvcc.parent.parent
    real = nvcc.resolve()
    if (real.parent / "nvcc.profile").exists():
        return real.parent.parent
    _, output = tools.run([str(nvcc), "--dryrun", "-x", "cu", os.devnull], environ)
    said = {name: value.strip() for name, value in reversed(_VARIABLE.findall(output))}
    if "TOP" in said:
        return Path(os.path.normpath(said["TOP"]))
    # Debian's profile sets no TOP.
    return Path(said["_HERE_"]).parent if "_HERE_" in said else nvcc.parent.parent


def _absent_tools(top: Path) -> list[str]:
    places = ("nvvm/bin/cicc", "bin/cicc"), ("bin/ptxas",), ("bin/cudafe++",)
    return [Path(names[0]).name for names in places if not any((top / name).exists() for name in names)]


def _around(candidate: Candidate, top: Path, nvcc: Path) -> Toolkit:
    """The toolkit around an nvcc, with its version still unknown."""
    home, includes, libs = top, [top / "include"], [top / "lib64"]
    if top.name == "nvidia-cuda-toolkit" and top.parent.name == "lib":
        home = top.parent.parent
        includes, libs = [home / "include"], sorted((home / "lib").glob(f"{platform.machine()}-linux-gnu"))
    for target in _TARGETS.get(platform.machine(), ()):
        includes.append(top / "targets" / target / "include")
        libs.append(top / "targets" / target / "lib")
    return Toolkit(
        home=home,
        origin=candidate.origin,
        version=(0, 0),
        build="",
        nvcc=nvcc,
        include=_first_with(includes, "cuda_runtime.h") or includes[0],
        lib=_first_with([*libs, top / "lib"], "libcudart*"),
        explicit=candidate.explicit,
        extras=_math_libs(top),
    )


def _first_with(places: Sequence[Path], pattern: str) -> Path | None:
    """The first place that has such a file, else the first that exists."""
    having = [place for place in places if any(True for _ in place.glob(pattern))]
    return next(iter([*having, *(place for place in places if place.is_dir())]), None)


def _math_libs(top: Path) -> tuple[Path, ...]:
    apart = top.parent.parent / "math_libs" / top.name
    return (apart,) if top.parent.name == "cuda" and apart.is_dir() else ()


def _missing(toolkit: Toolkit) -> tuple[str, ...]:
    """What torch, which looks in `home/include` and `home/lib64` only, would not find."""
    include = toolkit.home / "include"
    lib = toolkit.lib if toolkit.is_system else toolkit.home / "lib64"
    wanted = [name for name in (*HEADERS, *EXTRA_HEADERS) if not (include / name).exists()]
    wanted += [] if has_thrust(include) else [THRUST]
    wanted += [] if lib is not None and lib.is_dir() else ["lib64"]
    wanted += [] if lib is not None and (lib / "libcudart.so").exists() else ["libcudart.so"]
    wanted += [] if (toolkit.home / "bin" / "nvcc").exists() else ["bin/nvcc"]
    return tuple(wanted)


def has_thrust(include: Path) -> bool:
    """Whether a directory of headers has CCCL, in the old place or the new."""
    return (include / THRUST).exists() or (include / "cccl" / THRUST).exists()


def _archs(nvcc: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    _, output = tools.run([str(nvcc), "--list-gpu-arch"], environ)
    return tuple(sorted(set(_ARCH.findall(output)), key=int))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def gpus(environ: Mapping[str, str] | None = None) -> list[str]:
    """The compute capabilities of the GPUs here, such as `["8.6"]`, from the driver's own tool."""
    environ = os.environ if environ is None else environ
    if environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles"):
        return []
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        code, output = tools.run(command, environ, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = re.findall(r"^\s*(\d+\.\d+)\s*$", output, re.MULTILINE) if code == 0 else []
    return sorted(set(found), key=lambda capability: [int(part) for part in capability.split(".")])


def driver_cuda(environ: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """The newest CUDA that the driver here knows, from its own tool; None without one that says."""
    try:
        _, output = tools.run(["nvidia-smi"], os.environ if environ is None else environ, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _DRIVER.search(output)
    return (int(said[1]), int(said[2])) if said else None
