"""The torch that a wheel was built against, written into its own requirements, by setuptools itself.

So the metadata that a frontend asks for first, the wheel and its RECORD all say the same.
"""

from __future__ import annotations

import re
from typing import Any

HOOKS = (
    "prepare_metadata_for_build_wheel",
    "build_wheel",
    "prepare_metadata_for_build_editable",
    "build_editable",
)


def requirement(version: str) -> str:
    """What a wheel that was built against torch `version` needs: `torch==2.14.*` of `2.14.1+cu130`."""
    release = re.match(r"\d+\.\d+", version)
    return f"torch=={release[0]}.*" if release else ""


def install(text: str) -> None:
    """Have setuptools add a requirement to whatever it builds from now on, in this process."""
    from setuptools import Distribution

    original = Distribution.parse_config_files

    def parse_config_files(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        # Other requirements of torch stay: both must hold.
        self.install_requires = [*(self.install_requires or ()), text]
        self.metadata.install_requires = self.install_requires

    Distribution.parse_config_files = parse_config_files  # type: ignore[method-assign]
