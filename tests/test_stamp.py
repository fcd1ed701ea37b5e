"""A wheel that says which torch it was built against. Cases 52 and 54."""

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
    stamp.install(stamp.Stamp(requirement="torch==2.14.*"))
    distribution: Any = Distribution({"name": "sample", "install_requires": declared})
    distribution.parse_config_files([])
    assert distribution.install_requires == [*declared, "torch==2.14.*"]


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        (("2.14.1+cu130", "13.0", None), "cu130torch2.14"),
        (("2.9.0", None, None), "cputorch2.9"),
        (("2.9.0+rocm6.4", None, "6.4.43482-0f2d60242"), "rocm6.4torch2.9"),
    ],
)
def test_label(torch: tuple[str, str | None, str | None], expected: str) -> None:
    assert stamp.label(*torch) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.2", "1.2+cu130"), ("1.2+git1", "1.2+git1.cu130"), ("1.2+git1.cu130", "1.2+git1.cu130")],
)
def test_a_label_joins_what_is_there_and_is_added_once(version: str, expected: str) -> None:
    assert stamp.labelled(version, "cu130") == expected
