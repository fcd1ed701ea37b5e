"""One stand-in compiler and one set of bystanders for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_harness import STANDIN, Bystanders, Project, compile_c, make_project


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, under the name that makes a command line a compile."""
    return compile_c(STANDIN / "standin.c", tmp_path_factory.mktemp("standin") / "nvcc")


@pytest.fixture(scope="session")
def bystanders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bystanders]:
    started = Bystanders(tmp_path_factory.mktemp("bystanders"))
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def project(tmp_path: Path, compiler: Path) -> Project:
    return make_project(tmp_path, compiler)
