"""Whether kept objects may be trusted: by content, whatever time stamps say."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from safe_ext_build.schedule import objects
from safe_ext_build.schedule.ninjafile import Edge
from safe_ext_build.schedule.objects import MANIFEST, Ages, File, Manifest, Trust

EDGES = [Edge(("a.o",), ("/p/a.cu",)), Edge(("b.o",), ("/p/b.cu",))]
DEPS = {"a.o": ["/p/a.cu", "/p/common.h"], "b.o": ["/p/b.cu", "/p/common.h", "/usr/include/stdio.h"]}
FILES = {"/p/a.cu": "a", "/p/b.cu": "b", "/p/common.h": "h"}


def manifest(files: Mapping[str, str] = FILES, fingerprint: str = "same") -> Manifest:
    return Manifest(fingerprint, {path: File(content, 0, (0, 0, 0)) for path, content in files.items()})


@pytest.mark.parametrize(
    ("now", "removed"),
    [
        (manifest(), set()),
        (manifest({**FILES, "/p/a.cu": "changed"}), {"a.o"}),
        (manifest({**FILES, "/p/common.h": "changed"}), {"a.o", "b.o"}),
        (manifest({**FILES, "/p/other.h": "new"}), set()),
        (manifest({path: text for path, text in FILES.items() if path != "/p/b.cu"}), {"b.o"}),
        (manifest(fingerprint="another torch, toolkit or compiler"), {"a.o", "b.o"}),
    ],
)
def test_what_was_made_from_something_else_is_not_trusted(now: Manifest, removed: set[str]) -> None:
    assert objects.distrusted(manifest(), now, EDGES, DEPS) == removed


def test_objects_without_a_manifest_are_not_trusted() -> None:
    assert objects.distrusted(Manifest(), manifest(), EDGES, {}) == {"a.o", "b.o"}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"fingerprint": 1}', '{"fingerprint": "x", "files": {"a": {}}}']
)
def test_a_damaged_manifest_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert Manifest.load(str(tmp_path)) == Manifest()


class Kept:
    """A source directory, and a directory of objects that were made from it."""

    def __init__(self, place: Path) -> None:
        self.source, self.objects = place / "source", place / "objects"
        for folder in (self.source, self.objects):
            folder.mkdir()
        self.header = self.source / "common.h"
        for name in ("a.cu", "b.cu", "common.h"):
            (self.source / name).write_text(name)
        self.edges = [Edge((f"{self.objects}/{name}.o",), (f"{self.source}/{name}.cu",)) for name in "ab"]
        self.deps = {f"{self.objects}/a.o": [f"{self.source}/a.cu", str(self.header)]}
        self.establish()
        for name in "ab":
            (self.objects / f"{name}.o").write_text("object")

    def establish(self, fingerprint: str = "same", may_touch: bool = False) -> Ages:
        trust = Trust(str(self.objects), str(self.source), fingerprint, may_touch)
        return trust.establish(self.edges, self.deps)

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.objects.glob("*.o"))


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_unchanged_files_leave_the_objects_alone(kept: Kept) -> None:
    kept.establish()
    assert kept.left == ["a.o", "b.o"]


def test_a_header_with_an_old_time_stamp(kept: Kept) -> None:
    kept.header.write_text("other")
    os.utime(kept.header, ns=(0, 0))
    kept.establish()
    assert kept.left == ["b.o"]


def test_a_header_of_the_same_size_and_time(kept: Kept) -> None:
    before = kept.header.stat()
    kept.header.write_text("COMMON.H")
    os.utime(kept.header, ns=(before.st_atime_ns, before.st_mtime_ns))
    kept.establish()
    assert kept.left == ["b.o"]


def test_another_fingerprint(kept: Kept) -> None:
    kept.establish("another")
    assert kept.left == []


def test_what_is_found_stale_is_gone_even_if_the_build_is_killed_then(kept: Kept) -> None:
    """The manifest is written before anything is compiled, after what it does not vouch for was removed."""
    kept.header.write_text("other")
    kept.establish()
    kept.establish()
    assert kept.left == ["b.o"]


def test_what_has_not_changed_has_its_old_time_while_the_build_runs(kept: Kept) -> None:
    source = kept.source / "a.cu"
    then = source.stat().st_mtime_ns
    kept.establish().give_back()
    os.utime(source, ns=(1, then + 10**9))
    ages = kept.establish()
    assert source.stat().st_mtime_ns == then
    ages.give_back()
    assert source.stat().st_mtime_ns == then + 10**9, "and then its own again"
    assert kept.establish().own == {str(source): then + 10**9}
    assert kept.left == ["a.o", "b.o"]


def test_after_a_build_that_was_killed_only_a_copy_gets_old_times(kept: Kept) -> None:
    """A file of the user's may have been edited, and put back, while its object was made."""
    source = kept.source / "a.cu"
    source.touch()
    assert kept.establish().own == {}
    source.touch()
    assert str(source) in kept.establish(may_touch=True).own


def test_what_is_edited_while_the_build_runs_is_not_known_afterwards(kept: Kept) -> None:
    source = kept.source / "a.cu"
    ages = kept.establish()
    source.write_text("edited, read by a compiler, ")
    source.write_text("a.cu")
    ages.give_back()
    kept.establish()
    assert kept.left == ["b.o"]


def test_times_that_are_yet_to_come(kept: Kept) -> None:
    source = kept.source / "a.cu"
    future = time.time_ns() + 10**15
    kept.establish().give_back()
    source.write_text("new")
    os.utime(source, ns=(future, future))
    ages = kept.establish()
    made_at = source.stat().st_mtime_ns
    assert made_at <= time.time_ns()
    ages.give_back()
    assert source.stat().st_mtime_ns == future
    kept.establish()
    assert source.stat().st_mtime_ns == made_at


def test_modules_of_which_nobody_knows_what_they_were_made_from(tmp_path: Path) -> None:
    modules = [tmp_path / "build" / "lib.linux" / name for name in ("a.so", "deep/b.so")]
    for path in modules:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "a.c").write_text("one")
    assert sorted(objects.distrust_modules(str(tmp_path), "same")[0]) == sorted(map(str, modules))
    modules[0].write_text("")
    assert objects.distrust_modules(str(tmp_path), "same")[0] == []
    assert objects.distrust_modules(str(tmp_path), "other")[0] == [str(modules[0])]
    modules[0].write_text("")
    (tmp_path / "a.h").write_text("new")
    assert objects.distrust_modules(str(tmp_path), "other")[0] == [str(modules[0])]
