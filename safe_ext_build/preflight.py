"""Before anything is compiled: is there room where a build writes, and can the project be built where it lies?"""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import PlaceError
from .here import here
from .schedule.ninjafile import bad_sign, is_plain
from .settings import APART
from .supervise import workspace

if TYPE_CHECKING:
    from .settings import Settings

MIB = 1 << 20
WORKSPACE_HINT = "Set workspace.dir (or SAFE_EXT_BUILD_WORKSPACE_DIR) to a directory on a disk with room."
# The intermediate files of a few compiles that include torch's headers, and their objects.
TORCH_NEEDS = 200 * MIB
# A module of a few sources that need no torch.
OTHER_NEEDS = 8 * MIB
# What a hook that compiles nothing writes there.
LEAST = MIB
# A build environment without torch: 12 MiB, and what pip downloads for it.
ENVIRONMENT_NEEDS = 32 * MIB
# Enough for most builds with torch, not for the largest: worth a word.
COMFORTABLE = 1024 * MIB
# Measured: ninja 1.13 dies of half of it.
LEAST_STACK = MIB
PLAIN_HINT = "Set workspace.dir to a directory whose path has none but letters, digits, dots and dashes."


@dataclass(frozen=True)
class Room:
    """A directory that a build writes to, what it writes there, and what to do when there is no room.

    `free`: bytes; `files`: how many more files the file system can hold, None where it has no such number.
    """

    path: Path
    what: str
    remedy: str
    free: int
    files: int | None = None


def check(settings: Settings, with_torch: bool) -> list[str]:
    """What to say of the room for a build of the project in this directory. Raises PlaceError."""
    check_stack(resource.getrlimit(resource.RLIMIT_STACK)[1], may_raise_limits())
    workspaces = workspace.root(settings.workspace.dir, dict(os.environ), make=False)
    rooms = [look(workspaces, "temporary files", WORKSPACE_HINT)]
    project = here()
    if unwritable(project) is None and not os.environ.get(APART):
        rooms.append(look(project, "objects", "Free some room there, or build in another place."))
    if settings.build_dir:
        fixed = Path(str(settings.build_dir).partition("{")[0])
        rooms.append(look(fixed, "objects", "Free some room there, or set build-dir to another directory."))
    if with_torch:
        _check_names(project, workspaces)
    return [*_about_report(settings), *judge(rooms, with_torch)]


def check_workspaces(settings: Settings, with_torch: bool) -> None:
    """For a hook that compiles nothing: whether there is room for itself. Frontends call it before they build, so
    what is said is what the build needs. Raises PlaceError."""
    check_place(workspace.root(settings.workspace.dir, dict(os.environ), make=False), LEAST, with_torch)


def check_place(path: Path, least: int, with_torch: bool) -> None:
    """Whether a place for temporary files has room for `least` bytes, with which a build begins; what is said is
    what it needs later on. Raises PlaceError."""
    room = look(path, "temporary files", WORKSPACE_HINT)
    if room.free >= least:
        room = replace(room, free=COMFORTABLE)
    judge([room], with_torch)


def _about_report(settings: Settings) -> Iterator[str]:
    """What would come to light only after the build: a report that has no directory to go to."""
    wanted = settings.report.path
    if wanted and not wanted.parent.parent.is_dir():
        yield f"{settings.source('report.path')} is {wanted}, but there is no directory {wanted.parent.parent}"


def check_stack(hard: int, may_raise: bool) -> None:
    """Whether there may be the stack that ninja and compilers need. Pure.

    Raises PlaceError; `hard`: the hard limit in bytes, -1 for none. `may_raise`: it does not bind us.
    """
    if 0 <= hard < LEAST_STACK and not may_raise:
        raise PlaceError(
            f"a process may have {hard >> 10} KiB of stack here (`ulimit -Hs` says it), and ninja dies of that",
            code="SEB-4015",
            hint="Raise that limit to 8192 KiB, or build in a shell that has not lowered it.",
        )


