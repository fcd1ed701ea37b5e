"""Names for directories that lie elsewhere in each build: what a cache is to take for the same must be called the
same. Pure but for `Places`; standard library only (the supervisor and the sccache front of nvcc import this).

A name is a symbolic link `.seb/NAME` in the directory that a compile runs in, so it is the same relative path in
every build, on every machine, for every tool: for what is hashed, for what is looked up, and in what is stored.
J puts the real paths back into the dependency file and into what the compiler says.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence

FOLDER = ".seb"
HERE = "here"
# In the workspace: a symbolic link to each directory of names that this build has made.
KEPT = "names"

_TAKES_PATH = {"-I", "-isystem", "-iquote", "-idirafter", "-include", "-imacros", "-o", "-MF", "-MT", "-MQ"}
_TAKES_PATH |= {"--include-path", "--system-include", "--pre-include", "--output-file", "--dependency-output"}
_TAKES_PATH |= {"--dependency-target-name"}
_JOINED = re.compile(
    r"(-I|-isystem=?|-iquote|--(?:include-path|system-include|output-file|dependency-output)=)(?=/)(.+)", re.DOTALL
)


def link(name: str) -> str:
    """The path that stands for a directory: `.seb/NAME`."""
    return f"{FOLDER}/{name}"


def mapped(words: Sequence[str], source: str, places: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """A compiler's arguments with names in place of directories, and what the names used stand for.

    `places` is directory -> name. Only what is a path for certain is changed: to change a macro would change what
    is compiled. Two directories may have one name; the second that occurs then keeps its own.
    """
    used: dict[str, str] = {}
    result = []
    for before, word in zip(["", *words], words, strict=False):
        joined = _JOINED.fullmatch(word) if before not in _TAKES_PATH else None
        if before in _TAKES_PATH or word == source:
            result.append(_named(word, places, used))
        elif joined:
            result.append(joined[1] + _named(joined[2], places, used))
        else:
            result.append(word)
    return result, used


def _named(path: str, places: Mapping[str, str], used: dict[str, str]) -> str:
    for place in sorted(places, key=len, reverse=True):
        if path == place or path.startswith(place + "/"):
            name = places[place]
            if used.setdefault(name, place) != place:
                return path
            return link(name) + path[len(place) :]
    return path


def lines(used: Mapping[str, str]) -> str:
    """The names as J takes them."""
    return "\n".join(f"{link(name)}={place}" for name, place in used.items())


class Places:
    """The directories of names that a build has made: each is held by a lock for as long as the build lives."""

    def __init__(self, workspace: str) -> None:
        self.workspace = workspace
        self._held: dict[str, dict[str, str]] = {}
        self._locks: list[int] = []
        self._refused: set[str] = set()

    def establish(self, directory: str, used: Mapping[str, str]) -> bool:
        """Make the names that a compile in `directory` needs; False where another build has them, or they cannot
        be made."""
        if directory in self._refused or any("\n" in place for place in used.values()):
            return False
        try:
            held = self._held.get(directory)
            if held is None:
                held = self._held[directory] = self._claim(directory)
            for name, place in used.items():
                if held.setdefault(name, place) != place:
                    return False
                _point(os.path.join(directory, FOLDER, name), ".." if name == HERE else place)
        except OSError:
            self._refused.add(directory)
            return False
        return True

    def _claim(self, directory: str) -> dict[str, str]:
        folder = os.path.join(directory, FOLDER)
        os.makedirs(folder, exist_ok=True)
        # Open until we end, however that is: a lock tells another build that somebody uses this.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = os.path.join(self.workspace, KEPT)
            os.makedirs(kept, exist_ok=True)
            os.symlink(folder, os.path.join(kept, str(len(os.listdir(kept)))))
        except OSError:
            os.close(descriptor)
            raise
        self._locks.append(descriptor)
        return {}

    def close(self) -> None:
        """Let go of them: nobody compiles any more."""
        while self._locks:
            os.close(self._locks.pop())


def _point(path: str, target: str) -> None:
    with contextlib.suppress(OSError):
        if os.readlink(path) == target:
            return
        os.unlink(path)
    os.symlink(target, path)


def kept(workspace: str) -> Iterator[str]:
    """The directories of names that a build has made."""
    place = os.path.join(workspace, KEPT)
    try:
        entries = os.listdir(place)
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            yield os.readlink(os.path.join(place, entry))


def remove(folder: str) -> None:
    """Remove a directory of names that nobody uses (any more)."""
    if os.path.basename(folder) != FOLDER:
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # another build's by now
    finally:
        os.close(descriptor)
