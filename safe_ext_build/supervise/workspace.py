"""The directory of one build: made under a lock, owned through a lock, removed by whoever comes last.

Layout of ROOT/ID/:
    request.json    what the hook process asks for       result.json   what the builder answers
    tmp/            TMPDIR of the builder                jobs/N/       TMPDIR of compile N, and two symbolic
    bin/            shims (or `shims` -> elsewhere)                    links to what it writes outside
    claim           -> the link that says whose turn it is to build the project (see turn.py)
    names/          links to directories of names (see launcher.names)
    inner/          links to the workspaces of builds that run inside of this one
Standard library only: the supervisor imports this.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from ..errors import SupervisionError
from ..launcher import names
from ..schedule.ninjafile import can_name
from .processes import end_all, forsaken_wards, inherited, marked, wake

MIN_FREE = 1 << 30
# sun_path holds 108 bytes with its final NUL (unix(7)); the socket is the longest name that we need.
MAX_SOCKET_PATH = 107
SOCKET_NAME = "socket"
CLAIM = "claim"
INNER = "inner"
WITHIN_VARIABLE = "SAFE_EXT_BUILD_WITHIN"
"""The variable that names the workspace of the build that a process is part of."""
# Seconds: a process that was killed holds its locks a little longer than it can be found.
_DYING = 2.0
HINT = "Set workspace.dir (or SAFE_EXT_BUILD_WORKSPACE_DIR) to a directory on a disk with room."
_ID = re.compile(r"[0-9a-f]{12}")


class Watch(Protocol):
    """Somebody who ends what carries a directory's marker, and removes it, when its owner dies."""

    def end(self) -> None:
        """There is nothing to watch any more. Safe to call twice."""


class Workspace:
    """A build's directory. `lock` is a descriptor: the directory belongs to a live build while it is open.
    `watch`: who looks after it, should this process die."""

    def __init__(self, path: Path, lock: int, watch: Watch | None = None) -> None:
        self.path = path
        self.lock = lock
        self.watch = watch

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def shims(self) -> Path:
        link = self.path / "shims"
        return Path(os.readlink(link)) if link.is_symlink() else self.path / "bin"

    @property
    def socket(self) -> Path:
        return self.shims / SOCKET_NAME

    def remove(self) -> None:
        """Remove the directory and what jobs left outside of it. Safe to call twice, and from two processes."""
        remove_tree(self.path)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1
        if self.watch:
            self.watch.end()


def remove_tree(path: Path) -> None:
    """Remove the workspace at `path`, whose processes have been ended: first what its links name outside
    (unfinished outputs, shims, its claim, the builds inside of it)."""
    for one in inner(path):
        with contextlib.suppress(OSError):  # somebody else removes it, too
            _remove_inner(one)
    for link in path.glob("jobs/*/*"):
        if link.is_symlink() and link.name in ("output", "depfile"):
            Path(os.readlink(link)).unlink(missing_ok=True)
    for folder in names.kept(str(path)):
        names.remove(folder)
    if (path / "shims").is_symlink():
        shutil.rmtree(os.readlink(path / "shims"), ignore_errors=True)
    with contextlib.suppress(OSError):  # none, or by now another build's
        claim = Path(os.readlink(path / CLAIM))
        if os.readlink(claim) == os.fspath(path):
            claim.unlink()
    # Two guards may remove at once, and a file that one has taken makes the other's rmtree skip a directory.
    for _ in range(5):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def inner(path: Path) -> list[Path]:
    """The workspaces of builds inside of the one at `path`, also those that are gone."""
    found = []
    for link in path.glob(f"{INNER}/*"):
        with contextlib.suppress(OSError):
            found.append(Path(os.readlink(link)))
    return found


def _remove_inner(path: Path) -> None:
    """Who ends a build ends those inside of it, with all who would have cleared up after them."""
    deadline = time.monotonic() + _DYING
    while lives(path) and time.monotonic() < deadline:
        time.sleep(0.01)
    if lives(path) or not (path.is_dir() and _is_workspace(path)):
        return
    end_all(lambda: marked(path.name), patience=2.0)
    remove_if_free(path)


def _register(path: Path) -> None:
    """Let the build that we are part of know of a workspace; nothing of it needs to be there yet."""
    outer = Path(inherited(WITHIN_VARIABLE))
    with contextlib.suppress(OSError):  # it has just ended
        if outer.is_absolute() and _is_workspace(outer):
            (outer / INNER).mkdir(exist_ok=True)
            (outer / INNER / path.name).symlink_to(path)


def create(
    root: Path, shim_roots: list[Path], watch: Callable[[Path], Watch] | None = None, *, clear: bool = True
) -> Workspace:
    """Make a workspace under `root`, and furnish it; `watch` and `clear` as for `make`."""
    workspace = make(root, watch, clear=clear)
    furnish(workspace, shim_roots)
    return workspace


