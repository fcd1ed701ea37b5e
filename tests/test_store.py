"""Where objects are kept, and what leaves the cache."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from safe_ext_build import store
from safe_ext_build.errors import SettingsError
from safe_ext_build.store import UNCLAIMED, UNUSED

FIELDS = {
    "fingerprint": "0123",
    "project": "sample",
    "python": "cpython-311",
    "torch": "2.14.1+cu130",
    "cuda": "13.0.88",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "sample").mkdir()
    return tmp_path / "sample"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def test_objects_stay_in_the_project(project: Path, cache: Path) -> None:
    assert store.place(project, "build_wheel", None, cache, FIELDS) is None


def test_objects_of_what_does_not_last_go_to_the_cache(project: Path, cache: Path) -> None:
    editable = store.place(project, "build_editable", None, cache, FIELDS)
    copied = store.place(project, "build_wheel", None, cache, FIELDS, lasts=False)
    assert editable is not None
    assert editable == copied
    assert editable.parent.parent == cache / "objects" and editable.name == "0123"
    assert editable.parent.name.startswith("sample-")
    (project / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: the-name\n")
    assert store.place(project, "build_wheel", None, cache, FIELDS) == cache / "objects" / "the-name" / "0123"


@pytest.mark.parametrize("name", ["a$b", "a:b", "a#b", "a'b", "a\nb", "a|b"])
def test_so_do_those_of_a_project_that_ninja_cannot_name(tmp_path: Path, cache: Path, name: str) -> None:
    found = store.place(tmp_path / name, "build_wheel", None, cache, FIELDS)
    assert found is not None and found.parent.parent == cache / "objects"


def test_a_build_dir_is_filled_in(project: Path, tmp_path: Path, cache: Path) -> None:
    template = tmp_path / "o" / "{project}" / "{python}-{torch}-{cuda}" / "{fingerprint}"
    found = store.place(project, "build_wheel", template, cache, FIELDS)
    assert found == tmp_path / "o" / "sample" / "cpython-311-2.14.1+cu130-13.0.88" / "0123"
    assert found.is_dir()


def test_a_build_dir_that_cannot_be_made(project: Path, cache: Path) -> None:
    with pytest.raises(SettingsError, match=r"build-dir is /proc/objects/sample, which cannot be made"):
        store.place(project, "build_wheel", Path("/proc/objects/{project}"), cache, FIELDS)


def aged(path: Path, seconds: float) -> Path:
    path.mkdir(parents=True)
    (path / "file").write_text("")
    os.utime(path, (1e9 - seconds, 1e9 - seconds))
    return path


def test_what_nobody_has_used_for_long_is_removed(cache: Path) -> None:
    old = [aged(cache / name, UNUSED + 60) for name in ("objects/a/1", "objects/b/1", "toolkits/t")]
    new = [aged(cache / name, UNUSED - 60) for name in ("objects/b/2", "toolkits/u")]
    (cache / "wheels").mkdir()
    for name, age in (("old.whl", UNCLAIMED + 60), ("new.whl", UNCLAIMED - 60)):
        (cache / "wheels" / name).write_text("")
        os.utime(cache / "wheels" / name, (1e9 - age, 1e9 - age))
    old, new = [*old, cache / "wheels" / "old.whl"], [*new, cache / "wheels" / "new.whl"]
    (cache / "history.sqlite").write_text("")
    os.utime(cache / "history.sqlite", (0, 0))
    assert sorted(store.prune(cache, 1e9)) == sorted(old)
    assert not any(path.exists() for path in old) and all(path.exists() for path in new)
    assert not (cache / "objects" / "a").exists()
    assert (cache / "history.sqlite").exists()


def test_use_keeps(cache: Path) -> None:
    toolkit, objects = aged(cache / "toolkits/t", 10 * UNUSED), aged(cache / "objects/a/1", 10 * UNUSED)
    store.mark_used(toolkit / "bin" / "nvcc", cache)
    store.mark_used(objects, cache)
    store.mark_used(Path("/usr/local/cuda"), cache)
    with store.using(cache):
        assert toolkit.exists() and objects.exists()


def test_nothing_is_removed_while_another_build_runs_and_once_a_day_otherwise(cache: Path) -> None:
    old = aged(cache / "toolkits/t", 10 * UNUSED)
    with store.using(cache):
        assert not old.exists()
        old = aged(cache / "toolkits/t", 10 * UNUSED)
        (cache / ".pruned").unlink()
        with store.using(cache):
            assert old.exists()
    with store.using(cache):
        assert not old.exists()
        aged(cache / "toolkits/t", 10 * UNUSED)
    with store.using(cache):
        assert old.exists(), "it has been done today"


def test_the_lock_is_given_back(cache: Path) -> None:
    with store.using(cache):
        pass
    with (cache / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_without_a_cache_there_is_nothing_to_hold(tmp_path: Path) -> None:
    with store.using(tmp_path / "none"):
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("place", "passing"),
    [
        ("tmp/pip-req-build-a1b2", True),
        ("tmp/pip-install-x/name_0123/python", True),
        ("uv/git-v0/checkouts/0123/4567", True),
        ("home/pip", False),
    ],
)
def test_what_frontends_clone_does_not_last(tmp_path: Path, cache: Path, place: str, passing: bool) -> None:
    project = tmp_path / place
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\n[project]\nversion = "1"\nname = "a b"\n'
    )
    kept = cache / "objects" / "a_b" / "0123"
    assert store.place(project, "build_wheel", None, cache, FIELDS) == (kept if passing else None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"PKG-INFO": "Metadata-Version: 2.1\nName: a\n", "setup.cfg": "[metadata]\nname = b\n"}, "a"),
        ({"pyproject.toml": "[tool.x]\nname = 'no'\n", "setup.cfg": "[metadata]\nversion = 1\nname = b\n"}, "b"),
        ({"setup.py": "PACKAGE = 'x'\nsetup(\n    name = 'c',\n)"}, "c"),
        ({"setup.py": "setup(name=NAME)"}, "unnamed-"),
    ],
)
def test_what_a_project_calls_itself(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    project = tmp_path / "pip-req-build-1"
    project.mkdir()
    for file, text in files.items():
        (project / file).write_text(text)
    assert store.name(project).startswith(expected) and len(store.name(project)) < 30
