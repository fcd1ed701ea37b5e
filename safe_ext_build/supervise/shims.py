"""Our programs that a build meets on its PATH: `ninja`, `seb-job`, and the nvcc of the CUDA_HOME we export."""

from __future__ import annotations

import errno
import json
import os
import py_compile
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from .. import probe
from ..errors import SupervisionError
from ..schedule import job
from ..schedule.ninjafile import JOB
from ..schedule.shim import Config
from .hook import python_command
from .workspace import Workspace

NINJA_HINT = (
    "Install it anew (python -m pip install --force-reinstall 'ninja>=1.13.2'), "
    "in an environment whose file system lets programs run."
)


def write_job(workspace: Workspace) -> None:
    """`seb-job COMMAND...`: run a compiler as a job of this build."""
    _script(workspace.shims / JOB, _job_command(workspace, ""))


def write_ninja(workspace: Workspace, config: Config) -> None:
    """`ninja`: the real one, on a rewritten build.ninja."""
    file = workspace.path / "ninja.json"
    file.write_text(json.dumps(asdict(config)))
    _script(workspace.shims / "ninja", python_command("safe_ext_build.schedule.shim", str(file), isolated=True))


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


def write_front(workspace: Workspace, short: str, real: str, pairs: list[str]) -> Path:
    """What sccache is to take for nvcc: see launcher.dryrun, whose arguments these are."""
    path = workspace.shims / "front" / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    command = python_command(
        "safe_ext_build.launcher.dryrun", short, real, str(len(pairs) // 2), *pairs, isolated=True
    )
    _script(path, command)
    return path


def real_ninja() -> Path:
    """The ninja of our own dependency, whatever PATH holds. Raises SupervisionError when it does not run."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        package = distribution("ninja")
        found = [package.locate_file(file) for file in package.files or () if file.parts[-2:] == ("bin", "ninja")]
    except PackageNotFoundError:
        found = []
    why = f"the ninja package of {sys.executable} is missing, or holds no program"
    for path in (Path(str(place)).resolve() for place in found):
        if path.is_file() and not (why := why_it_does_not_run(path)):
            return path
    raise SupervisionError(why, code="SEB-5010", hint=NINJA_HINT)


def why_it_does_not_run(ninja: Path) -> str:
    """A ninja may be there and not run (a `noexec` mount, another machine's): '' when it does."""
    try:
        status, said = probe.run([str(ninja), "--version"], os.environ)
    except subprocess.TimeoutExpired as error:
        return f"{ninja} does not answer within {error.timeout:.0f} s"
    except OSError as error:
        mounted = " (is its file system mounted `noexec`?)" if error.errno == errno.EACCES else ""
        return f"{ninja} does not run: {error.strerror}{mounted}"
    if status or not said.strip():
        return f"{ninja} does not run: `ninja --version` ends with exit status {status}"
    return ""


def _job_command(workspace: Workspace, real: str) -> list[str]:
    """J runs compiled code: Python compiles a script anew at each start, which is a sixth of J's cost."""
    code = workspace.shims / "job.pyc"
    if not code.exists():
        py_compile.compile(job.__file__, cfile=str(code), doraise=True)
    return [sys.executable, "-I", "-S", "-E", str(code), str(workspace.socket), real]


def _script(path: Path, command: list[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
