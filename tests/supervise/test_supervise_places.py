"""Builds in difficult places: what cannot be written, named, executed, or filled any more."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kill_harness import Project, is_whole, make_project, mounts

REPOSITORY = Path(__file__).resolve().parents[2]
# What torch writes of the last two into a build.ninja breaks it.
NAMES = ["a b #'\"é\\", "x" * 245, "a$b:c|d", "a\nb"]


needs_mounts = pytest.mark.skipif(bool(mounts()), reason=f"no mount namespace: {mounts()}")


def mounted(script: str, command: Sequence[str], *arguments: Path) -> list[str]:
    """The command where `script` has been run in a mount namespace of its own, with arguments $1, $2 ..."""
    shell = f'{script} && shift {len(arguments)} && exec "$@"'
    return ["unshare", "-m", "sh", "-c", shell, "sh", *map(str, arguments), *command]


STRANGER = 54321  # a user that has no entry among the users, and no home
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" "$1" && cd "$1"'


@dataclass(frozen=True)
class Ended:
    status: int
    output: str

    def said(self, *words: str) -> bool:
        lines = [line for line in self.output.splitlines() if line.startswith("safe-ext-build: ")]
        return any(all(word in line for word in words) for line in lines)

    def check(self) -> Ended:
        assert self.status == 0, self.output
        return self


def run(project: Project, command: Sequence[str], **environ: str) -> Ended:
    done = subprocess.run(
        command,
        cwd=project.root,
        env={**project.environ(), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    assert not [path for path in project.workspaces.iterdir() if path.is_dir()]
    return Ended(done.returncode, done.stdout.decode(errors="replace"))


def with_root(project: Project, root: Path) -> Project:
    root.parent.mkdir(parents=True, exist_ok=True)
    project.root.rename(root)
    return replace(project, root=root)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_name_will_do_and_nothing_is_compiled_twice(project: Project, name: str) -> None:
    named = with_root(project, project.scratch / name / "project")
    assert run(named, named.hook()).check().said("compiled 3 objects")
    assert all(is_whole((named.objects / f"{source}.o").read_bytes()) for source in "abc")
    assert "ninja: no work to do." in run(named, named.hook()).check().output


def test_a_name_that_no_path_of_ours_can_replace(project: Project) -> None:
    """A cache with such a name cannot keep the objects; they are compiled at any rate."""
    named = with_root(project, project.scratch / "a$b" / "project")
    again = [run(named, named.hook(), XDG_CACHE_HOME=str(project.scratch / "a$b")).check() for _ in range(2)]
    assert all(ended.said("compiled 3 objects") for ended in again)


@pytest.mark.parametrize(
    ("project_in", "workspaces_in", "said"),
    [
        ("a$b", "a b", "[SEB-4003]: ninja cannot name {0}/a$b/project, for the '$'"),
        ("a", "a$:b", "[SEB-4002]: nvcc cannot name {0}/a$:b"),
    ],
)
def test_what_nothing_can_name_is_told_before_anything_is_compiled(
    project: Project, project_in: str, workspaces_in: str, said: str
) -> None:
    named = with_root(project, project.scratch / project_in / "project")
    environ = {
        "XDG_CACHE_HOME": str(project.scratch / "a$b"),
        "SAFE_EXT_BUILD_WORKSPACE_DIR": str(project.scratch / workspaces_in),
    }
    ended = run(named, named.hook(), **environ)
    assert ended.status == 1 and not named.objects.exists()
    assert ended.said(f"error{said.format(project.scratch)}"), ended.output
    assert ended.said("hint: ", "Set workspace.dir to a directory whose path has none but letters")


def read_only(project: Project, command: Sequence[str]) -> list[str]:
    return mounted(READ_ONLY, command, project.root)


@needs_mounts
def test_a_project_that_cannot_be_written_is_built_in_a_copy(project: Project) -> None:
    before = project.files()
    command = read_only(project, project.hook())
    first = run(project, command).check()
    assert first.said(f"{project.root} cannot be written, so a copy of {project.root} is built")
    assert first.said("compiled 3 objects")
    assert "ninja: no work to do." in run(project, command).check().output
    source = project.root / "csrc" / "b.cu"
    source.write_text(source.read_text() + "// changed\n")
    assert run(project, command).check().said("compiled 1 object ")
    assert project.files() == before and not (project.root / "build").exists()
    assert len(list(project.wheels.glob("*.whl"))) == 1


@needs_mounts
def test_an_editable_install_of_what_cannot_be_written_says_so(project: Project) -> None:
    (project.root / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        "setup(packages=['standin'], ext_modules=[Extension('standin._C', ['csrc/module.c'])])\n"
    )
    (project.root / "csrc" / "module.c").write_text("int PyInit__C;\n")
    ended = run(project, read_only(project, project.hook("build_editable")))
    assert ended.status == 1
    assert ended.said(f"hint: {project.root} cannot be written, and an editable install puts its modules there")


@needs_mounts
@pytest.mark.parametrize("hook", ["build_sdist", "prepare_metadata_for_build_wheel"])
def test_the_other_hooks_do_without_writing_too(project: Project, hook: str) -> None:
    run(project, read_only(project, project.hook(hook))).check()
    assert list(project.wheels.iterdir())


@needs_mounts
def test_what_another_user_has_built_there_is_no_obstacle(project: Project) -> None:
    left = project.root / "build"
    (left / "lib").mkdir(parents=True)
    command = mounted('mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" "$1"', project.hook(), left)
    assert run(project, command).check().said(f"{left} cannot be written, so a copy of {project.root} is built")


@needs_mounts
def test_a_workspace_without_room_is_told_before_anything_is_compiled(project: Project) -> None:
    tiny = mounted('mount -t tmpfs -o size=1m none "$1"', project.hook(), project.workspaces)
    ended = run(project, tiny)
    assert ended.status == 1
    assert ended.said(
        "error[SEB-4005]: ", f"{project.workspaces}/", ", where temporary files go, has 1 MiB free"
    ), ended.output
    assert ended.said("hint: Set workspace.dir")
    assert not project.objects.exists()


@needs_mounts
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("size=64k", "SEB-4005", r"has 6\d KiB free; this build needs about \d+ MiB$"),
        ("nr_inodes=20", "SEB-4004", r"can hold 1\d more files"),
    ],
)
def test_a_workspace_without_room_is_told_with_the_metadata(
    project: Project, options: str, code: str, said: str
) -> None:
    """It is what frontends ask for first."""
    hook = project.hook("prepare_metadata_for_build_wheel")
    ended = run(project, mounted(f'mount -t tmpfs -o {options} none "$1"', hook, project.workspaces))
    assert ended.status == 1
    what = rf"error\[{code}\]: {re.escape(str(project.workspaces))}/\S+, where temporary files go, {said}"
    assert re.search(what, ended.output, re.MULTILINE), ended.output


@needs_mounts
def test_a_temporary_directory_that_is_not_there_or_is_full_does_not_matter(project: Project) -> None:
    run(project, project.hook(), TMPDIR="/nonexistent").check()
    full = mounted('mount -t tmpfs -o size=4k,noexec none "$1"', project.hook(), project.temp)
    (project.root / "csrc" / "a.cu").write_text("//! seconds=0.1\n// changed\n")
    assert run(project, full).check().said("compiled 1 object ")


@needs_mounts
def test_a_workspace_that_executes_nothing_has_its_shims_elsewhere(project: Project) -> None:
    place = project.scratch / "mounted"
    place.mkdir()
    command = mounted('mount -t tmpfs -o size=512m,noexec none "$1"', project.hook(), place)
    run(project, command, SAFE_EXT_BUILD_WORKSPACE_DIR=str(place / "workspaces")).check()


def test_the_ninja_on_the_path_need_not_run(project: Project) -> None:
    folder = project.scratch / "bin"
    folder.mkdir()
    (folder / "ninja").write_text("no program")
    (folder / "ninja").chmod(0o755)
    run(project, project.hook(), PATH=f"{folder}:/usr/bin:/bin").check()


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_what_a_compiler_says_need_not_be_text(project: Project, locale: str) -> None:
    environ = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    source = project.root / "csrc" / "b.cu"
    source.write_bytes(b"//! say=caf\xe9\n")
    assert run(project, project.hook(), **environ).check().said("compiled 3 objects")
    source.write_bytes(b"//! say=caf\xe9 fail=1\n")
    ended = run(project, project.hook(), **environ)
    assert ended.status == 1 and "UnicodeDecodeError" not in ended.output
    assert ended.said(f"error[SEB-6001]: {source} does not compile: {source}(1): error: caf")


def test_a_build_needs_no_network(project: Project) -> None:
    done = subprocess.run(["unshare", "-n", "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no network namespace: {done.stderr.strip()}")
    run(project, ["unshare", "-n", *project.pip()]).check()


@pytest.fixture
def public(compiler: Path) -> Iterator[Project]:
    """A project that another user reaches, where what pytest makes is private."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        project = make_project(Path(place), Path(shutil.copy(compiler, Path(place, "nvcc"))))
        for name in ("base", "venv", "repository"):
            Path(place, name).mkdir()
        for path in (Path(place), *Path(place).rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        yield project
    for left in Path("/var/tmp").glob(f"safe-ext-build-{STRANGER}*"):
        shutil.rmtree(left)


@needs_mounts
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("home", [None, "/root"])
def test_a_user_without_an_entry_or_a_home(public: Project, home: str | None) -> None:
    place = public.scratch
    site = Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    binds = 'mount --bind "$2" "$1/base" && mount --bind "$3" "$1/venv" && mount --bind "$4" "$1/repository"'
    become = ["setpriv", "--reuid", str(STRANGER), "--regid", str(STRANGER), "--clear-groups"]
    python = place / "base" / Path(os.path.realpath(sys.executable)).relative_to(sys.base_prefix)
    code = f"from safe_ext_build import build_meta; build_meta.build_wheel({str(public.wheels)!r})"
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{place / 'repository'}:{place / 'venv' / site}",
        "STANDIN_COMPILER": str(public.compiler),
    }
    if home:
        environ["HOME"] = home
    command = mounted(
        binds,
        ["env", "-i", *(f"{name}={value}" for name, value in environ.items()), *become, str(python), "-c", code],
        *(place, Path(sys.base_prefix), Path(sys.prefix), REPOSITORY),
    )
    assert run(public, command).check().said("compiled 3 objects")
    left = [path.name for path in public.root.iterdir()]
    assert not [name for name in left if re.match(r"[~.]", name)], left


@needs_mounts
def test_a_wheel_that_its_directory_does_not_hold_is_kept(project: Project) -> None:
    full = mounted('mount -t tmpfs -o size=4k none "$1" && echo > "$1/full"', project.hook(), project.wheels)
    ended = run(project, full)
    kept = project.scratch / "cache" / "safe-ext-build" / "wheels"
    assert ended.status == 1
    assert ended.said(f"error[SEB-8005]: the wheel was built, but cannot be written to {project.wheels}: No space")
    assert ended.said(f"hint: It is kept: take it from {kept}/standin-1.0-py3-none-any.whl"), ended.output
    assert [path.name for path in kept.iterdir()] == ["standin-1.0-py3-none-any.whl"]
