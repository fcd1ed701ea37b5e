"""The directory of one build: made under a lock, collected when its build is dead, never another's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from safe_ext_build.errors import SupervisionError
from safe_ext_build.supervise import workspace
from safe_ext_build.supervise.processes import ID_VARIABLE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def dead(root: Path, name: str = "0123456789ab") -> Path:
    """What a build leaves whose every process was killed at once."""
    path = root / name
    for folder in ("tmp", "jobs/1/tmp", "bin"):
        (path / folder).mkdir(parents=True)
    (path / "jobs/1/tmp/tmpxft_1").write_text("intermediate")
    return path


def test_layout_and_modes(root: Path) -> None:
    made = workspace.create(root, [])
    assert made.path.parent == root
    assert [oct(path.stat().st_mode & 0o777) for path in (root, made.path)] == ["0o700", "0o700"]
    assert sorted(path.name for path in made.path.iterdir()) == ["bin", "jobs", "tmp"]
    assert made.socket == made.path / "bin" / "socket"
    made.remove()
    made.remove()
    assert [path.name for path in root.iterdir()] == [".lock"]


@pytest.mark.skipif(os.getuid() != 0, reason="what root leaves, only root can")
def test_root_leaves_nothing_in_a_users_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 54321, 54321)
    assert workspace.cache_root({"HOME": str(home)}) == Path("/var/tmp/safe-ext-build-0.cache")
    assert list(home.iterdir()) == []
    os.chown(home, 0, 0)
    assert workspace.cache_root({"HOME": str(home)}) == home / ".cache" / "safe-ext-build"


def test_the_cache_is_never_a_directory_named_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME and without an entry among the users has no home at all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert workspace.cache_root({}) == Path(f"/var/tmp/safe-ext-build-{os.getuid()}.cache")
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_given_back(root: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    workspace.create(root, []).remove()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_dead_builds_directory_is_collected(root: Path, tmp_path: Path) -> None:
    path = dead(root)
    output, depfile, kept = (tmp_path / name for name in ("a.seb-1.o", "a.o.d", "a.o"))
    for file in (output, depfile, kept):
        file.write_text("half")
    (path / "jobs/1/output").symlink_to(output)
    (path / "jobs/1/depfile").symlink_to(depfile)
    shims = tmp_path / "elsewhere" / path.name
    shims.mkdir(parents=True)
    (path / "shims").symlink_to(shims)
    live = workspace.create(root, [])
    assert not path.exists()
    assert not shims.exists()
    assert [output.exists(), depfile.exists(), kept.exists()] == [False, False, True]
    live.remove()


def test_what_a_user_keeps_beside_workspaces_stays(root: Path) -> None:
    """workspace.dir may be a scratch directory of his."""
    kept = [root / "data", root / "0123456789ab", root / "tmp" / "jobs"]
    for folder in kept:
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_text("precious")
    workspace.create(root, []).remove()
    assert all((folder / "deep" / "file").exists() for folder in kept)


def test_what_still_runs_of_a_dead_build_is_ended(root: Path) -> None:
    path = dead(root)
    stray = subprocess.Popen(["sleep", "60"], env={ID_VARIABLE: path.name, "PATH": os.environ["PATH"]})
    other = subprocess.Popen(["sleep", "60"], env={ID_VARIABLE: "another", "PATH": os.environ["PATH"]})
    try:
        workspace.create(root, []).remove()
        assert stray.poll() is not None
        assert other.poll() is None
    finally:
        for process in (stray, other):
            process.kill()
            process.wait()


def test_live_ones_are_left_alone(root: Path) -> None:
    first, second = workspace.create(root, []), workspace.create(root, [])
    assert first.path.is_dir()
    assert workspace.collect(root) == []
    second.remove()
    os.close(first.lock)
    assert workspace.collect(root) == [first.id]


def test_strange_things_in_the_root_are_left_alone(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    (root / "file").write_text("of somebody")
    (root / "link").symlink_to(tmp_path)
    workspace.create(root, []).remove()
    assert sorted(path.name for path in root.iterdir()) == [".lock", "file", "link"]


def test_many_at_once(root: Path) -> None:
    """Each collects what is dead while others are made; none may lose its own."""
    code = (
        "import sys, time; from pathlib import Path; from safe_ext_build.supervise import workspace\n"
        "for _ in range(10):\n"
        "    made = workspace.create(Path(sys.argv[1]), [])\n"
        "    (made.path / 'tmp' / 'file').write_text('x'); time.sleep(0.01)\n"
        "    assert (made.path / 'tmp' / 'file').read_text() == 'x'\n"
        "    made.remove()\n"
    )
    dead(root)
    started = [subprocess.Popen([sys.executable, "-c", code, str(root)]) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0, 0, 0, 0]
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_a_root_that_others_can_read_is_closed(root: Path) -> None:
    root.mkdir(mode=0o755)
    workspace.create(root, []).remove()
    assert root.stat().st_mode & 0o777 == 0o700


def test_another_users_root_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    with pytest.raises(SupervisionError) as caught:
        workspace.create(root, [])
    owner = root.stat().st_uid
    assert str(caught.value) == (
        f"{root}, where temporary files are to go, belongs to user {owner}, not to you (user {owner + 1})"
    )
    assert caught.value.hint == ("Set workspace.dir (or SAFE_EXT_BUILD_WORKSPACE_DIR) to a directory of your own.")


@pytest.mark.parametrize(
    ("place", "reason"), [("/proc/workspaces", "No such file or directory"), ("file/root", "Not a directory")]
)
def test_an_unusable_root_is_refused(place: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    root = tmp_path / place
    with pytest.raises(SupervisionError) as caught:
        workspace.create(root, [])
    assert str(caught.value) == f"cannot use {root} for temporary files: {reason}"
    assert caught.value.hint == (
        "Set workspace.dir (or SAFE_EXT_BUILD_WORKSPACE_DIR) to a directory that you can write."
    )


@pytest.mark.parametrize("name", ["x" * 120, "with:colon"])
def test_shims_go_elsewhere_when_the_root_does_not_do(name: str, tmp_path: Path) -> None:
    others = [tmp_path / "not:this", tmp_path / "s"]
    made = workspace.create(tmp_path / name, others)
    assert made.shims == others[1] / made.id
    assert made.socket == made.shims / "socket"
    assert made.shims.stat().st_mode & 0o777 == 0o700
    assert list(others[0].iterdir()) == []
    made.remove()
    assert list(others[1].iterdir()) == []
    assert [path.name for path in (tmp_path / name).iterdir()] == [".lock"]


def test_no_place_for_shims(tmp_path: Path) -> None:
    root = tmp_path / "with:colon"
    with pytest.raises(SupervisionError) as caught:
        workspace.create(root, [tmp_path / "not:this"])
    assert str(caught.value).startswith("no directory was found from which small programs can be started (tried ")
    assert str(tmp_path / "not:this") in str(caught.value)
    assert "set workspace.dir" in caught.value.hint
    assert [path.name for path in root.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("cache", "expected"),
    [("{tmp}/c", "c/safe-ext-build"), ("relative", "h/.cache/safe-ext-build"), ("", "h/.cache/safe-ext-build")],
)
def test_cache_root(cache: str, expected: str, tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": cache.format(tmp=tmp_path), "HOME": str(tmp_path / "h")}
    (tmp_path / "h").mkdir()
    found = workspace.cache_root(environ)
    assert found == tmp_path / expected
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    """A read-only home, or none: then it is a directory of the user's own on disk."""
    (tmp_path / "file").touch()
    found = workspace.cache_root({"XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": "/"})
    assert found == Path(f"/var/tmp/safe-ext-build-{os.getuid()}.cache")


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with pytest.raises(SupervisionError) as caught, workspace.writing(tmp_path):
        raise OSError(28, "No space left on device")
    assert str(caught.value) == f"cannot write temporary files to {tmp_path}: No space left on device"
    assert "workspace.dir" in caught.value.hint


def test_shared_directory(tmp_path: Path) -> None:
    """What others use too stays as it is."""
    shared = tmp_path / "scratch"
    shared.mkdir()
    shared.chmod(0o1777)
    place = workspace.create(workspace.root(shared, {}), [])
    assert place.path.parent == shared / f"safe-ext-build-{os.getuid()}"
    assert (shared.stat().st_mode & 0o7777, place.path.parent.stat().st_mode & 0o777) == (0o1777, 0o700)
    place.remove()


def test_a_link_that_somebody_has_put_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "his").mkdir(0o755)
    (tmp_path / "ours").symlink_to(tmp_path / "his")
    with pytest.raises(SupervisionError, match="is no directory"):
        workspace.create(tmp_path / "ours", [])
    assert (tmp_path / "his").stat().st_mode & 0o777 == 0o755
