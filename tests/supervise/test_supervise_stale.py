"""What is compiled again, and what is not: nothing but what changed, whatever its time stamp says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from kill_harness import PROMISE, Project, build_again, started

ALL = 3
OLD = (10**17, 10**17)  # nanoseconds: long ago


def compiled(project: Project, **variables: str) -> int:
    """Build; returns how many objects were compiled. A build in which ninja never ran counts as -1."""
    text = build_again(replace(project, variables={**project.variables, **variables}))
    found = re.search(r"^safe-ext-build: compiled (\d+) object", text, re.MULTILINE)
    assert found or "ninja: no work to do." in text, text
    return int(found[1]) if found else 0


@pytest.fixture
def built(project: Project) -> Project:
    """A project whose source b includes a header, all compiled."""
    (project.root / "csrc" / "common.h").write_text("one\n")
    (project.root / "csrc" / "b.cu").write_text("//! seconds=0.1 needs=common.h\n")
    assert compiled(project) == ALL
    return project


def test_what_was_touched_and_what_is_from_the_future(built: Project) -> None:
    later = [path.stat().st_mtime_ns + 10**15 for path in (built.root / "csrc").iterdir()]
    for path, time in zip((built.root / "csrc").iterdir(), later, strict=True):
        os.utime(path, ns=(time, time))
    assert compiled(built) == 0
    assert [path.stat().st_mtime_ns for path in (built.root / "csrc").iterdir()] == later, "the user's own times"
    (built.root / "csrc" / "a.cu").write_text("//! seconds=0.1\n// edited\n")
    assert compiled(built) == 1


def write_back_dated(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=OLD)


def test_unchanged_input_compiles_nothing(built: Project) -> None:
    assert compiled(built) == 0


def test_a_source_or_header_that_changed_with_an_old_time_stamp(built: Project) -> None:
    write_back_dated(built.root / "csrc" / "a.cu", "//! seconds=0.1\n// from an archive\n")
    assert compiled(built) == 1
    write_back_dated(built.root / "csrc" / "common.h", "two\n")
    assert compiled(built) == 1
    assert compiled(built) == 0


def test_a_flag_in_the_command_or_in_the_environment(built: Project) -> None:
    assert compiled(built, STANDIN_FLAGS="-O3") == ALL
    assert compiled(built, STANDIN_FLAGS="-O3") == 0
    assert compiled(built, STANDIN_FLAGS="-O3", NVCC_APPEND_FLAGS="-DNEW") == ALL
    assert compiled(built, STANDIN_FLAGS="-O3", CPATH="/opt/include") == ALL


def test_another_compiler_behind_the_same_path(built: Project) -> None:
    compiler = built.scratch / "c++"
    shutil.copy(built.compiler, compiler)
    assert compiled(built, CXX=str(compiler)) == ALL
    assert compiled(built, CXX=str(compiler)) == 0
    with compiler.open("ab") as file:
        file.write(b"another")
    assert compiled(built, CXX=str(compiler)) == ALL


def test_another_torch_in_the_same_place(built: Project) -> None:
    package = built.scratch / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))}
    declared = {**path, "SAFE_EXT_BUILD_TORCH_MATCH": "declared"}  # not that of the tests' own environment
    said = []
    for version in ("2.13.0+cu130", "2.13.0+cu130", "2.14.0+cu130"):
        (package / "version.py").write_text(f"__version__ = {version!r}\ncuda = None\nhip = None\n")
        said.append(compiled(built, **declared))
    assert said == [ALL, 0, ALL]


FRONTENDS = {
    "uv, from its sdist": ["uv", "build", "-v", "--no-build-isolation", "--python", sys.executable, "-o"],
    "uv, editable": [
        *("uv", "pip", "install", "-v", "--no-build-isolation", "--no-deps", "--reinstall"),
        *("--python", sys.executable, "-e", ".", "--target"),
    ],
    "pip, editable": [
        *(sys.executable, "-m", "pip", "install", "-v", "--no-build-isolation", "--no-deps", "-e", ".", "--prefix")
    ],
}


@pytest.mark.frontend
@pytest.mark.parametrize("how", FRONTENDS)
def test_nothing_is_compiled_twice_where_directories_do_not_last(project: Project, how: str) -> None:
    uv = Path(sysconfig.get_path("scripts"), "uv")
    command = [str(uv) if word == "uv" else word for word in FRONTENDS[how]]
    texts = []
    for _ in range(2):
        with started(project, [*command, str(project.wheels)]) as build:
            assert build.wait(120) == 0, build.text()
            texts.append(build.text())
    assert "compiled 3 objects" in texts[0]
    assert "ninja: no work to do." in texts[1]


def test_an_interrupted_build_continues(project: Project) -> None:
    """Killed as a whole, in mid-compile: the next build compiles what was not finished, and nothing else."""
    project.write_sources({"0_a": "seconds=0.1", "0_b": "seconds=0.1", "1_c": "seconds=60"})
    with started(project, project.hook()) as build:
        build.wait_until(lambda: any(project.objects.glob("1_c.seb-*.o")), "the last source")
        build.hit("frontend", signal.SIGKILL)
        assert build.seconds_to_clear() <= PROMISE
    assert sorted(path.name for path in project.objects.glob("*.o")) == ["0_a.o", "0_b.o"]
    (project.root / "csrc" / "1_c.cu").write_text("//! seconds=0.1\n")
    assert compiled(project) == 1


def test_a_build_dir_keeps_what_each_compiler_has_made(built: Project) -> None:
    """With the fingerprint in its name, going back to the earlier compiler costs nothing."""
    place = {"SAFE_EXT_BUILD_BUILD_DIR": str(built.scratch / "objects" / "{project}" / "{fingerprint}")}
    other = built.scratch / "c++"
    shutil.copy(built.compiler, other)
    assert compiled(built, **place) == ALL
    assert compiled(built, **place, CXX=str(other)) == ALL
    assert compiled(built, **place) == 0
    assert len(list((built.scratch / "objects" / "project").iterdir())) == 2


def test_an_unpacked_sdist_finds_what_another_unpacked_one_has_compiled(project: Project) -> None:
    def unpack(name: str) -> Project:
        root = project.scratch / name / "standin-1.0"
        with tarfile.open(sdist) as archive:
            archive.extractall(root.parent)
        return replace(project, root=root)

    (project.root / "csrc" / "common.h").write_text("one\n")
    (project.root / "csrc" / "b.cu").write_text("//! seconds=0.1 needs=common.h\n")
    with started(project, project.hook("build_sdist")) as build:
        assert build.wait() == 0, build.text()
    (sdist,) = project.wheels.glob("*.tar.gz")
    assert compiled(unpack("first")) == ALL
    second = unpack("second")
    for path in second.root.rglob("*"):
        path.touch()  # pip's and uv's copies are as old as the build
    assert compiled(second) == 0
    third = unpack("third")
    write_back_dated(third.root / "csrc" / "common.h", "two\n")
    assert compiled(third) == 1


@pytest.mark.frontend
def test_a_clone_finds_what_another_clone_has_compiled(project: Project) -> None:
    """pip clones into a directory whose name is another one each time."""
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(project.root)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    source = f"git+file://{project.root}"
    command = [*project.pip("-v")[:-1], source]
    texts = []
    for _ in range(2):
        with started(project, command) as build:
            assert build.wait(120) == 0, build.text()
            texts.append(build.text())
    assert "compiled 3 objects" in texts[0]
    assert "ninja: no work to do." in texts[1]


HOST = """
import os
from setuptools import Extension, setup
setup(packages=["standin"], ext_modules=[Extension("standin._C", ["csrc/module.c"])])
"""
MODULE = '#include "answer.h"\n#include <Python.h>\nconst char answer[] = ANSWER; int PyInit__C;\n'


def module(project: Project) -> bytes:
    with started(project, project.hook()) as build:
        assert build.wait() == 0, build.text()
    (found,) = project.root.glob("build/lib*/standin/_C*.so")
    return found.read_bytes()


def test_a_module_that_setuptools_takes_for_up_to_date(project: Project) -> None:
    """Without ninja, setuptools looks at the sources' time stamps only: neither at headers nor at compilers."""
    (project.root / "setup.py").write_text(HOST)
    (project.root / "csrc" / "module.c").write_text(MODULE)
    header = project.root / "csrc" / "answer.h"
    header.write_text('#define ANSWER "the first answer"\n')
    assert b"the first answer" in module(project)
    (path,) = project.root.glob("build/lib*/standin/_C*.so")
    made = path.stat().st_mtime_ns
    module(project)
    assert path.stat().st_mtime_ns == made, "nothing has changed"
    write_back_dated(header, '#define ANSWER "a new answer"\n')
    assert b"a new answer" in module(project)
    made = path.stat().st_mtime_ns
    module(replace(project, variables={"CPATH": "/opt/include"}))
    assert path.stat().st_mtime_ns != made
