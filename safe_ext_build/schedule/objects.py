"""Where compiled objects are kept, and whether they may still be trusted.

ninja compares time stamps only. Beside the objects lies a manifest of what the project's files held when
ninja was last run, and a fingerprint of everything that no depfile names (torch, toolkit, compiler). What
disagrees with it is removed before ninja runs, so that ninja makes it again. The manifest is written before
anything is compiled: a build that is killed leaves nothing that a later one would wrongly trust.
Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from .ninjafile import Edge

MANIFEST = ".safe-ext-build.json"
# What compilers read. Anything else that a depfile names is looked at as well.
_SUFFIXES = (
    *(".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inl", ".ipp", ".tpp", ".inc", ".def", ".ptx"),
    *(".cu", ".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".s", ".S"),
)
_SKIPPED = {"build", "dist", "node_modules", "__pycache__"}
_MOST_FILES = 50_000
_DEPS_HEAD = re.compile(r"(?P<output>\S.*): #deps \d+, deps mtime \d+ \((?:VALID|STALE)\)")


@dataclass(frozen=True)
class File:
    """A file's SHA-256, its time stamp (ns), and the identity by which it is known to be unread since."""

    content: str
    time: int
    identity: tuple[int, int, int]


@dataclass(frozen=True)
class Manifest:
    """What the objects in a directory were made from."""

    fingerprint: str = ""
    files: Mapping[str, File] = field(default_factory=dict)
    settled: bool = False
    """The build has ended, and none of the files has changed meanwhile."""

    @classmethod
    def load(cls, directory: str) -> Manifest:
        """The manifest in a directory of objects; an empty one when there is none that can be read."""
        try:
            with open(os.path.join(directory, MANIFEST)) as file:
                data = json.load(file)
            files = {
                path: File(was["content"], was["time"], tuple(was["identity"]))
                for path, was in data["files"].items()
            }
            return cls(data["fingerprint"], files, data.get("settled") is True)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls()

    @property
    def contents(self) -> dict[str, str]:
        return {path: file.content for path, file in self.files.items()}

    def save(self, directory: str) -> None:
        path = os.path.join(directory, MANIFEST)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w") as file:
            json.dump(asdict(self), file)
        os.replace(temporary, path)


def distrusted(
    before: Manifest, now: Manifest, edges: Sequence[Edge], deps: Mapping[str, Iterable[str]]
) -> set[str]:
    """The outputs that were made from something else than what is there now. Pure.

    A file that the manifest does not know was not there, or was not looked at: what depends on it is not
    trusted either, if it is one of the project's (one that `now` knows).
    """
    outputs = {path: {*edge.inputs, *deps.get(path, ())} for edge in edges for path in edge.makes}
    if before.fingerprint != now.fingerprint:
        return set(outputs)
    changed = {
        path for path in before.files.keys() | now.files.keys() if _content(before, path) != _content(now, path)
    }
    return {output for output, inputs in outputs.items() if not changed.isdisjoint(inputs)}


def _content(manifest: Manifest, path: str) -> str:
    known = manifest.files.get(path)
    return known.content if known else ""


