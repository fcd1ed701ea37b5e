"""A complete CUDA_HOME out of an incomplete toolkit and the wheels of torch: a directory of links.

nvcc takes its prefix from the path by which it is called (measured with 13.0: `TOP` is the composed
directory, whether `bin` or the files in it are links), so such a directory simply is a toolkit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from .cuda import EXTRA_HEADERS, HEADERS, THRUST, Toolkit
from .torch import TorchFacts

_TOOLS = re.compile(
    r"nv.*|__nv.*|ptxas|cicc|cudafe\+\+|fatbinary|bin2c|crt|cu\+\+filt|cuobjdump|cuda-.*|compute-sanitizer"
)
_WHOLE = ("nvvm", "extras", "version.json", "version.txt")
_VERSIONED = re.compile(r"(lib.+?\.so)\.[\d.]+")
_TARGET = {"aarch64": "sbsa-linux"}

Layout = dict[str, Path]
"""What each path in the composed directory links to: an absolute path, or a relative one within it."""


@dataclass(frozen=True)
class _Part:
    """One of several origins of headers or libraries."""

    directory: Path
    shared: bool = False
    """It is the system's own directory, in which most is not CUDA's, and which compilers search anyway."""


def complete(toolkit: Toolkit, torch: TorchFacts, cache: Path, *, volatile: Sequence[Path] = ()) -> Path:
    """The CUDA_HOME to export: the toolkit's own, or one under `cache` that has what the toolkit lacks.

    Files below the directories `volatile` (an isolated build environment) are going to be deleted: they
    are hard-linked or copied, where others are linked by name.
    """
    if toolkit.is_wheels and _is_volatile(toolkit.home, volatile) and not _is_volatile(torch.package, volatile):
        toolkit = _keep(toolkit, cache)
    plan = layout(toolkit, torch)
    copied = {name for name, source in plan.items() if _is_volatile(source, volatile)}
    if not copied and not (toolkit.missing and _fills(toolkit, plan)):
        return toolkit.home
    return _put(cache / "toolkits" / _key(toolkit, torch.version, plan, copied), plan, copied)


def _keep(toolkit: Toolkit, cache: Path) -> Toolkit:
    """A copy of fetched wheels in the cache: one for all environments, of which each links to its own torch."""
    plan = {str(path.relative_to(toolkit.home)): path for path in toolkit.home.rglob("*") if path.is_file()}
    home = _put(cache / "toolkits" / f"wheels-{_key(toolkit, '', plan, set(plan))}", plan, set(plan))
    lib = home / toolkit.lib.relative_to(toolkit.home) if toolkit.lib else None
    return replace(
        toolkit,
        home=home,
        nvcc=home / toolkit.nvcc.relative_to(toolkit.home),
        include=home / toolkit.include.relative_to(toolkit.home),
        lib=lib,
    )


def _put(home: Path, plan: Layout, copied: set[str]) -> Path:
    """Have a directory that is what the plan says."""
    if not is_whole(home, plan, copied):
        home.parent.mkdir(parents=True, exist_ok=True)
        with _locked(home.parent):
            if not is_whole(home, plan, copied):
                _make(home, plan, copied)
    return home


def lacking(toolkit: Toolkit, torch: TorchFacts) -> tuple[str, ...]:
    """What torch's CUDA headers need and neither the toolkit nor torch's wheels have."""
    plan = layout(toolkit, torch)
    return tuple(name for name in toolkit.missing if name not in EXTRA_HEADERS and not _provides(plan, name))


# What goes where


def layout(toolkit: Toolkit, torch: TorchFacts) -> Layout:
    """What a composed directory would hold; the toolkit's own files come before all others."""
    kin = torch.cuda is not None and int(torch.cuda.partition(".")[0]) == toolkit.version[0]
    wheels_include = torch.include_dirs if kin else ()
    wheels_lib = torch.library_dirs if kin else ()
    shared = toolkit.is_system
    includes = [_Part(toolkit.include, shared), *(_Part(prefix / "include") for prefix in toolkit.extras)]
    libs = [_Part(toolkit.lib, shared)] if toolkit.lib else []
    libs += [_Part(prefix / "lib64") for prefix in toolkit.extras]
    plan = _bin(toolkit) | _beside(toolkit)
    plan |= _headers([*includes, *map(_Part, wheels_include)])
    plan |= _libraries([*libs, *map(_Part, wheels_lib)])
    target = _target(toolkit)
    plan["lib"] = Path("lib64")
    plan[f"targets/{target}/include"] = Path("../../include")
    plan[f"targets/{target}/lib"] = Path("../../lib64")
    return plan


def _bin(toolkit: Toolkit) -> Layout:
    """nvcc's own tools; a conda prefix keeps a whole system in the same directory."""
    return {f"bin/{path.name}": path for path in _entries(toolkit.bin) if _TOOLS.fullmatch(path.name)}


def _beside(toolkit: Toolkit) -> Layout:
    top = toolkit.bin.parent
    return {name: top / name for name in _WHOLE if (top / name).exists()}


def _target(toolkit: Toolkit) -> str:
    machine = platform.machine()
    own = sorted(path.name for path in toolkit.home.glob(f"targets/{machine}-linux"))
    return next(iter(own), _TARGET.get(machine, f"{machine}-linux"))


