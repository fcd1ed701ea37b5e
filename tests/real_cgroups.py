"""Cgroups of our own, v1 or v2, with limits that the kernel enforces. Skips where it does not let us make one."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from safe_ext_build.machine import Cgroup, ancestors
from safe_ext_build.machine.files import read

MIB = 1 << 20
FILES = {
    ("memory", 1): "memory.limit_in_bytes",
    ("memory", 2): "memory.max",
    ("pids", 1): "pids.max",
    ("pids", 2): "pids.max",
    ("cpu", 1): "cpu.cfs_quota_us",
    ("cpu", 2): "cpu.max",
}
_numbers = itertools.count()


@dataclass(frozen=True)
class Group(Cgroup):
    """A cgroup that a test has made. On v1 it belongs to one controller."""

    controller: str = "memory"

    def set_limit(self, value: object) -> None:
        """`value` as the kernel wants it: bytes, tasks, or a CPU quota."""
        (self.directory / FILES[self.controller, self.version]).write_text(str(value))

    def forbid_swap(self, limit: int) -> None:
        """What exceeds `limit` (bytes) is killed, and not swapped out."""
        name, value = ("memory.memsw.limit_in_bytes", limit) if self.version == 1 else ("memory.swap.max", 0)
        with suppress(OSError):  # the kernel may be built without
            (self.directory / name).write_text(str(value))

    @property
    def oom_kills(self) -> int:
        """How many processes of it the kernel has killed for memory."""
        for name in ("memory.oom_control", "memory.events"):
            if found := re.search(r"^oom_kill (\d+)$", read(self.directory / name), re.MULTILINE):
                return int(found[1])
        return 0

    @property
    def used(self) -> int:
        """Bytes, cached files included."""
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        return int((self.directory / name).read_text())

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` in this cgroup."""
        return ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(self.directory), *command]

    def child(self, name: str = "inner") -> Group:
        """A cgroup below this one, which removes it along with itself."""
        if self.version == 2:
            (self.directory / "cgroup.subtree_control").write_text(f"+{self.controller}")
        (self.directory / name).mkdir()
        return Group(f"{self.name}/{name}", self.directory / name, self.version, self.controller)

    def remove(self) -> None:
        _remove(self.directory)


def make(controller: str) -> Group:
    """A new cgroup below this process's own. The caller removes it."""
    above = parent(controller)
    name = f"seb-test-{os.getpid()}-{next(_numbers)}"
    directory = above.directory / name
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"the real {controller} controller is not writable here: {error}")
    return Group(f"{above.name.rstrip('/')}/{name}", directory, above.version, controller)


@contextmanager
def made(controller: str, limit: object = None) -> Iterator[Group]:
    """A new cgroup, gone afterwards."""
    group = make(controller)
    try:
        if limit is not None:
            group.set_limit(limit)
        yield group
    finally:
        group.remove()


def parent(controller: str) -> Cgroup:
    """The nearest cgroup that can have children with this controller (v2: where it is handed down)."""
    groups = ancestors(controller)
    for group in groups:
        if group.version == 1 or controller in read(group.directory / "cgroup.subtree_control").split():
            return group
    pytest.skip(f"the real {controller} controller is not to be seen from here: {groups}")


def _remove(directory: Path) -> None:
    """Children first. A cgroup stays busy for some moments after the last process in it has ended."""
    for child in [path for path in directory.iterdir() if path.is_dir()]:
        _remove(child)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with suppress(OSError):
            directory.rmdir()
            return
        time.sleep(0.02)
    directory.rmdir()
