"""The ground on which the real frontends build: our wheel, an environment, and a target with torch in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from frontend_runs import REPOSITORY, Ground, foreign_variables, only_wheel, why_no_cuda, why_no_torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("cuda"):
            _skip_where(item, why_no_cuda())
        elif item.get_closest_marker("torch"):
            _skip_where(item, why_no_torch())


def _skip_where(item: pytest.Item, reason: str) -> None:
    if reason:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with our own wheel, made from a copy that holds nothing of earlier builds."""
    place = tmp_path_factory.mktemp("house")
    source = place / "source"
    shutil.copytree(REPOSITORY / "safe_ext_build", source / "safe_ext_build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(place), str(source)], check=True)
    return place


@pytest.fixture(scope="session")
def ground(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The environment for isolated builds, started from the environment that runs the tests.

    At the end nothing of ours may be left: each build removes its own workspace.
    """
    workspaces, cache = tmp_path_factory.mktemp("workspaces"), tmp_path_factory.mktemp("cache")
    environ = {name: value for name, value in os.environ.items() if name not in foreign_variables()}
    environ |= {
        "PIP_FIND_LINKS": " ".join([str(wheelhouse), *os.environ.get("PIP_FIND_LINKS", "").split()]),
        "UV_FIND_LINKS": ",".join(filter(None, [str(wheelhouse), os.environ.get("UV_FIND_LINKS", "")])),
        "XDG_CACHE_HOME": str(cache),
        "SAFE_EXT_BUILD_WORKSPACE_DIR": str(workspaces),
    }
    environ.pop("XDG_RUNTIME_DIR", None)
    yield Ground(environ)
    left = [path for path in workspaces.iterdir() if path.is_dir()]
    assert left == []


@pytest.fixture
def target(ground: Ground, wheelhouse: Path, tmp_path: Path) -> Ground:
    """A new virtual environment: it has our wheel, and all that the environment of the tests has, torch included."""
    place = tmp_path / "target"
    venv.create(place, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    with zipfile.ZipFile(only_wheel(wheelhouse)) as archive:
        archive.extractall(site)
    # As a line of code: a plain path would leave out the .pth files of that directory.
    beside = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [f"import site; site.addsitedir({path!r})" for path in sorted(beside)]
    (site / "beside.pth").write_text("\n".join(lines) + "\n")
    return replace(ground, python=place / "bin" / "python")