def _headers(parts: Sequence[_Part]) -> Layout:
    """A library's headers come from one part only: directories are not mixed, except that of CCCL."""
    plan = _first_of(parts, "include")
    if "include/cccl" in plan:
        del plan["include/cccl"]
        cccl = [_Part(part.directory / "cccl") for part in parts if (part.directory / "cccl").is_dir()]
        plan |= _first_of(cccl, "include/cccl")
    return plan


def _libraries(parts: Sequence[_Part]) -> Layout:
    """Libraries, and the unversioned names that the linker looks for, which wheels do not have."""
    plan = _first_of(parts, "lib64")
    for name in sorted(plan, key=lambda name: (len(name), name)):
        versioned = _VERSIONED.fullmatch(PurePosixPath(name).name)
        if versioned:
            plan.setdefault(f"lib64/{versioned[1]}", Path(PurePosixPath(name).name))
    return plan


def _first_of(parts: Sequence[_Part], where: str) -> Layout:
    cudas = {_stem(path.name) for part in parts if not part.shared for path in _entries(part.directory)}
    plan: Layout = {}
    for part in parts:
        owned = {PurePosixPath(name).name for name in plan}
        stems = {_stem(name) for name in owned}
        for path in _entries(part.directory):
            if part.shared and _stem(path.name) not in cudas:
                continue
            # A library of another part would bring its own version beside the one there is.
            if path.name not in owned and (_stem(path.name) == path.name or _stem(path.name) not in stems):
                plan[f"{where}/{path.name}"] = path
    return plan


def _stem(name: str) -> str:
    """`libcudart.so` of `libcudart.so.13`; other names are their own."""
    versioned = _VERSIONED.fullmatch(name)
    return versioned[1] if versioned else name


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _fills(toolkit: Toolkit, plan: Layout) -> bool:
    return any(_provides(plan, name) for name in toolkit.missing)


def _provides(plan: Layout, name: str) -> bool:
    if name == "lib64":
        return any(entry.startswith("lib64/") for entry in plan)
    if name == THRUST:
        return any(_has_header(plan, f"{where}{name}") for where in ("include/", "include/cccl/"))
    if name in HEADERS or name in EXTRA_HEADERS:
        return _has_header(plan, f"include/{name}")
    return name in plan or f"lib64/{name}" in plan


def _has_header(plan: Layout, path: str) -> bool:
    """Whether the plan has a file, itself or below a directory that is linked as a whole."""
    directory, _, name = path.rpartition("/")
    return path in plan or (directory in plan and (plan[directory] / name).exists())


# On disk


def _key(toolkit: Toolkit, torch: str, plan: Layout, copied: set[str]) -> str:
    """Changes with every part. What is copied comes from a place whose name changes each time."""
    digest = hashlib.sha256(f"{toolkit.build}\0{torch}\0".encode())
    for name, source in sorted(plan.items()):
        identity = str(_size(source)) if name in copied else str(source)
        digest.update(f"{name}\0{identity}\0".encode(errors="surrogateescape"))
    return f"cuda-{toolkit.version[0]}.{toolkit.version[1]}-{digest.hexdigest()[:16]}"


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a directory."""
    if path.is_dir():
        return sum(inside.stat().st_size for inside in path.rglob("*") if inside.is_file())
    return path.stat().st_size


def _is_volatile(path: Path, volatile: Sequence[Path]) -> bool:
    roots = [place for root in volatile for place in (root, root.resolve())]
    return path.is_absolute() and any(path.is_relative_to(root) for root in roots)


def is_whole(home: Path, plan: Mapping[str, Path], copied: set[str]) -> bool:
    """Whether a composed directory is what the plan says, and nothing in it dangles."""
    return all(_is_in_place(home / name, source, name in copied) for name, source in plan.items())


def _is_in_place(path: Path, source: Path, copied: bool) -> bool:
    try:
        if copied:
            return path.is_dir() if source.is_dir() else path.stat().st_size == source.stat().st_size
        return path.readlink() == source and path.exists()
    except OSError:
        return False


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One build composes at a time, so whatever half-made directory is there was left by a dead one."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # A file system without locks: renaming alone keeps us safe.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            for stale in directory.glob(".making-*"):
                shutil.rmtree(stale, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def _make(home: Path, plan: Layout, copied: set[str]) -> None:
    """Build the directory beside its place, and put it there whole."""
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=home.parent))
    try:
        making.chmod(0o755)
        for name, source in plan.items():
            path = making / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in copied:
                _copy(source, path)
            else:
                path.symlink_to(source)
        try:
            making.rename(home)
        except OSError:
            # Something is there: another build was first (without locks), or an older one now dangles.
            if not is_whole(home, plan, copied):
                _replace(home, making)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _replace(home: Path, making: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=home.parent))
    try:
        home.rename(aside / "old")
        making.rename(home)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _copy(source: Path, path: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, path, copy_function=_link_or_copy)
    else:
        _link_or_copy(str(source), str(path))


def _link_or_copy(source: str, path: str) -> None:
    """Hard-link where one file system holds both: the wheels' libraries have gigabytes."""
    try:
        os.link(Path(source).resolve(), path)
    except OSError:
        shutil.copy2(source, path)
