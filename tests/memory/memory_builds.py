"""Builds inside a memory cgroup of our own: what they are given, how they end, and whom the kernel killed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from safe_ext_build.machine import ancestors

MIB = 1 << 20
STANDIN = Path(__file__).parents[1] / "projects" / "standin"


@dataclass(frozen=True)
class Limited:
    """A memory cgroup (v1 or v2) with a limit."""

    directory: Path

    @property
    def oom_kills(self) -> int:
        """How many processes of it the kernel has killed for memory."""
        for name in ("memory.oom_control", "memory.events"):
            with suppress(OSError):
                found = re.search(r"^oom_kill (\d+)$", (self.directory / name).read_text(), re.MULTILINE)
                return int(found[1]) if found else 0
        raise AssertionError(f"{self.directory} counts no OOM kills")

    def inside(self, command: Sequence[str]) -> list[str]:
        return ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(self.directory), *command]

    def child(self, name: str) -> Limited:
        (self.directory / name).mkdir()
        return Limited(self.directory / name)

    def remove(self) -> None:
        """A cgroup stays busy for some moments after the last process in it has ended."""
        for child in self.directory.iterdir():
            if child.is_dir():
                Limited(child).remove()
        for _ in range(250):
            with suppress(OSError):
                self.directory.rmdir()
                return
            time.sleep(0.02)
        self.directory.rmdir()


def make_limited(mib: int) -> Limited:
    """A cgroup below ours with a limit; skips where the kernel does not let us make one."""
    parent = next(
        (
            group
            for group in ancestors("memory")
            if group.version == 1 or "memory" in (group.directory / "cgroup.subtree_control").read_text().split()
        ),
        None,
    )
    if parent is None:
        pytest.skip("no memory controller is to be seen from here")
    directory = parent.directory / f"seb-memory-{os.getpid()}-{time.monotonic_ns()}"
    name = "memory.limit_in_bytes" if parent.version == 1 else "memory.max"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"the memory controller is not writable here: {error}")
    (directory / name).write_text(str(mib * MIB))
    return Limited(directory)


@dataclass
class StandinBuild:
    """A copy of the stand-in project, with a home, a cache and a workspace of its own."""

    root: Path
    compiler: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shutil.copytree(STANDIN, self.root)

    @property
    def scratch(self) -> Path:
        return self.root.with_name(f"{self.root.name}-scratch")

    def write_sources(self, sources: Mapping[str, str]) -> None:
        shutil.rmtree(self.root / "csrc")
        (self.root / "csrc").mkdir()
        for name, plan in sources.items():
            (self.root / "csrc" / f"{name}.cu").write_text(f"//! {plan}\n")

    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        return {
            **kept,
            "STANDIN_COMPILER": str(self.compiler),
            "XDG_CACHE_HOME": str(self.scratch.parent / "cache"),
            "XDG_RUNTIME_DIR": str(self.scratch.parent / "runtime"),
            "SAFE_EXT_BUILD_WORKSPACE_DIR": str(self.scratch / "workspaces"),
            **self.variables,
        }

    def start(
        self, limited: Limited | None = None, backend: str = "safe_ext_build.build_meta"
    ) -> subprocess.Popen[str]:
        """Run the hook as a frontend does, in a process of its own."""
        self.scratch.mkdir(exist_ok=True)
        (self.scratch.parent / "runtime").mkdir(mode=0o700, exist_ok=True)
        code = "import sys, importlib; importlib.import_module(sys.argv[1]).build_wheel(sys.argv[2])"
        command = [sys.executable, "-c", code, backend, str(self.scratch)]
        return subprocess.Popen(
            limited.inside(command) if limited else command,
            cwd=self.root,
            env=self.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def finish(self, process: subprocess.Popen[str]) -> str:
        """Wait for the end; what it said. The build must have succeeded."""
        text, _ = process.communicate(timeout=600)
        assert process.returncode == 0, text
        return text

    def objects(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in (self.root / "build" / "objects").glob("*.o")}

    def assert_nothing_left(self) -> None:
        workspaces = self.scratch / "workspaces"
        assert [path.name for path in workspaces.iterdir() if path.name != ".lock"] == []
        records = (self.scratch.parent / "runtime").rglob("*.build")
        assert list(records) == []
