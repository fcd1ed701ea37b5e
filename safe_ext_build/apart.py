"""Has setuptools put what it makes elsewhere than into the project's directory, where that is to stay as it is.

In the builder alone: a variable, or a configuration file, would also reach what a setup script builds by itself.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Apart:
    """Where it goes: `build` in place of the project's build/, `metadata` in place of beside its packages."""

    build: str
    metadata: str


def install(apart: Apart, project: Path) -> None:
    """Have setuptools, if it is there, write to these directories from now on, in this process."""
    sys.dont_write_bytecode = True  # of modules that lie beside a setup script
    try:
        from setuptools import Distribution
    except ImportError:
        return
    _seed(Path(apart.metadata), project)
    original = Distribution.parse_config_files

    def parse_config_files(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.get_option_dict("build")["build_base"] = (__name__, apart.build)
        self.get_option_dict("egg_info")["egg_base"] = (__name__, apart.metadata)

    Distribution.parse_config_files = parse_config_files  # type: ignore[method-assign]


def _seed(metadata: Path, project: Path) -> None:
    """What lies in the project already, an unpacked sdist's most often, says which files it consists of."""
    for found in (*project.glob("*.egg-info"), *project.glob("src/*.egg-info")):
        if found.is_dir():
            shutil.copytree(found, metadata / found.name, dirs_exist_ok=True)
