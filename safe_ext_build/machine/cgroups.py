"""Which control groups bind this process, and where they can be read.

Standard library only: the supervisor, which starts as `python -I -S -E`, imports this too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .files import read

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Cgroup:
    """One control group that binds this process."""

    name: str
    """Its path as /proc/self/cgroup would write it, for example `/kubepods/pod1`."""
    directory: Path
    version: int
    """1 or 2: the files have other names."""


@dataclass(frozen=True)
class _Mount:
    """A mounted hierarchy: its part below the cgroup `top` is seen at the directory `point`."""

    top: str
    point: str
    version: int
    controllers: frozenset[str]


def ancestors(controller: str, root: Path = Path("/")) -> tuple[Cgroup, ...]:
    """The visible cgroups that bind this process for `memory`, `cpu` or `pids`; its own first, then outwards.

    A controller lives in one hierarchy only: in that of v1 which /proc/self/cgroup names, else in v2's. So a
    hybrid machine (v2 mounted, controllers on v1) needs no case of its own.
    """
    version, path = _membership(controller, read(root / "proc/self/cgroup"))
    mounts = _mounts(read(root / "proc/self/mountinfo"))
    chains = [
        tuple(group for group in _chain(mount, path, root) if _is_directory(group.directory))
        for mount in mounts
        if mount.version == version and (version == 2 or controller in mount.controllers)
    ]
    # A container may also be given the host's hierarchy, which shows more: the fullest view wins.
    return max(chains, key=len, default=())


def _membership(controller: str, text: str) -> tuple[int, str]:
    """The version of the hierarchy that has the controller, and the path of this process in it."""
    unified = ""
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return 1, path
        if number == "0" and not controllers:
            unified = path
    return 2, unified


def _mounts(mountinfo: str) -> list[_Mount]:
    # What is mounted later on the same directory hides what was there.
    by_point = {mount.point: mount for mount in map(_parse_mount, mountinfo.split("\n")) if mount}
    return list(by_point.values())


def _parse_mount(line: str) -> _Mount | None:
    left, _, right = line.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
        return None
    version = 1 if after[0] == "cgroup" else 2
    return _Mount(_unescape(before[3]), _unescape(before[4]), version, frozenset(after[2].split(",")))


def _unescape(text: str) -> str:
    """Undo mountinfo's escapes: a blank is written as `\\040`."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _chain(mount: _Mount, path: str, root: Path) -> Iterator[Cgroup]:
    below = _below(mount.top, path)
    if below is None:
        return
    top, point = PurePosixPath(mount.top), root / mount.point.lstrip("/")
    hidden, names = below
    if hidden:
        names = _search(point, hidden, names, pid=read(root / "proc/self/stat").partition(" ")[0])
    for depth in range(len(names), -1, -1):
        yield Cgroup(str(top.joinpath(*names[:depth])), point.joinpath(*names[:depth]), mount.version)


def _below(top: str, path: str) -> tuple[int, tuple[str, ...]] | None:
    """The way from the cgroup at the mount's top down to `path`; None when that mount does not show it.

    Docker on v1 mounts the container's own cgroup, so `top` is a prefix of `path`, often all of it. In a
    cgroup namespace both are told relative to the namespace: what lies outside begins with `/..`. A mount
    that begins above the namespace shows us, but nobody tells the first names: the number says how many.
    """
    if not (top.startswith("/") and path.startswith("/")):
        return None
    tops, steps = PurePosixPath(top).parts[1:], PurePosixPath(path).parts[1:]
    rest, up = steps[len(tops) :], steps.count("..")
    if steps[: len(tops)] == tops:
        return None if ".." in rest else (0, rest)
    return (len(tops) - up, steps[up:]) if set(tops) == {".."} and up < len(tops) else None


def _search(top: Path, hidden: int, names: tuple[str, ...], pid: str) -> tuple[str, ...]:
    """The way to `names` below `hidden` unknown directories: where we are listed. () when nowhere."""
    level = [top]
    for _ in range(hidden):
        level = [child for directory in level for child in _children(directory)]
    for directory in level:
        own = directory.joinpath(*names)
        if pid in read(own / "cgroup.procs").split():
            return own.relative_to(top).parts
    return ()


def _children(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if _is_directory(path)]
    except OSError:
        return []


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
