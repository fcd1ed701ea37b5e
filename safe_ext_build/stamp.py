"""The torch that a wheel was built against, written into its own metadata, by setuptools itself.

So the metadata that a frontend asks for first, the wheel and its RECORD all say the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

HOOKS = (
    "prepare_metadata_for_build_wheel",
    "build_wheel",
    "prepare_metadata_for_build_editable",
    "build_editable",
)


@dataclass(frozen=True)
class Stamp:
    """What is added to the metadata of a project: a requirement, a local version label; nothing where empty."""

    requirement: str = ""
    label: str = ""


def requirement(version: str) -> str:
    """What a wheel that was built against torch `version` needs: `torch==2.14.*` of `2.14.1+cu130`."""
    release = _release(version)
    return f"torch=={release}.*" if release else ""


def label(version: str, cuda: str | None, hip: str | None) -> str:
    """The local version label of a wheel built against a torch: `cu130torch2.14`."""
    rocm = f"rocm{_release(hip)}" if hip else ""
    platform = f"cu{cuda.replace('.', '')}" if cuda else rocm or "cpu"
    return f"{platform}torch{_release(version)}"


def labelled(version: str, label: str) -> str:
    """A version with a label behind the local one that it may have; unchanged where it has that label already."""
    public, _, local = version.partition("+")
    return version if local.endswith(label) else f"{public}+{local + '.' if local else ''}{label}"


def _release(version: str) -> str:
    release = re.match(r"\d+\.\d+", version)
    return release[0] if release else ""


def install(stamp: Stamp) -> None:
    """Have setuptools add the stamp to whatever it builds from now on, in this process."""
    if stamp.requirement:
        _require(stamp.requirement)
    if stamp.label:
        _label(stamp.label)


def _require(text: str) -> None:
    from setuptools import Distribution

    original = Distribution.parse_config_files

    def parse_config_files(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        # Other requirements of torch stay: both must hold.
        self.install_requires = [*(self.install_requires or ()), text]
        self.metadata.install_requires = self.install_requires

    Distribution.parse_config_files = parse_config_files  # type: ignore[method-assign]


def _label(text: str) -> None:
    # The class that setuptools has put in place of distutils' own.
    from distutils.dist import DistributionMetadata

    import setuptools  # noqa: F401

    original = DistributionMetadata.get_version

    def get_version(self: Any) -> str:
        return labelled(original(self), text)

    DistributionMetadata.get_version = get_version  # type: ignore[method-assign]
