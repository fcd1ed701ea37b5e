"""What may be behind an error of a setup script, as what to do about it. Standard library only."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

# Where the distribution has another name than the module.
_DISTRIBUTIONS = {
    "Cython": "cython",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "git": "gitpython",
    "google": "protobuf",
    "skbuild": "scikit-build",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
_PROBES = re.compile(
    r"cuda\.(?:device_count|is_available|current_device|get_device_\w+)|nvidia-smi|\bpynvml\b|cudaGetDeviceCount"
)
_ABOUT_GPUS = re.compile(r"\bgpus?\b|cuda|nvidia|device|capabilit|\barch|index out of range", re.IGNORECASE)
_READS = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\()\s*["'](\w+)["']""")
# What setup scripts read that says nothing about GPUs, or that is exported to them already.
_USUAL = re.compile(
    r"TORCH_CUDA_ARCH_LIST|CUDA_(HOME|PATH)|MAX_JOBS|NVCC_\w+|CC|CXX|\w*FLAGS|PATH|HOME|DEBUG|\w*VERSION\w*"
)

_PKG_RESOURCES = (
    'setuptools has no pkg_resources any more from version 82 on: write "setuptools<82" into '
    "build-system.requires of pyproject.toml, or let setup.py use importlib.metadata and packaging"
)
_ABI3 = (
    "this Python is free-threaded, and has no limited API: leave out py_limited_api, and bdist_wheel's option of "
    "that name, where sysconfig.get_config_var('Py_GIL_DISABLED') is true"
)
_NOT_ON_PATH = (
    "lies beside setup.py, and build frontends do not put that directory on Python's path: let setup.py begin "
    "with `import os, sys; sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))`"
)


# What urllib raises, and what lies beneath it where something else is used.
_UNREACHED = (URLError, ConnectionError, socket.gaierror, socket.timeout)


@dataclass(frozen=True)
class Cause:
    """What is behind an error: its id, and what to do."""

    code: str
    hint: str


@dataclass(frozen=True)
class Project:
    """What of a project tells why its setup script fails: its text, what lies beside it, what it was told."""

    script: str = ""
    beside: frozenset[str] = frozenset()
    archs: str = ""
    has_gpu: bool = True

    @classmethod
    def read(cls, root: Path) -> Project:
        try:
            script = (root / "setup.py").read_text(errors="replace")
            beside = frozenset(path.stem if path.suffix == ".py" else path.name for path in root.iterdir())
        except OSError:
            return cls()
        has_gpu = any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu"))
        return cls(script, beside, os.environ.get("TORCH_CUDA_ARCH_LIST", ""), has_gpu)


def cause_of(error: BaseException, project: Project) -> Cause | None:
    """What is behind an error of a setup script; None when nothing is known of it."""
    for one in _causes(error):
        if isinstance(one, ModuleNotFoundError) and one.name:
            return _missing(one.name, project)
    if any(isinstance(one, _UNREACHED) for one in _causes(error)):
        return Cause("SEB-6110", _offline(project))
    if "Py_LIMITED_API" in str(error) and "Py_GIL_DISABLED" in str(error):
        return Cause("SEB-6107", _ABI3)
    if not project.has_gpu and _PROBES.search(project.script) and _ABOUT_GPUS.search(f"{error!r}"):
        return Cause("SEB-6108", _no_gpu(project))
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from; for an exit, also what was being handled."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or (one.__context__ if isinstance(one, SystemExit) else None)


def _missing(module: str, project: Project) -> Cause:
    root = module.partition(".")[0]
    if root == "pkg_resources":
        return Cause("SEB-6105", _PKG_RESOURCES)
    if root == "torch":
        return Cause("SEB-6109", "")  # which torch there is, and why, is said elsewhere
    if root in project.beside:
        return Cause("SEB-6106", f"{root} {_NOT_ON_PATH}")
    name = _DISTRIBUTIONS.get(root, root.replace("_", "-"))
    return Cause(
        "SEB-6104",
        f'the build needs {root}, which was not installed for it: add "{name}" to build-system.requires in '
        f"pyproject.toml; without build isolation: python -m pip install {name}",
    )


def _offline(project: Project) -> str:
    hint = "setup.py wants something from the network, and does not get it"
    own = dict.fromkeys(name for name in _READS.findall(project.script) if "FORCE_BUILD" in name)
    return f"{hint}; it may be a prebuilt wheel: {next(iter(own))}=TRUE lets it compile instead" if own else hint


def _no_gpu(project: Project) -> str:
    told = f", although TORCH_CUDA_ARCH_LIST={project.archs} is exported to it" if project.archs else ""
    own = [name for name in dict.fromkeys(_READS.findall(project.script)) if not _USUAL.fullmatch(name)]
    instead = f"it reads {', '.join(own)}: one of them may tell it" if own else "let it read from that variable"
    return f"setup.py looks for GPUs, and there are none here{told}; {instead} what to compile for"