def make(root: Path, watch: Callable[[Path], Watch] | None = None, *, clear: bool = True) -> Workspace:
    """Make a workspace under `root` (0700, ours); `clear`: after clearing away those of builds that have died.

    `watch` is called with the path before it is made, and has it looked after. Raises SupervisionError.
    """
    _private_directory(root)
    path = root / os.urandom(6).hex()
    _register(path)
    workspace = Workspace(path, -1, watch(path) if watch else None)
    try:
        with _guarded(root):
            if clear:
                collect(root)
            path.mkdir(0o700)
            workspace.lock = _locked(path)
        (path / "tmp").mkdir()
    except OSError as error:
        workspace.remove()
        raise SupervisionError(
            f"cannot make a directory for temporary files in {root}: {error.strerror}",
            code="SEB-4007",
            hint=HINT,
        ) from error
    return workspace


def temporary(watch: Callable[[Path], Watch]) -> Workspace:
    """A workspace among the temporary files, for who only asks. Raises SupervisionError."""
    workspace = None
    try:
        path = Path(tempfile.gettempdir(), f"safe-ext-build-{os.urandom(6).hex()}")
        workspace = Workspace(path, -1, watch(path))
        path.mkdir(0o700)
        (path / "tmp").mkdir()
    except OSError as error:
        if workspace:
            workspace.remove()
        what = f"cannot make a directory for temporary files in {path.parent}: {error.strerror}"
        hint = "Set TMPDIR to a directory on a disk with room."
        raise SupervisionError(what, code="SEB-4007", hint=hint) from error
    return workspace


@contextlib.contextmanager
def _guarded(root: Path, flags: int = os.O_CREAT) -> Iterator[None]:
    """Hold a directory of workspaces: meanwhile nobody else makes one there, or clears away. Raises OSError."""
    guard = os.open(root / ".lock", os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)


def furnish(workspace: Workspace, shim_roots: list[Path]) -> None:
    """Make what a supervised build needs in a workspace. Raises SupervisionError; then it is removed."""
    try:
        with writing(workspace.path):
            for name in ("jobs", "bin"):
                (workspace.path / name).mkdir()
        _place_shims(workspace, shim_roots)
    except SupervisionError:
        workspace.remove()
        raise


def collect(root: Path) -> list[str]:
    """Remove the workspaces under `root` that no live build owns, and end what still runs of their builds."""
    wake(forsaken_wards())
    removed = []
    for path in root.iterdir():
        if path.is_symlink() or not _is_workspace(path):
            continue
        try:
            lock = _locked(path)
        except OSError:
            continue  # its build lives
        build_id = path.name
        end_all(lambda build_id=build_id: marked(build_id), patience=2.0)  # type: ignore[misc]
        remove_tree(path)
        os.close(lock)
        removed.append(build_id)
    return removed


@contextlib.contextmanager
def abandoned(root: Path) -> Iterator[list[Path]]:
    """The workspaces under `root` that no live build owns; meanwhile none is made there. Raises OSError."""
    with _guarded(root, 0):
        yield [path for path in root.iterdir() if not path.is_symlink() and _is_workspace(path) and _is_free(path)]


def remove_if_free(path: Path) -> bool:
    """Remove a workspace that no live build owns; whether it is gone."""
    if path.is_dir() and _is_workspace(path) and _is_free(path):
        remove_tree(path)
    return not path.exists()


def lives(path: Path) -> bool:
    """Whether this is the workspace of a live build."""
    return path.is_dir() and not _is_free(path)


def _is_free(path: Path) -> bool:
    try:
        os.close(_locked(path))
    except OSError:
        return False
    return True


