"""What CMake reads from the environment: toolkit, architectures, launchers and jobs. Pure.

https://cmake.org/cmake/help/latest/manual/cmake-env-variables.7.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_LANGUAGES = ("C", "CXX", "CUDA")


def environment(
    toolkit: Path | None, archs: str, jobs: int, launcher: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables to add to `environ`, in which the user's own values win.

    `toolkit` is one whose path lasts, since CMake keeps it: its compiler becomes a job through `launcher`,
    which goes before the user's own. `archs` is the TORCH_CUDA_ARCH_LIST.
    """
    ours = {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    if toolkit:
        ours |= {"CUDACXX": str(toolkit / "bin" / "nvcc"), "CUDAToolkit_ROOT": str(toolkit)}
        if archs:
            ours["CUDAARCHS"] = architectures(archs)
    added = {name: value for name, value in ours.items() if not environ.get(name)}
    for name in (f"CMAKE_{language}_COMPILER_LAUNCHER" for language in _LANGUAGES):
        theirs = [word for word in environ.get(name, "").split(";") if word not in ("", launcher)]
        added[name] = ";".join([launcher, *theirs])
    return added


def architectures(archs: str) -> str:
    """A TORCH_CUDA_ARCH_LIST in CMake's syntax: `8.0;9.0+PTX` is `80-real;90`; `90` stands for both kinds."""
    return ";".join(map(_architecture, archs.split(";")))


def _architecture(arch: str) -> str:
    base, plus, _ = arch.partition("+")
    return base.replace(".", "") + ("" if plus else "-real")
