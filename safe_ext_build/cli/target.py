"""The environment that will import the wheel."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..errors import SafeExtBuildError
from ..settings import written_variable
from ..toolchain.target import Environment, ask

TORCH_RUNTIME = "SAFE_EXT_BUILD_TORCH_RUNTIME"
"""The variable of the setting `torch.runtime`."""


@dataclass(frozen=True)
class Target:
    """A Python, and what it says about itself. `named`: by the user, and not merely the one that runs us."""

    python: Path
    environment: Environment
    named: bool

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a build gets to know what the user has named, and how."""
        if not self.named:
            return {}
        return {TORCH_RUNTIME: str(self.python), written_variable(TORCH_RUNTIME): "--python"}


def find_target(named: str | None) -> Target:
    """The environment of `--python` (a path, a command, or an environment's directory), else the one that runs
    us. Raises SafeExtBuildError when that Python does not run."""
    python = _python(named) if named else Path(sys.executable)
    environment = ask(python, os.environ)
    if environment is None:
        what = f"--python is {named}, which does not run as a Python"
        hint = "Name a python program (/path/to/env/bin/python), or the directory of a virtual environment."
        raise SafeExtBuildError(what, code="SEB-3004", hint=hint)
    return Target(python, environment, bool(named))


def _python(named: str) -> Path:
    path = Path(named).expanduser()
    if path.is_dir():
        return (path / "bin" / "python").absolute()
    return Path(shutil.which(named) or path).absolute()  # not resolved: the link tells the environment