def parse_deps(text: str) -> dict[str, list[str]]:
    """What `ninja -t deps` prints: output -> the files that it was made from."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if head := _DEPS_HEAD.fullmatch(line):
            current = found[head["output"]] = []
        elif line.startswith("    ") and current is not None:
            current.append(line.strip())
    return found


def look(source: str, also: Iterable[str], before: Mapping[str, File]) -> dict[str, File]:
    """The files below `source` that a compiler may read, and those of `also` that lie there."""
    paths = {*_tree(source), *(path for path in also if path.startswith(source + os.sep))}
    found = {path: _read(path, before.get(path)) for path in paths}
    return {path: file for path, file in found.items() if file}


def _tree(source: str) -> Iterator[str]:
    count = 0
    for folder, folders, names in os.walk(source):
        folders[:] = [name for name in folders if not _is_skipped(folder, name)]
        for name in names:
            if name.endswith(_SUFFIXES):
                count += 1
                yield os.path.join(folder, name)
        if count > _MOST_FILES:
            return


def _is_skipped(folder: str, name: str) -> bool:
    is_venv = os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
    return name in _SKIPPED or name.startswith(".") or name.endswith(".egg-info") or is_venv


def _read(path: str, before: File | None) -> File | None:
    try:
        status = os.stat(path)
        identity = (status.st_ino, status.st_size, status.st_ctime_ns)
        if before and before.identity == identity:
            return before
        with open(path, "rb") as file:
            return File(hashlib.sha256(file.read()).hexdigest(), status.st_mtime_ns, identity)
    except OSError:
        return None


@dataclass(frozen=True)
class Trust:
    """What decides about the objects in `directory`: the project's files are those below `source`.

    `may_touch`: the source directory is a copy made for this build, which nobody edits.
    """

    directory: str
    source: str
    fingerprint: str
    may_touch: bool

    def establish(self, edges: Sequence[Edge], deps: Mapping[str, Iterable[str]]) -> Ages:
        """Before ninja runs: remove what may not be used again, note what there is, and lend old time stamps."""
        before = Manifest.load(self.directory)
        also = {path for edge in edges for path in edge.inputs}.union(*deps.values())
        now = Manifest(self.fingerprint, look(self.source, also, before.files))
        for output in filter(self._is_ours, distrusted(before, now, edges, deps)):
            with contextlib.suppress(OSError):
                os.unlink(output)
        ages = Ages.lend(self.directory, now, before, before.settled or self.may_touch)
        ages.manifest.save(self.directory)
        return ages

    def _is_ours(self, output: str) -> bool:
        """Whether this build may remove a file: never outside of the project and of where its objects are."""
        path = os.path.abspath(os.path.join(self.directory, output))
        return any(path.startswith(place + os.sep) for place in (self.directory, self.source))


@dataclass(frozen=True)
class Ages:
    """Time stamps that are lent for as long as a build runs, since ninja and setuptools look at nothing else.

    A file that has not changed has the time that it had when its objects were made, and none has one that is yet
    to come. `own`: the times that files really have, in ns.
    """

    directory: str
    manifest: Manifest
    own: Mapping[str, int]

    @classmethod
    def lend(cls, directory: str, now: Manifest, before: Manifest, trusted: bool) -> Ages:
        """`trusted`: no file can have been changed, and changed back, while its objects were made."""
        files, own = dict(now.files), {}
        latest = time.time_ns()
        for path, file in now.files.items():
            was = before.files.get(path)
            same = trusted and was is not None and was.content == file.content
            age = min(was.time if was and same else file.time, latest)
            if age != file.time and _set_time(path, age):
                own[path] = file.time
                files[path] = _read(path, None) or file
        return cls(directory, replace(now, files=files), own)

    def give_back(self) -> None:
        """After the build: every file has its own time again. What was edited meanwhile is not known any more."""
        files = {path: file for path, file in self.manifest.files.items() if _is_still(path, file)}
        for path in self.own.keys() & files.keys():
            _set_time(path, self.own[path])
        with contextlib.suppress(OSError):
            Manifest(self.manifest.fingerprint, files, settled=True).save(self.directory)


def _set_time(path: str, age: int) -> bool:
    """Whether the file has this time of modification now, in ns: it may be another's, or not be writable."""
    try:
        os.utime(path, ns=(os.stat(path).st_atime_ns, age))
    except OSError:
        return False
    return True


def _is_still(path: str, file: File) -> bool:
    """Whether nobody has written to a file since it was read. (Who lends its time changes no more than ctime.)"""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_ino, status.st_size, status.st_mtime_ns) == (*file.identity[:2], file.time)


def distrust_modules(source: str, fingerprint: str, build: str = "") -> tuple[list[str], Ages]:
    """Remove from setuptools' build/ the modules that were made from something else than what is there now.

    `build`: the directory that stands for build/, where that is another one.
    Where torch's helper does not use ninja, and without torch, setuptools builds a module again only when one
    of its sources is younger: another torch, an edited header, or an older file in a source's place are not
    seen. Where a module is missing, all of it is compiled. Returns what was removed, and the times that are lent.
    """
    build = build or os.path.join(source, "build")
    os.makedirs(build, exist_ok=True)
    before = Manifest.load(build)
    now = Manifest(fingerprint, look(source, (), before.files))
    same = before.fingerprint == now.fingerprint and before.contents == now.contents
    stale = [] if same else glob.glob(os.path.join(glob.escape(build), "lib*", "**", "*.so"), recursive=True)
    for path in stale:
        os.unlink(path)
    ages = Ages.lend(build, now, before, before.settled)
    ages.manifest.save(build)
    return stale, ages


def read_deps(ninja: str, file: str, directory: str) -> dict[str, list[str]]:
    result = subprocess.run(
        [ninja, "-f", file, "-t", "deps"],
        cwd=directory,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return parse_deps(result.stdout)


@contextlib.contextmanager
def locked(directory: str) -> Iterator[bool]:
    """Hold a directory of objects for ourselves; False when another build is using it."""
    os.makedirs(directory, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def point(link: str, target: str) -> None:
    """Make `link` a symbolic link to `target`, in one step."""
    temporary = f"{link}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(target, temporary)
    os.replace(temporary, link)


def deliver(source: str, target: str) -> None:
    """Put a kept object where the project expects it; the time stamp stays."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
