"""What the tests of the real frontends share: an environment of their own, projects, runs and their output."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECTS = REPOSITORY / "tests" / "projects"
TIMEOUT = 300.0  # seconds
# One architecture of Ampere: every CUDA that torch has now compiles for it.
ARCHS = "8.0"

# What somebody who runs the tests may have set, and what would decide the tests' builds.
_FOREIGN = (
    *("MAX_JOBS", "NVCC_THREADS", "TORCH_CUDA_ARCH_LIST", "CC", "CXX", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("PYTHONPATH", "UV_PYTHON", "UV_PROJECT_ENVIRONMENT", "FORCE_COLOR", "SETUPTOOLS_ENABLE_FEATURES"),
)

_CALL_HOOK = """
import sys
from safe_ext_build import build_meta
print(getattr(build_meta, sys.argv[1])(*sys.argv[2:]))
"""


@dataclass(frozen=True)
class Run:
    """An ended command: its exit status, and standard output and standard error as they were seen together."""

    status: int
    output: str

    @property
    def said(self) -> list[str]:
        """What we said, without our name; pip indents what a hook prints."""
        lines = [line.strip() for line in self.output.splitlines()]
        return [line.removeprefix("safe-ext-build: ") for line in lines if line.startswith("safe-ext-build: ")]

    def says(self, *words: str) -> bool:
        """Whether one line of ours has all these words."""
        return any(all(word in line for word in words) for line in self.said)

    def check(self) -> Run:
        """The run itself, which has to have succeeded."""
        assert self.status == 0, self.output[-8000:]
        return self


@dataclass(frozen=True)
class Ground:
    """An environment for builds: our wheel is found, and caches and workspaces are the tests' own."""

    environ: Mapping[str, str]
    python: Path

    @property
    def prefix(self) -> Path:
        return self.python.parent.parent

    def having(self, **environ: str) -> Ground:
        """The same with more in its environment."""
        return Ground({**self.environ, **environ}, self.python)

    def run(self, command: Sequence[str | Path], cwd: Path, **environ: str) -> Run:
        """Run a command; `environ` comes on top of the ground's environment."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
            check=False,
        )
        return Run(done.returncode, done.stdout.decode(errors="replace"))

    def pip(self, *arguments: str | Path, cwd: Path, **environ: str) -> Run:
        """pip of this environment, for what is not isolated."""
        return self.run([self.python, "-m", "pip", *arguments], cwd, **environ)

    def isolating_pip(self, *arguments: str | Path, cwd: Path, **environ: str) -> Run:
        """pip of the tests' own environment: what a .pth file adds, as in this one, pip does not isolate from."""
        return self.run([sys.executable, "-m", "pip", *arguments], cwd, **environ)

    def wheel(self, project: Path, *options: str, **environ: str) -> Run:
        """A wheel in `dist/` beside the project, by pip without isolation: the quickest real frontend."""
        command = ("wheel", "-v", "--no-deps", "--no-build-isolation", "-w", project.parent / "dist")
        return self.pip(*command, *options, ".", cwd=project, **environ)

    def uv(self, *arguments: str | Path, cwd: Path, **environ: str) -> Run:
        return self.run([Path(sysconfig.get_path("scripts"), "uv"), *arguments], cwd, **environ)

    def hook(self, project: Path, name: str, *arguments: str, **environ: str) -> Run:
        """Call one hook of ours as a frontend does, in a process of its own; its result is printed."""
        return self.run([self.python, "-c", _CALL_HOOK, name, *arguments], project, **environ)

    def evaluate(self, module: str, expression: str, **environ: str) -> str:
        """What this environment's Python prints of an expression, with a module imported.

        Its last line: torch may have warned before that numpy is missing.
        """
        code = f"import {module}; print({expression})"
        # Not in a directory of the test's: there, a project's directory would pass for its package.
        return (
            self.run([self.python, "-c", code], self.python.parent, **environ)
            .check()
            .output.splitlines()[-1]
            .strip()
        )


def foreign_variables() -> list[str]:
    return [name for name in os.environ if name in _FOREIGN or name.startswith("SAFE_EXT_BUILD_")]


def copy_project(name: str, parent: Path) -> Path:
    """A fresh copy of a fixture project, so that no test sees what another has built."""
    shutil.copytree(PROJECTS / name, parent / name, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    return parent / name


def write_project(parent: Path, setup: str = "", name: str = "sample", extra: str = "") -> Path:
    """A project with a package, our backend, and a setup script where one is given."""
    project = parent / name
    (project / name).mkdir(parents=True)
    (project / name / "__init__.py").write_text("")
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["safe-ext-build"]\nbuild-backend = "safe_ext_build.build_meta"\n\n'
        f'[project]\nname = "{name}"\nversion = "1.0"\n\n{extra}\n'
    )
    if setup:
        (project / "setup.py").write_text(setup)
    return project


def only_wheel(directory: Path) -> Path:
    (wheel,) = directory.glob("*.whl")
    return wheel


def is_pure(wheel: Path) -> bool:
    """What the WHEEL file says."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        return "Root-Is-Purelib: true" in archive.read(name).decode()


def unpacked(wheel: Path) -> Path:
    """A directory to import a wheel's contents from."""
    place = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def why_no_torch() -> str:
    """Why tests that need torch cannot run; empty when they can."""
    return "" if importlib.util.find_spec("torch") else "torch is not installed beside pytest"


def why_no_cuda() -> str:
    """Why tests that need nvcc and a CUDA build of torch cannot run; empty when they can."""
    if reason := why_no_torch():
        return reason
    from safe_ext_build.toolchain.torch import read_torch

    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    facts = read_torch(Path(spec.origin).parent, [Path(entry) for entry in sys.path])
    if facts.cuda is None:
        return "the torch beside pytest is no CUDA build"
    # Looked for without our own search, which is what these tests are about.
    usual = [*Path("/usr/local").glob("cuda*/bin/nvcc"), *Path("/opt").glob("cuda*/bin/nvcc")]
    named = [Path(os.environ[name], "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    if shutil.which("nvcc") or any(path.exists() for path in (*usual, *named)):
        return ""
    return "there is no nvcc on this machine"


needs_torch = [pytest.mark.torch, pytest.mark.skipif(bool(why_no_torch()), reason=why_no_torch())]
needs_cuda = [pytest.mark.torch, pytest.mark.cuda, pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda())]
_Test = TypeVar("_Test", bound=Callable[..., None])


def on_torch(test: _Test) -> _Test:
    return functools.reduce(lambda marked, mark: mark(marked), needs_torch, test)


def on_cuda(test: _Test) -> _Test:
    return functools.reduce(lambda marked, mark: mark(marked), needs_cuda, test)
