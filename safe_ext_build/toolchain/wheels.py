"""The CUDA compiler as wheels: what a frontend is asked for, and how a compiler is installed by hand."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from .torch import TorchFacts

FIRST_MAJOR = 13
"""The first CUDA whose wheels hold a compiler: those of CUDA 12 have ptxas, and no nvcc."""
_META = "cuda-toolkit"
_EXTRAS = "nvcc,cccl"
# nvidia-cuda-nvcc requires the others in any version, which would be that of the newest CUDA.
_COMPILER = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime")
_MACHINES = ("x86_64", "aarch64")
_ARCHIVE = "https://developer.nvidia.com/cuda-toolkit-archive"


@dataclass(frozen=True)
class Installer:
    """How one installs into the environment of torch."""

    python: Path
    uv: bool = False
    """By uv, and not by the environment's own pip."""

    def command(self, requirements: Sequence[str]) -> str:
        python = shlex.quote(str(self.python))
        start = f"uv pip install --python {python}" if self.uv else f"{python} -m pip install"
        return " ".join([start, *(f'"{requirement}"' for requirement in requirements)])


def requirements(torch: TorchFacts) -> tuple[str, ...]:
    """What brings the compiler of exactly torch's CUDA minor version; empty where no wheels have it."""
    major, minor = _version(torch.cuda)
    if major < FIRST_MAJOR or platform.machine() not in _MACHINES:
        return ()
    pin = next(_pins(torch.package), "")
    if _version(pin) == (major, minor):
        return (f"{_META}[{_EXTRAS}]=={pin}",)
    return tuple(f"{name}=={major}.{minor}.*" for name in (*_COMPILER, "nvidia-cuda-cccl"))


def _version(text: str | None) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _pins(package: Path) -> Iterator[str]:
    """The versions of the cuda-toolkit package that the torch in a directory requires."""
    for metadata in sorted(package.parent.glob("torch-*.dist-info/METADATA")):
        head = metadata.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        for text in re.findall(rf"^Requires-Dist: ({_META}\b.*)$", head, re.MULTILINE):
            yield from _pinned(text)


def _pinned(text: str) -> Iterator[str]:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        yield from (one.version for one in requirement.specifier if one.operator == "==")


def mixture(home: Path) -> str:
    """Of which minor versions the wheels in `home` (`site/nvidia/cu13`) are; empty if all are of one.

    `pip install nvidia-cuda-nvcc` beside an older torch leaves such a home: its parts do not fit each other.
    """
    found: dict[str, str] = {}
    for info in sorted(home.parent.parent.glob("nvidia_*.dist-info")):
        name, _, version = info.stem.partition("-")
        if name.replace("_", "-") in _COMPILER:
            found[name.replace("_", "-")] = ".".join(version.split(".")[:2])
    named = ", ".join(f"{name} {version}" for name, version in found.items())
    return named if len(set(found.values())) > 1 else ""


def how_to_install(cuda: str, wanted: Sequence[str], installer: Installer | None) -> str:
    """How to get a compiler for CUDA `cuda` (`13.0`), as an imperative.

    `wanted` are its wheels; without an installer, the environment is one that the frontend makes and deletes.
    """
    major, minor = _version(cuda)
    package = f"{_META}-{major}-{minor}"
    if not wanted:
        return (
            f"install {package} from NVIDIA's package repository (apt install {package}, dnf install {package}), "
            f"or conda install -c nvidia {_META}={major}.{minor}, or, from {_ARCHIVE}, "
            f"sh cuda_{major}.{minor}.*_linux.run --silent --toolkit{_why_no_wheels(major)}"
        )
    if installer is None:
        listed = ", ".join(f'"{requirement}"' for requirement in wanted)
        return f"add {listed} to build-system.requires, or install {package} from NVIDIA's package repository"
    return f"{installer.command(wanted)}, or install {package} from NVIDIA's package repository"


def _why_no_wheels(major: int) -> str:
    return f" (the wheels of CUDA {major} have no nvcc)" if major < FIRST_MAJOR else ""
