"""A plugin of the tests here, and no conftest.py: mypy takes no two modules of one name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_builds import STANDIN, Maker
from real_cgroups import MIB, Group, make


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, under the name that makes a command line a compile."""
    program = tmp_path_factory.mktemp("compiler") / "nvcc"
    subprocess.run(["gcc", "-O1", str(STANDIN / "standin.c"), "-o", str(program)], check=True)
    return program


@pytest.fixture
def limited() -> Iterator[Maker]:
    """Makes cgroups with a limit in MiB."""
    made: list[Group] = []

    def make_with(mib: int) -> Group:
        made.append(make("memory"))
        made[-1].set_limit(mib * MIB)
        return made[-1]

    yield make_with
    for cgroup in made:
        cgroup.remove()
