"""The programs of ours that a build meets on its PATH: `ninja`, `seb-job`, and the nvcc of the CUDA_HOME we export."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from ..errors import SupervisionError
from ..schedule import job
from ..schedule.ninjafile import JOB
from ..schedule.shim import Config
from .hook import python_command
from .workspace import Workspace


def write_job(workspace: Workspace) -> None:
    """`seb-job COMMAND...`: run a compiler as a job of this build."""
    _script(workspace.shims / JOB, _job_command(workspace, ""))


def write_ninja(workspace: Workspace, config: Config) -> None:
    """`ninja`: the real one, on a rewritten build.ninja."""
    file = workspace.path / "ninja.json"
    file.write_text(json.dumps(asdict(config)))
    _script(
        workspace.shims / "ninja", python_command("safe_ext_build.schedule.shim", str(file), isolated=True)
    )


def write_cuda_home(workspace: Workspace, toolkit: Path) -> tuple[Path, dict[str, str]]:
    """A CUDA_HOME whose nvcc is a job; everything else in it is the toolkit's own.

    Returns it, and what stands behind each shim. The real nvcc is run by its own path, from which it takes
    its prefix: nothing is ever compiled from this directory's files by accident.
    """
    home = workspace.shims / "cuda"
    (home / "bin").mkdir(parents=True)
    for entry in toolkit.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    for entry in (toolkit / "bin").iterdir():
        if entry.name != "nvcc":
            (home / "bin" / entry.name).symlink_to(entry)
    real = str(toolkit / "bin" / "nvcc")
    _script(home / "bin" / "nvcc", [*_job_command(workspace, real), "nvcc"])
    return home, {str(home / "bin" / "nvcc"): real}


def real_ninja() -> Path:
    """The ninja of our own dependency, whatever PATH holds. Raises SupervisionError when it is not there."""
    import ninja

    found = Path(ninja.BIN_DIR) / "ninja" if ninja.BIN_DIR else None
    found = found if found and found.is_file() else _beside_module(Path(ninja.__file__))
    if found is None:
        raise SupervisionError(
            f"the ninja package of {sys.executable} holds no ninja program",
            hint="Reinstall it: python -m pip install --force-reinstall ninja",
        )
    return found


def _beside_module(module: Path) -> Path | None:
    """In an overlay (pip's build environment) the scripts lie beside the library, not beside the interpreter."""
    for parent in module.parents:
        candidate = parent / "bin" / "ninja"
        if candidate.is_file():
            return candidate
    found = shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent)]))
    return Path(found) if found else None


def _job_command(workspace: Workspace, real: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-E", str(Path(job.__file__)), str(workspace.socket), real]


def _script(path: Path, command: list[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