def _is_workspace(path: Path) -> bool:
    """Whether we have made this: `workspace.dir` may be a directory in which a user keeps other things."""
    if not _ID.fullmatch(path.name) or not path.is_dir():
        return False
    held = {entry.name for entry in path.iterdir()}
    return not held or not held.isdisjoint({"tmp", "jobs", "bin", "request.json"})


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _private_directory(path: Path) -> None:
    """Make a directory for us alone, unless it is there; one that is there, and not made by us, stays as it is."""
    try:
        with contextlib.suppress(FileExistsError):  # a file, perhaps
            path.mkdir(0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise SupervisionError(
            f"cannot use {path} for temporary files: {error.strerror}",
            code="SEB-4008",
            hint="Set workspace.dir (or SAFE_EXT_BUILD_WORKSPACE_DIR) to a directory that you can write.",
        ) from error
    if not stat.S_ISDIR(found.st_mode):  # in a directory that everybody may write to, a link leads anywhere
        raise SupervisionError(
            f"{path}, where temporary files are to go, is no directory",
            code="SEB-4009",
            hint="Remove it, or set workspace.dir (or SAFE_EXT_BUILD_WORKSPACE_DIR) to a directory of your own.",
        )
    if found.st_uid != os.getuid():
        raise SupervisionError(
            f"{path}, where temporary files are to go, belongs to user {found.st_uid}, "
            f"not to you (user {os.getuid()})",
            code="SEB-4010",
            hint="Set workspace.dir (or SAFE_EXT_BUILD_WORKSPACE_DIR) to a directory of your own.",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)


def root_in(directory: Path) -> Path:
    """Where workspaces go when the user names a directory: there, if it is for him alone or does not exist yet;
    else in one of our own below it, since others use it too."""
    try:
        found = directory.stat()
    except OSError:
        return directory
    alone = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return directory.resolve() if alone else directory.resolve() / f"safe-ext-build-{os.getuid()}"


def root(named: Path | None, environ: dict[str, str], make: bool = True) -> Path:
    """Where workspaces go; `named` is what the user says. `make`: as for `cache_root`."""
    return root_in(named) if named else default_root(environ, make)


def default_root(environ: dict[str, str], make: bool = True) -> Path:
    """Where workspaces go: /var/tmp, which is a disk (a tmpfs is RAM), else the user's cache; where neither
    has room, the one that has more. `make`: as for `cache_root`."""
    var_tmp = Path("/var/tmp")
    first, second = var_tmp / f"safe-ext-build-{os.getuid()}", cache_root(environ, make) / "workspaces"
    if not os.access(var_tmp, os.W_OK | os.X_OK) or _is_tmpfs(var_tmp) or _is_anothers(first):
        return second
    if _has_room(var_tmp) or not _is_ours_to_make(second.parent):
        return first
    return max(first, second, key=lambda path: shutil.disk_usage(_existing(path)).free)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a workspace is filled (a full disk, most often) into an error that says so."""
    try:
        yield
    except OSError as error:
        raise SupervisionError(
            f"cannot write temporary files to {path}: {error.strerror}",
            code="SEB-4011",
            hint=HINT,
        ) from error


def cache_root(environ: dict[str, str], make: bool = True) -> Path:
    """The user's cache directory for safe-ext-build (XDG base directory specification); made, unless `make` is
    false: then it is only named.

    Where it cannot be made (a read-only home, no home at all), a directory of the user's own on disk.
    """
    base = environ.get("XDG_CACHE_HOME") or ""
    home = environ.get("HOME") or os.path.expanduser("~")
    usual = Path(base) if os.path.isabs(base) else Path(home) / ".cache"
    for path in (usual / "safe-ext-build", Path(f"/var/tmp/safe-ext-build-{os.getuid()}.cache")):
        if not path.is_absolute():
            continue  # no HOME, and no entry among the users that would name one
        if path.is_relative_to(home) and (_is_sudo_in(home) or not Path(home).is_dir()):
            continue
        try:
            if make:
                _private_directory(path)
        except SupervisionError:
            continue
        if _is_ours_to_make(path):
            return path
    return path


def _is_ours_to_make(path: Path) -> bool:
    """Whether a directory is ours and can be written, or can be made."""
    there = _existing(path)
    if not there.is_dir() or (there == path and path.stat().st_uid != os.getuid()):
        return False
    return os.access(there, os.W_OK | os.X_OK)


def _existing(path: Path) -> Path:
    """The path, or what of it is there."""
    return next((place for place in (path, *path.parents) if os.path.lexists(place)), Path("/"))


def _is_sudo_in(home: str) -> bool:
    """Whether we are root in a user's home, who could not use there what we leave (sudo may keep HOME)."""
    return os.getuid() == 0 and _is_anothers(Path(home))


def _is_anothers(path: Path) -> bool:
    """In a directory that everybody may write to, somebody may have made what is to be ours."""
    try:
        return path.lstat().st_uid != os.getuid()
    except OSError:
        return False


def _has_room(path: Path) -> bool:
    return shutil.disk_usage(path).free >= MIN_FREE


def _is_tmpfs(path: Path) -> bool:
    best, kind = "", ""
    try:
        mounts = Path("/proc/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in mounts:
        _, point, system, *_ = line.split()
        inside = point == "/" or str(path) == point or str(path).startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, system
    return kind in ("tmpfs", "ramfs")


def _place_shims(workspace: Workspace, others: list[Path]) -> None:
    """Find a directory that can stand on PATH, holds a socket and executes; the workspace itself if it does."""
    if _executes(workspace.path / "bin"):
        return
    link = workspace.path / "shims"
    for root in others:
        place = root / workspace.id
        try:
            _private_directory(root)
            link.symlink_to(place)  # first: who removes the workspace has to know of it
            place.mkdir(0o700)
            if _executes(place):
                return
        except (OSError, SupervisionError):
            pass
        shutil.rmtree(place, ignore_errors=True)
        link.unlink(missing_ok=True)
    tried = ", ".join(str(path) for path in [workspace.path, *others])
    raise SupervisionError(
        f"no directory was found from which small programs can be started (tried {tried})",
        code="SEB-4012",
        hint="It must allow execution, and its path must be short (90 bytes) and without signs like : $ # and "
        "quotes: set workspace.dir.",
    )


def _executes(directory: Path) -> bool:
    text = os.fspath(directory)
    # A ':' would end it on PATH, and build.ninja names the compilers in it.
    if not can_name(text) or len(os.fsencode(directory / SOCKET_NAME)) > MAX_SOCKET_PATH:
        return False
    trial = directory / "trial"
    try:
        trial.write_text("#!/bin/sh\nexit 0\n")
        trial.chmod(0o700)
        return subprocess.run([trial], stdin=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False
    finally:
        trial.unlink(missing_ok=True)
