"""Room for a build, and the copy of a project that cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from safe_ext_build import preflight, settings
from safe_ext_build.errors import PlaceError
from safe_ext_build.preflight import MIB, Room

PLACE = Path("/place")


def room(free: int, files: int | None = 10**6) -> Room:
    return Room(PLACE, "objects", "Free some room.", free * MIB, files)


@pytest.mark.parametrize(
    ("free", "with_torch", "said"),
    [
        (100_000, True, []),
        (1024, True, []),
        (1000, True, ["/place, where objects go, has 1000 MiB free; a large build needs more"]),
        (200, True, ["/place, where objects go, has 200 MiB free; a large build needs more"]),
        (8, False, []),
    ],
)
def test_enough_room(free: int, with_torch: bool, said: list[str]) -> None:
    assert preflight.judge([room(100_000), room(free)], with_torch) == said


@pytest.mark.parametrize(
    ("free", "with_torch", "needed"), [(199, True, "200 MiB"), (0, True, "200 MiB"), (7, False, "8 MiB")]
)
def test_too_little_room_ends_the_build(free: int, with_torch: bool, needed: str) -> None:
    with pytest.raises(PlaceError) as caught:
        preflight.judge([room(free)], with_torch)
    assert str(caught.value) == f"/place, where objects go, has {free} MiB free; this build needs about {needed}"
    assert caught.value.hint == "Free some room."


def test_a_disk_may_have_room_and_hold_no_more_files() -> None:
    with pytest.raises(PlaceError, match=r"/place, where objects go, can hold 3 more files \(`df -i` shows it\)"):
        preflight.judge([room(100_000, files=3)], True)
    assert preflight.judge([room(100_000, files=None)], True) == []


def test_room_is_looked_for_where_a_directory_is_going_to_be(tmp_path: Path) -> None:
    found = preflight.look(tmp_path / "not" / "yet", "objects", "")
    there = os.statvfs(tmp_path)
    assert abs(found.free - there.f_bavail * there.f_frsize) < 1024 * MIB  # others write there too


def test_a_report_without_a_place_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = {}
    for name in ("r.html", "new/r.html", "tpyo/new/r.html"):
        chosen, _ = settings.load(tmp_path, {"report.path": name}, {})
        said[name] = [line for line in preflight.check(chosen, with_torch=False) if "report" in line]
    line = f"-C report.path is {tmp_path}/tpyo/new/r.html, but there is no directory {tmp_path}/tpyo"
    assert said == {"r.html": [], "new/r.html": [], "tpyo/new/r.html": [line]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "a project"
    (project / "csrc").mkdir(parents=True)
    (project / "setup.py").write_text("setup()")
    (project / "csrc" / "a.cu").write_text("kernel")
    return project


def test_a_copy_has_everything_with_its_time_stamps_and_may_be_written(project: Path, tmp_path: Path) -> None:
    source = project / "csrc" / "a.cu"
    os.utime(source, ns=(10**18, 10**18))
    source.chmod(0o444)
    (project / "csrc").chmod(0o555)
    try:
        copy = preflight.copy(project, tmp_path / "workspace")
    finally:
        (project / "csrc").chmod(0o755)
    assert copy == tmp_path / "workspace" / "a_project"
    assert (copy / "csrc" / "a.cu").stat().st_mtime_ns == 10**18
    assert [oct(path.stat().st_mode & 0o200) for path in (copy / "csrc", copy / "csrc" / "a.cu")] == ["0o200"] * 2


def test_links_lead_where_they_led(project: Path, tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (project / "csrc" / "out").symlink_to("../../common")
    (project / "csrc" / "in").symlink_to("../setup.py")
    (project / "csrc" / "absolute").symlink_to(tmp_path / "common")
    (project / "csrc" / "dangling").symlink_to("nothing")
    copy = preflight.copy(project, tmp_path / "somewhere" / "deep") / "csrc"
    assert (copy / "out").resolve() == (copy / "absolute").resolve() == tmp_path / "common"
    assert (copy / "in").resolve() == copy.parent / "setup.py"
    assert (copy / "dangling").readlink() == Path("nothing")


def test_what_is_made_anew_is_left_out(project: Path, tmp_path: Path) -> None:
    for name in ("build/lib/x", ".venv/pyvenv.cfg", "csrc/__pycache__/x", "x.egg-info/SOURCES.txt"):
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text("")
    workspace = project / "workspaces" / "1"  # a workspace may lie in the project itself
    copy = preflight.copy(project, workspace)
    assert sorted(path.name for path in copy.iterdir()) == ["csrc", "setup.py", "x.egg-info"]
    assert not (copy / "csrc" / "__pycache__").exists()


def test_a_directory_named_build_may_hold_sources(project: Path, tmp_path: Path) -> None:
    (project / "build").mkdir()
    (project / "build" / "helpers.py").write_text("")
    assert (preflight.copy(project, tmp_path / "workspace") / "build" / "helpers.py").exists()


def test_what_can_be_written_stays(project: Path) -> None:
    assert preflight.unwritable(project) is None


@pytest.mark.parametrize(
    ("message", "git", "hint"),
    [
        ("a.cu does not compile: fatal error: cute/tensor.hpp: No such file or directory", True, "git submodule"),
        ("AssertionError: csrc/cutlass is missing, please use source distribution", True, "git submodule update"),
        ("command '/usr/bin/g++' failed with exit code 1", False, "git clone --recursive"),
        ("a.cu does not compile: error: expected ';'", True, ""),
    ],
)
def test_submodules_that_were_never_fetched(project: Path, message: str, git: bool, hint: str) -> None:
    listed = '[submodule "cutlass"]\n\tpath = csrc/cutlass\n\turl = x\n[submodule "x"]\n\tpath = csrc\n'
    (project / ".gitmodules").write_text(listed)
    (project / "csrc" / "cutlass").mkdir()
    if git:
        (project / ".git").mkdir()
    said = preflight.missing_submodules(project, message)
    assert said.startswith("csrc/cutlass: empty, and a git submodule") == bool(hint)
    assert hint in said and "csrc," not in said
    (project / "csrc" / "cutlass" / "tensor.hpp").write_text("")
    assert preflight.missing_submodules(project, message) == ""


def test_without_submodules_none_is_missing(project: Path) -> None:
    assert preflight.missing_submodules(project, "No such file or directory") == ""


def test_too_small_a_stack() -> None:
    for hard, may_raise in ((-1, False), (1 << 20, False), (1 << 18, True)):
        preflight.check_stack(hard, may_raise)
    with pytest.raises(PlaceError, match=r"a process may have 256 KiB of stack here"):
        preflight.check_stack(1 << 18, may_raise=False)