def may_raise_limits() -> bool:
    """Whether hard limits do not bind us (capabilities(7): CAP_SYS_RESOURCE); root in a container may not."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return bool(found and int(found[1], 16) >> 24 & 1)


def _check_names(project: Path, workspaces: Path) -> None:
    """nvcc hands the names of its temporary files to a shell. And a project that ninja cannot name is compiled
    under another name, which needs a plain path to stand in."""
    if sign := re.search(r'[$`"\\\n]', str(workspaces)):
        what = f"nvcc cannot name {workspaces}, for the {sign[0]!r} in its path"
        raise PlaceError(what, code="SEB-4002", hint=PLAIN_HINT)
    stores = (workspace.cache_root(dict(os.environ), make=False), workspaces)
    if (bad := bad_sign(str(project))) and not any(is_plain(str(path)) for path in stores):
        what = f"ninja cannot name {project}, for the {bad!r} in its path"
        raise PlaceError(what, code="SEB-4003", hint=f"Build it in a place without such signs. Or: {PLAIN_HINT}")


def look(path: Path, what: str, remedy: str) -> Room:
    """How much room there is at `path`, or where it is going to be made."""
    there = next((place for place in (path, *path.parents) if place.is_dir()), Path("/"))
    found = os.statvfs(there)
    files = found.f_favail if found.f_files else None
    return Room(path, what, remedy, found.f_bavail * found.f_frsize, files)


def judge(rooms: Iterable[Room], with_torch: bool) -> list[str]:
    """What to say of little room. Raises PlaceError where there is too little to build. Pure."""
    needed = TORCH_NEEDS if with_torch else OTHER_NEEDS
    said = []
    for room in rooms:
        if room.files is not None and room.files < 100:
            message = f"{room.path}, where {room.what} go, can hold {room.files} more files (`df -i` shows it)"
            raise PlaceError(message, code="SEB-4004", hint=room.remedy)
        have = f"{room.path}, where {room.what} go, has {_size(room.free)} free"
        if room.free < needed:
            message = f"{have}; this build needs about {_size(needed)}"
            raise PlaceError(message, code="SEB-4005", hint=room.remedy)
        if with_torch and room.free < COMFORTABLE:
            said.append(f"{have}; a large build needs more")
    return said


def _size(count: int) -> str:
    if 0 < count < MIB:
        return f"{count >> 10} KiB"
    return f"{count / MIB:.0f} MiB" if count < 1024 * MIB else f"{count / 1024 / MIB:.1f} GiB"


# What compilers, setuptools and setup scripts say of what is not there.
_MISSING = re.compile(r"no such file|not found|missing|submodule|command .* failed", re.IGNORECASE)


def missing_submodules(project: Path, message: str) -> str:
    """What may be behind a failure that names something missing: submodules that were never fetched; else ''."""
    try:
        listed = re.findall(r"^\s*path\s*=\s*(.+?)\s*$", (project / ".gitmodules").read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return ""
    empty = [name for name in listed if not any((project / name).glob("*"))]
    if not empty or not _MISSING.search(message):
        return ""
    what = f"{', '.join(empty)}: empty, and a git submodule"
    if (project / ".git").exists():
        return f"{what}; fetch it with `git submodule update --init --recursive`."
    return f"{what} that this copy was made without; build from a `git clone --recursive`."


def is_text(project: Path) -> bool:
    """Whether a path can be written down as UTF-8: for the system it is any bytes."""
    try:
        str(project).encode()
    except UnicodeEncodeError:
        return False
    return True


def unwritable(project: Path) -> Path | None:
    """What setuptools has to write in the project's directory, and cannot; None when it can.

    Besides the directory itself: what an earlier build has left there, perhaps as another user.
    """
    left = [*project.glob("build"), *project.glob("build/*"), *project.glob("*.egg-info")]
    for path in (project, *left, *project.glob("src/*.egg-info")):
        if not os.access(path, os.W_OK | os.X_OK if path.is_dir() else os.W_OK):
            return path
    return None


def copy(project: Path, parent: Path) -> Path:
    """Copy a project, to be built in its stead; returns the copy. Raises OSError or shutil.Error.

    Time stamps stay, and we may write all of it. Environments and the outputs of earlier builds are left out;
    a link that leads out of the project goes on leading there.
    """
    here = parent / (re.sub(r"[^\w@%+=,.-]", "_", project.name, flags=re.ASCII) or "project")

    def left_out(folder: str, names: Sequence[str]) -> set[str]:
        itself = {name for name in names if parent.is_relative_to(Path(folder, name))}
        return itself | _left_out(Path(folder), names)

    shutil.copytree(project, here, symlinks=True, ignore=left_out)
    for path in (here, *_below(here)):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
        elif not _leads_into(here, path):
            target = project / path.relative_to(here).parent / path.readlink()
            path.unlink()
            path.symlink_to(os.path.normpath(target))
    return here


def _left_out(place: Path, names: Sequence[str]) -> set[str]:
    skipped = {name for name in names if name == "__pycache__" or (place / name / "pyvenv.cfg").is_file()}
    outputs = {"build"} if any(place.glob("build/bdist.*")) or any(place.glob("build/lib*")) else set()
    return skipped | outputs


def _leads_into(here: Path, link: Path) -> bool:
    target = os.path.normpath(link.parent / link.readlink())  # an absolute one stands alone
    return Path(target).is_relative_to(here)


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *names))
