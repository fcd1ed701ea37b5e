"""Builds inside a memory cgroup of our own: what they are given, how they end, and whom the kernel killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from real_cgroups import Group

Maker = Callable[[int], Group]
STANDIN = Path(__file__).parents[1] / "projects" / "standin"


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
        self, limited: Group | None = None, backend: str = "safe_ext_build.build_meta"
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

    def outputs(self) -> list[str]:
        """Objects and depfiles, under whatever name."""
        return sorted(path.name for path in (self.root / "build" / "objects").glob("*.o*"))

    def assert_nothing_left(self) -> None:
        workspaces = self.scratch / "workspaces"
        assert [path.name for path in workspaces.iterdir() if path.name != ".lock"] == []
        records = (self.scratch.parent / "runtime").rglob("*.build")
        assert list(records) == []
