"""The ground on which the real frontends build: our wheel, an environment, and a target with torch in it.

A plugin of the test modules that name it, and no conftest.py: mypy takes no two modules of one name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from frontend_runs import REPOSITORY, Ground, foreign_variables, only_wheel


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with our own wheel."""
    return make_wheel(tmp_path_factory.mktemp("house"))


def make_wheel(place: Path) -> Path:
    """Our own wheel in a directory, made from a copy that holds nothing of earlier builds."""
    source = place / "source"
    shutil.copytree(REPOSITORY / "safe_ext_build", source / "safe_ext_build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(place), str(source)], check=True)
    return place


@pytest.fixture(scope="session")
def ground(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The environment for builds, and a target that stays for the session: nothing is installed into it.

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
    yield Ground(environ, make_target(tmp_path_factory.mktemp("ground") / "target", wheelhouse))
    left = [path for path in workspaces.iterdir() if path.is_dir()]
    assert left == []


@pytest.fixture
def target(ground: Ground, wheelhouse: Path, tmp_path: Path) -> Ground:
    """A target to install into."""
    return Ground(ground.environ, make_target(tmp_path / "target", wheelhouse))


def make_target(place: Path, wheelhouse: Path) -> Path:
    """The Python of a new virtual environment: it has our wheel, and whatever the tests' own environment has.

    Ours come first, so that a build without isolation tests the same code as one with it.
    """
    venv.create(place, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    with zipfile.ZipFile(only_wheel(wheelhouse)) as archive:
        archive.extractall(site)
    # As a line of code: a plain path would leave out the .pth files of that directory.
    beside = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [f"import site; site.addsitedir({path!r})" for path in sorted(beside)]
    (site / "beside.pth").write_text("\n".join(lines) + "\n")
    return place / "bin" / "python"
