"""Toolkits and torches made of shell scripts and empty files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safe_ext_build.toolchain.cuda import EXTRA_HEADERS, HEADERS, THRUST

ARCHS = ("75", "80", "86", "90", "100", "120")
RUNTIME_HEADERS = ("cuda_runtime.h", "crt/host_config.h")
MATH_HEADERS = tuple(name for name in (*HEADERS, *EXTRA_HEADERS) if name not in RUNTIME_HEADERS)


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def files(directory: Path, names: Sequence[str]) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")


def nvcc(path: Path, version: str = "13.0", archs: Sequence[str] = ARCHS, top: str = "") -> Path:
    listed = "; ".join(f"echo compute_{arch}" for arch in archs) or ":"
    said = f'echo "#\\$ TOP={top}" >&2' if top else ":"
    return script(
        path,
        f"""[ -n "$NVCC_APPEND_FLAGS" ] && exit 9
case "$1" in
--version) echo "Cuda compilation tools, release {version}, V{version}.88";;
--list-gpu-arch) {listed};;
--dryrun) {said};;
*) exit 1;;
esac""",
    )


def wrapper(path: Path, target: Path) -> Path:
    """A script in another prefix, whose target prints its true prefix."""
    return script(path, f'exec {target} "$@"')


def toolkit(
    home: Path,
    version: str = "13.0",
    *,
    archs: Sequence[str] = ARCHS,
    math: bool = True,
    lib: str = "lib64",
    profile: bool = True,
) -> Path:
    """A toolkit, without the headers of the math libraries if `math` is false."""
    nvcc(home / "bin" / "nvcc", version, archs, top=f"{home}/bin/..")
    files(home, ["bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc"])
    if profile:
        files(home, ["bin/nvcc.profile"])
    thrust = f"cccl/{THRUST}" if int(version.partition(".")[0]) >= 13 else THRUST
    files(home / "include", [*RUNTIME_HEADERS, thrust, *(MATH_HEADERS if math else ())])
    major = version.partition(".")[0]
    files(home / lib, [f"libcudart.so.{major}", "libcudart_static.a"])
    (home / lib / "libcudart.so").symlink_to(f"libcudart.so.{major}")
    return home


def wheels(site: Path, major: int = 13) -> Path:
    """What torch's wheels bring: headers of the math libraries, and libraries without development links."""
    home = site / "nvidia" / f"cu{major}"
    files(home / "include", ["cuda_runtime.h", *MATH_HEADERS])
    files(home / "lib", [f"libcudart.so.{major}", f"libcublas.so.{major}", "libcusparse.so.12"])
    files(site / "nvidia" / "cudnn", ["include/cudnn.h", "lib/libcudnn.so.9"])
    return home


def torch(site: Path, version: str = "2.14.1+cu130", cuda: str | None = "13.0") -> Path:
    package = site / "torch"
    package.mkdir(parents=True)
    text = f"""from typing import Optional

__all__ = ['__version__', 'cuda', 'hip']
__version__ = {version!r}
debug = False
cuda: Optional[str] = {cuda!r}
hip: Optional[str] = None
"""
    (package / "version.py").write_text(text)
    return package


def metadata(site: Path, name: str, version: str, *requires: str) -> Path:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, "", "About it.\n"]))
    return info
