"""A directory of the user's that is to stay as it is: `safe-ext-build wheel DIR` builds beside it."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from kill_harness import Project, is_whole, mounts

pytestmark = pytest.mark.frontend

EXTENSION = """from setuptools import Extension, setup
import beside
setup(packages=["theirs"], include_package_data=True,
      ext_modules=[Extension("theirs._C", ["csrc/module.c"])])
"""


def everything(place: Path) -> dict[str, tuple[bytes, int]]:
    """All files below a place, with their times."""
    files = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def build(project: Project, script: str = "true", *places: Path) -> str:
    """Build as the command does; returns what was said. `script`: what is run before, in a mount namespace of its
    own, with the places as $1, $2 ..."""
    apart = ["unshare", "-m"] if places else []
    shell = ["sh", "-c", f'{script} && shift {len(places)} && exec "$@"', "sh", *map(str, places)]
    done = subprocess.run(
        [*apart, *shell, *project.hook()],
        cwd=project.root,
        env={**project.environ(), "SAFE_EXT_BUILD_APART": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_nothing_is_written_there_and_nothing_is_compiled_twice(project: Project) -> None:
    before = everything(project.root)
    assert "safe-ext-build: compiled 3 objects" in build(project)
    assert "ninja: no work to do." in build(project)
    assert everything(project.root) == before
    objects = list((project.scratch / "cache").rglob("*.o"))
    assert len(objects) >= 3 and all(is_whole(path.read_bytes()) for path in objects)
    (project.root / "csrc" / "a.cu").write_text("//! seconds=0.1\n// changed\n")
    before = everything(project.root)
    assert "safe-ext-build: compiled 1 object " in build(project)
    assert everything(project.root) == before
    assert sorted(path.name for path in project.workspaces.iterdir()) == [".lock"]


def test_an_extension_of_setuptools_own_making(project: Project) -> None:
    """With the list of files of an unpacked sdist, which has no other."""
    (project.root / "setup.py").write_text(EXTENSION)
    for name, text in {
        "theirs/__init__.py": "",
        "theirs/data.txt": "data",
        "beside.py": "",
        "csrc/module.c": "int PyInit__C;\n",
        "standin.egg-info/SOURCES.txt": "setup.py\ncsrc/module.c\ntheirs/__init__.py\ntheirs/data.txt\n",
    }.items():
        (project.root / name).parent.mkdir(exist_ok=True)
        (project.root / name).write_text(text)
    before = everything(project.root)
    assert "building 'theirs._C' extension" in build(project)
    (wheel,) = project.wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {"theirs/__init__.py", "theirs/data.txt"} <= set(archive.namelist())
        assert any(name.startswith("theirs/_C.") for name in archive.namelist())
    assert "building 'theirs._C' extension" not in build(project)
    assert everything(project.root) == before
    (project.root / "csrc" / "module.c").write_text("int PyInit__C, more;\n")
    assert "building 'theirs._C' extension" in build(project)


@pytest.mark.skipif(bool(mounts()), reason=f"no mount namespace: {mounts()}")
def test_a_cache_without_room_is_no_reason_to_fail(project: Project) -> None:
    cache = project.scratch / "cache"
    cache.mkdir()
    before = everything(project.root)
    said = build(project, 'mount -t tmpfs -o size=1m none "$1"', cache)
    assert f"safe-ext-build: warning: no objects are kept in {cache}/safe-ext-build/objects/project-" in said
    assert "/build: 0 MiB free there\n" in said or "/build: 1 MiB free there\n" in said
    assert "safe-ext-build: compiled 3 objects" in said
    assert everything(project.root) == before
    assert len(list(project.wheels.glob("*.whl"))) == 1
