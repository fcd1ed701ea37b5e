"""A wheel that requires the torch that it was built against. Case 52."""

from __future__ import annotations

from typing import Any

import pytest
from setuptools import Distribution

from safe_ext_build import stamp


@pytest.mark.parametrize(
    ("version", "requirement"),
    [
        ("2.14.1+cu130", "torch==2.14.*"),
        ("2.9.0", "torch==2.9.*"),
        ("2.15.0a0+git123", "torch==2.15.*"),
        ("of unknown version", ""),
    ],
)
def test_requirement(version: str, requirement: str) -> None:
    assert stamp.requirement(version) == requirement


@pytest.mark.parametrize("declared", [[], ["numpy", "torch>=2.4"]])
def test_it_is_added_to_what_the_project_requires(declared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "parse_config_files", Distribution.parse_config_files)  # put it back
    stamp.install("torch==2.14.*")
    distribution: Any = Distribution({"name": "sample", "install_requires": declared})
    distribution.parse_config_files([])
    assert distribution.install_requires == [*declared, "torch==2.14.*"]
