"""A wheel is put where it was asked for, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from safe_ext_build.delivery import KEPT, deliver, deliver_or_keep, try_out
from safe_ext_build.errors import BuildFailed


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "made" / "a-1.whl"
    path.parent.mkdir()
    path.write_text("new")
    return path


def test_an_older_one_is_replaced(wheel: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a-1.whl").write_text("old")
    assert deliver(wheel, out, "").read_text() == "new"
    assert [path.name for path in out.iterdir()] == ["a-1.whl"]


def test_what_cannot_be_written_leaves_the_older_one(wheel: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "a-1.whl").mkdir(parents=True)
    with pytest.raises(BuildFailed, match=r"cannot be written to .*out: Is a directory") as caught:
        deliver(wheel, out, "Look there.", note=tmp_path / "jobs" / "wheel" / "output")
    assert caught.value.hint == "Look there."
    assert [path.name for path in out.iterdir()] == ["a-1.whl"]
    assert (tmp_path / "jobs" / "wheel" / "output").readlink() == out / f".a-1.whl.{os.getpid()}"


def test_a_backend_that_says_what_is_not_true(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match=r"says that it has built a-1.whl, but there is no such file"):
        deliver(tmp_path / "a-1.whl", tmp_path, "")


def test_a_place_is_tried_out_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    try_out(tmp_path / "there", "")
    try_out(tmp_path / "new", "")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert not list((tmp_path / "there").iterdir())
    with pytest.raises(BuildFailed, match=r"to .*/tpyo/out: there is no directory .*/tpyo$"):
        try_out(tmp_path / "tpyo" / "out", "")
    (tmp_path / "file").touch()
    for place in (Path("/proc/out"), tmp_path / "file" / "out"):
        with pytest.raises(BuildFailed, match=r"no wheel can be written to .*out: ") as caught:
            try_out(place, "Name another.")
        assert (caught.value.code, caught.value.hint) == ("SEB-8005", "Name another.")


def test_what_cannot_be_delivered_is_kept_and_not_for_ever(wheel: Path, tmp_path: Path) -> None:
    full, shelf = tmp_path / "full", tmp_path / "cache" / "wheels"
    full.touch()
    shelf.mkdir(parents=True)
    for number in range(KEPT):
        older = shelf / f"{number}.whl"
        older.touch()
        os.utime(older, (number, number))
    with pytest.raises(BuildFailed, match="cannot be written to") as caught:
        deliver_or_keep(wheel, full, "", tmp_path / "cache")
    assert caught.value.hint == f"It is kept: take it from {shelf / 'a-1.whl'}"
    assert sorted(path.name for path in shelf.iterdir()) == ["1.whl", "2.whl", "3.whl", "4.whl", "a-1.whl"]
    assert (shelf / "a-1.whl").read_text() == "new"


def test_a_wheel_that_cannot_be_kept_either(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildFailed, match=r"cannot be written to .*file/out") as caught:
        deliver_or_keep(wheel, tmp_path / "file" / "out", "Free some room.", tmp_path / "file")
    assert caught.value.hint == "Free some room." and wheel.read_text() == "new"
