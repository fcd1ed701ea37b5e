"""What is to be built, and all that was decided for it."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import store
from .here import here
from .plan import BuildPlan
from .settings import Settings
from .supervise.turn import Turn
from .toolchain.find import Cuda, Torch
from .toolchain.fingerprint import fingerprint

# In a hook's place: a command of the user's own.
COMMAND = "command"
# The argument of the hooks that build a wheel.
WHEELS = "wheel_directory"
_BUILD_FILES = ("setup.py", "pyproject.toml", "CMakeLists.txt", "meson.build", "Makefile", "build.ninja")


@dataclass(frozen=True)
class Scene:
    """A hook of the inner backend, or COMMAND, and all that was decided for it. `label`: what is built, where the
    directory does not say. `turn`: what it takes part in, so that no other build of the project runs beside it."""

    hook: str
    arguments: dict[str, Any]
    settings: Settings
    torch: Torch | None
    cuda: Cuda | None
    plan: BuildPlan
    compiles: bool
    label: str = ""
    turn: Turn | None = None

    @property
    def project(self) -> str:
        return self.label or store.name(here())


def is_project(directory: Path) -> bool:
    """Whether something is built from what lies in a directory itself."""
    return any((directory / name).is_file() for name in _BUILD_FILES)


def naming(torch: Torch | None, cuda: Cuda | None, plan: BuildPlan) -> dict[str, str]:
    """What a build-dir of the project in this directory may be named after, the fingerprint among it."""
    return {
        "project": store.name(here()),
        "python": str(sysconfig.get_config_var("SOABI")),
        "torch": torch.facts.version if torch and torch.facts else "none",
        "cuda": cuda.build.removeprefix("V") if cuda else "none",
        "fingerprint": fingerprint(torch, cuda, {**os.environ, **plan.environment}),
    }
