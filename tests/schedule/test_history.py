"""The history: what is remembered, under which name, and what survives which damage."""

from __future__ import annotations

import os
import random
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import safe_ext_build
from safe_ext_build.schedule import history
from safe_ext_build.schedule.forecast import Curve
from safe_ext_build.schedule.history import History, merge
from safe_ext_build.schedule.history_key import flags, key, scope

HOME = str(Path(safe_ext_build.__file__).parents[1])
GIB = 1 << 30


def curve(peak: int = 4 * GIB, seconds: float = 60.0) -> Curve:
    return Curve(seconds, tuple(peak * (step + 1) // 16 for step in range(16)))


def flat(peak: int, seconds: float = 10.0) -> Curve:
    return Curve(seconds, (peak,) * 16)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, told: list[str]) -> History:
    return History(tmp_path / "cache" / "history.sqlite", told.append)


def in_child(code: str, *arguments: str | Path, wait: bool = True) -> subprocess.Popen[str]:
    prelude = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from safe_ext_build.schedule.history import History\n"
        "from safe_ext_build.schedule.forecast import Curve\n"
        "told = []; store = History(Path(sys.argv[2]), told.append)\n"
    )
    command = [sys.executable, "-c", prelude + code, HOME, *map(str, arguments)]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if wait:
        assert process.communicate(timeout=60)[1] == ""
    return process


# Keys.

NVCC = shlex.split(
    "nvcc -MD -MF build/a.o.d -I/tmp/pip-build-env-x1/torch/include -isystem /usr/include -c /src/p/csrc/a.cu "
    "-o build/a.o -O3 -std=c++17 -DNDEBUG -UNO_HALF -gencode arch=compute_90,code=sm_90 -t 4 "
    "--compiler-options '-fPIC' -use_fast_math -lineinfo"
)


def named(command: list[str] = NVCC, **changes: Any) -> str:
    values: dict[str, Any] = {
        "project": "flash_attn",
        "source": "csrc/a.cu",
        "archs": ["90"],
        "threads": 4,
        "compiler": "nvcc 13.0.88",
        **changes,
    }
    return key(command=command, **values)


def with_flags(*extra: str) -> str:
    return named([*NVCC, *extra])


@pytest.mark.parametrize(
    "extra",
    [
        ["-I", "/tmp/other"],
        ["-I/tmp/pip-build-env-zz/include"],
        ["-isystem", "/tmp/other"],
        ["-isystem=/tmp/other"],
        ["-o", "build/a.seb-7.o"],
        ["-MT", "build/a.o"],
        ["-MF", "elsewhere.d"],
        ["-c"],
        ["--threads", "2"],
        ["-t2"],
        ["-L/usr/lib"],
        ["-Wall"],
        ["-ccbin", "/usr/bin/g++-13"],
        ["-diag-suppress", "177"],
        ["-Xcompiler", "-I/tmp/x"],
        ["-Xcompiler=-ffile-prefix-map=/tmp/b1=."],
        ["-Xcompiler", "-Wp,-MD,/tmp/x.d"],
        ["-DNDEBUG"],  # again
        ["-O3"],
        ["-O1", "-O3"],
        ["--optimize=3"],
    ],
)
def test_what_does_not_change_memory_does_not_change_the_key(extra: list[str]) -> None:
    assert with_flags(*extra) == with_flags()


@pytest.mark.parametrize(
    "extra",
    [
        ["-O0"],
        ["-O"],
        ["-Ofast"],
        ["-Ofc=max"],
        ["-std=c++20"],
        ["--std=c++20"],
        ["-DX"],
        ["-D", "X=2"],
        ["-UX"],
        ["-gencode=arch=compute_80,code=sm_80"],
        ["-gencode", "arch=compute_90,code=compute_90"],
        ["-arch=sm_90a"],
        ["-G"],
        ["-g"],
        ["-ggdb3"],
        ["--maxrregcount=64"],
        ["-maxrregcount", "64"],
        ["-Xcompiler", "-O2"],
        ["-Xptxas=-O1"],
        ["-Xptxas", "-v,-dlcm=cg"],
        ["-include", "torch/all.h"],
        ["-rdc=true"],
        ["-flto"],
        ["-fsanitize=address"],
    ],
)
def test_what_changes_memory_changes_the_key(extra: list[str]) -> None:
    assert with_flags(*extra) != with_flags()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["-std=c++20"], ["-std", "c++20"]),
        (["-std=c++20"], ["--std=c++20"]),
        (["-DX=1"], ["-D", "X=1"]),
        (["-DX=1"], ["--define-macro=X=1"]),
        (["-gencode", "arch=compute_80,code=sm_80"], ["--generate-code=arch=compute_80,code=sm_80"]),
        (["-arch=sm_80"], ["--gpu-architecture", "sm_80"]),
        (["-maxrregcount=64"], ["--maxrregcount", "64"]),
        (["-use_fast_math"], ["--use_fast_math"]),
        (["-lineinfo"], ["--generate-line-info"]),
        (["-G"], ["--device-debug"]),
        (["-Xptxas", "-v"], ["--ptxas-options=-v"]),
        (["-Xcompiler", "-fPIC,-O2"], ["-Xcompiler", "-O2", "-Xcompiler", "-fPIC"]),
        (["-DA", "-DB"], ["-DB", "-DA"]),
        (["-O"], ["-O1"]),
    ],
)
def test_one_flag_spelt_two_ways_is_one_flag(one: list[str], other: list[str]) -> None:
    assert flags(["nvcc", *one]) == flags(["nvcc", *other]) != []


@pytest.mark.parametrize(
    "changes",
    [
        {"project": "other"},
        {"source": "csrc/b.cu"},
        {"source": "other/a.cu"},
        {"archs": ["80", "90"]},
        {"threads": 2},
        {"compiler": "nvcc 12.8.93"},
    ],
)
def test_everything_else_counts(changes: dict[str, Any]) -> None:
    assert named(**changes) != named()


def test_the_same_build_elsewhere_has_the_same_keys() -> None:
    def at(root: str) -> str:
        command = ["nvcc", f"-DDIR={root}/x", "-include", f"{root}/p/pre.h", f"-I{root}/p", '-DV=\\"1.2\\"']
        return named(command, source=f"{root}/p/csrc/../csrc/a.cu", root=f"{root}/p/")

    assert at("/tmp/pip-req-build-abc") == at("/home/me/work")
    assert named(["nvcc"], source="/home/me/p/csrc/a.cu", root="/home/me/p") == named(["nvcc"])
    assert named(["nvcc"], source="/t/x1/gen/bind.cpp") == named(["nvcc"], source="/t/y2/gen/bind.cpp")


def test_archs_are_a_set_and_threads_may_be_left_out() -> None:
    assert named(archs={"80", "90"}) == named(archs=("90", "80", "90"))
    assert named(threads=None) + "\tthreads=4" == named()


def test_a_key_begins_with_its_scope() -> None:
    assert named().startswith(scope("flash_attn", "nvcc 13.0.88"))
    assert named().startswith(scope("flash_attn"))
    assert not named(project="flash_attn_2").startswith(scope("flash_attn"))


@pytest.mark.parametrize("command", [[], ["nvcc"], ["nvcc", "-D"], ["nvcc", "-std"], ["nvcc", "-Xcompiler", ""]])
def test_any_command_has_a_key(command: list[str]) -> None:
    assert named(command).count("\t") == 5


@pytest.mark.parametrize("name", ["a\tb", "a\nb\0", "n\udcff", "x" * 5000, "", "ü/漢"])
def test_any_name_can_be_remembered(store: History, told: list[str], name: str) -> None:
    strange = key(name, name, ["nvcc", f"-D{name}"], [name], 1, name)
    assert strange.count("\t") == 5
    assert len(strange) < 1200
    assert store.record([(strange, curve())])
    assert store.lookup_all(scope(name, name)) == {strange: curve()}
    assert told == []


def test_long_names_are_told_apart() -> None:
    assert named(source="a" + "x" * 5000) != named(source="b" + "x" * 5000)


# Merging.


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (flat(4, 10.0), flat(4, 10.0), flat(4, 10.0)),
        (flat(400, 10.0), flat(200, 20.0), flat(300, 15.0)),  # down: half-way
        (flat(200, 20.0), flat(400, 10.0), flat(400, 15.0)),  # up: at once
        (flat(0), flat(7), flat(7)),
        (curve(1600), curve(3200), curve(3200)),
    ],
)
def test_an_estimate_moves(old: Curve, new: Curve, expected: Curve) -> None:
    assert merge(old, new) == expected


def test_no_estimate_is_below_what_was_seen_last_nor_above_both() -> None:
    rng = random.Random(7)
    for _ in range(500):
        old, new = (Curve(1.0, tuple(rng.choice([0, rng.randint(1, 9000)]) for _ in range(16))) for _ in "ab")
        merged = merge(old, new)
        assert merged.peak >= new.peak
        assert merged.peak <= max(old.peak, new.peak)


def test_a_peak_that_comes_at_another_time_does_not_pile_up() -> None:
    estimate = flat(1000)
    for number in range(50):
        points = [1000] * 16
        points[number % 16] = 2000
        estimate = merge(estimate, Curve(10.0, tuple(points)))
    assert estimate.peak == 2000
    assert sum(estimate.points) < 16 * 1700


# Remembering.


def test_what_is_recorded_is_found(store: History, told: list[str]) -> None:
    assert store.lookup_all("") == {}
    assert not store.path.parent.exists(), "a look makes nothing"
    assert store.record([("p\tn1\ta", curve()), ("p\tn2\ta", flat(5)), ("q\tn1\ta", flat(6))])
    assert store.lookup_all("p\tn1\t") == {"p\tn1\ta": curve()}
    assert set(store.lookup_all("p\t")) == {"p\tn1\ta", "p\tn2\ta"}
    assert len(store.lookup_all("")) == 3
    assert told == []
    assert [path.name for path in store.path.parent.iterdir()] == ["history.sqlite"]


def test_runs_are_merged_also_within_one_build(store: History) -> None:
    store.record([("a", flat(400, 10.0))])
    store.record([("a", flat(200, 10.0)), ("a", flat(100, 10.0))])
    assert store.lookup_all("") == {"a": flat(200, 10.0)}


@pytest.mark.parametrize(
    "bad",
    [
        Curve(1.0, ()),
        Curve(1.0, (1,) * 15),
        Curve(1.0, (-1,) * 16),
        Curve(1.0, (1 << 70,) * 16),
        Curve(1.0, (0,) * 16),
        Curve(float("nan"), (1,) * 16),
        Curve(float("inf"), (1,) * 16),
        Curve(-1.0, (1,) * 16),
    ],
)
def test_nonsense_is_not_remembered(store: History, bad: Curve) -> None:
    assert store.record([("bad", bad), ("good", curve()), ("k" * 9999, curve()), ("\udcff", curve())])
    assert list(store.lookup_all("")) == ["good"]


def test_the_size_is_bounded_by_last_use(tmp_path: Path) -> None:
    store = History(tmp_path / "h", rows=100)
    store.record([(f"old{number:03}", curve()) for number in range(100)], now=1000)
    store.record([("old007", curve())], now=2000)
    store.record([(f"new{number:03}", curve()) for number in range(99)], now=3000)
    found = store.lookup_all("")
    assert len(found) == 100
    assert {name for name in found if name.startswith("old")} == {"old007"}


def test_a_large_history_is_small_and_fast(tmp_path: Path) -> None:
    """A tenth of the largest: what it takes grows in proportion."""
    store = History(tmp_path / "h", rows=2000)
    names = [key("flash_attn", f"csrc/{n:05}.cu", NVCC, ["90"], 4, f"nvcc {n % 7}") for n in range(2100)]
    store.record([(name, curve()) for name in names])
    store.record([(name, curve()) for name in names[:100]])
    size = store.path.stat().st_size
    store.record([(name, curve()) for name in names])
    assert store.path.stat().st_size <= size * 1.1
    assert size < 800_000
    before = time.perf_counter()
    assert len(store.lookup_all("")) == 2000
    assert time.perf_counter() - before < 0.5


# Several builds.


def test_builds_that_end_at_once_lose_nothing(tmp_path: Path, store: History) -> None:
    code = (
        "name = sys.argv[3]\n"
        "while not Path(sys.argv[4]).exists(): time.sleep(0.001)\n"
        "for n in range(40):\n"
        "    assert store.record([(f'{name}{n}', Curve(1.0, (n + 1,) * 16)), ('all', Curve(1.0, (7,) * 16))])\n"
        "    store.lookup_all('')\n"
        "print(told)\n"
    )
    children = [in_child(code, store.path, name, tmp_path / "go", wait=False) for name in "abc"]
    (tmp_path / "go").touch()
    for child in children:
        assert child.communicate(timeout=120) == ("[]\n", "")
    found = store.lookup_all("")
    assert len(found) == 3 * 40 + 1
    assert found["b39"] == flat(40, 1.0)
    assert found["all"] == flat(7, 1.0)


def test_a_build_killed_while_it_records_leaves_a_history(store: History, told: list[str]) -> None:
    store.record([("kept", curve())])
    code = (
        "print('ready', flush=True)\n"
        "while True: store.record([(f'{n}', Curve(1.0, (n + 1,) * 16)) for n in range(2000)])\n"
    )
    for number in range(4):
        child = in_child(code, store.path, wait=False)
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.02 + 0.03 * number)
        child.kill()
        child.communicate()
        found = store.lookup_all("")
        assert found["kept"] == curve()
        assert len(found) in (1, 2001), "all of a build or nothing"
    assert store.record([("after", curve())])
    assert told == []


def test_a_history_that_is_kept_locked_is_done_without(
    store: History, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BUSY", 0.05)
    store.record([("a", curve())])
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert store.lookup_all("") == {}
    assert not store.record([("b", curve())])
    other.execute("ROLLBACK")
    other.close()
    assert told == [f"no memory history in this build: {store.path}: database is locked"]
    assert list(store.lookup_all("")) == ["a"]


# Damage.


def overwrite(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def rename_column(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("ALTER TABLE curves RENAME COLUMN points TO dots")
    database.commit()
    database.close()


def drop_table(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("DROP TABLE curves")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "damage",
    [
        overwrite(b"this is not a database, and longer than its header: " * 40),
        overwrite(b"SQLite format 3\0" + b"\xff" * 4000),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        rename_column,
        drop_table,
    ],
    ids=["text", "header", "cut", "column", "table"],
)
@pytest.mark.parametrize("first", ["lookup", "record"])
def test_a_broken_file_is_moved_aside(
    store: History, told: list[str], damage: Callable[[Path], object], first: str
) -> None:
    store.record([(f"k{number}", curve()) for number in range(200)])
    damage(store.path)
    broken = store.path.read_bytes()
    if first == "lookup":
        assert store.lookup_all("k") == {}
    assert store.record([("new", curve())])
    assert store.lookup_all("") == {"new": curve()}
    (aside,) = store.path.parent.glob("history.sqlite.broken-*")
    assert aside.read_bytes() == broken
    assert told == [f"the memory history was damaged and is learned anew; the old one is {aside}"]


def test_only_the_latest_broken_file_is_kept(store: History) -> None:
    store.path.parent.mkdir()
    (store.path.parent / "history.sqlite.broken-20200101-000000").touch()
    for _ in range(2):
        store.path.write_bytes(b"junk" * 500)
        assert store.lookup_all("") == {}
    assert len(list(store.path.parent.iterdir())) == 1


def test_damage_anywhere_costs_the_history_at_most(tmp_path: Path) -> None:
    """Random bytes at random places: a build gets sensible curves or none, and goes on."""
    sound = tmp_path / "sound"
    History(sound).record([(f"k{number}", curve()) for number in range(300)])
    content = sound.read_bytes()
    rng = random.Random(3)
    for number in range(150):
        path = tmp_path / "d" / f"{number}"
        path.parent.mkdir(exist_ok=True)
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 10, 200])):
            damaged[rng.randrange(len(damaged) if number % 2 else 200)] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        told: list[str] = []
        store = History(path, told.append)
        for found in store.lookup_all("").values():
            assert len(found.points) == 16
            assert min(found.points) >= 0
        store.record([("new", curve())])
        store.lookup_all("")
        assert len(told) <= 2


def test_two_builds_that_meet_a_broken_file_do_not_take_each_others_new_one(tmp_path: Path) -> None:
    code = (
        "while not Path(sys.argv[4]).exists(): time.sleep(0.001)\n"
        "assert store.record([(sys.argv[3], Curve(1.0, (5,) * 16))])\n"
    )
    for number in range(3):
        path = tmp_path / f"{number}" / "history.sqlite"
        path.parent.mkdir()
        path.write_bytes(b"junk" * 5000)
        go = path.parent / "go"
        children = [in_child(code, path, name, go, wait=False) for name in "abc"]
        time.sleep(0.3)
        go.touch()
        for child in children:
            assert child.communicate(timeout=60)[1] == ""
        assert sorted(History(path).lookup_all("")) == ["a", "b", "c"]


def test_a_newer_history_is_left_alone(store: History, told: list[str]) -> None:
    store.record([("a", curve())])
    database = sqlite3.connect(store.path)
    database.execute(f"PRAGMA user_version = {history.SCHEMA + 1}")
    database.close()
    before = store.path.read_bytes()
    assert store.lookup_all("") == {}
    assert not store.record([("b", curve())])
    assert store.path.read_bytes() == before
    (line,) = told
    assert line.startswith(f"no memory history in this build: {store.path}: a newer safe-ext-build has written it")
    assert line.endswith(f"(schema {history.SCHEMA + 1}; this one knows {history.SCHEMA})")


# Where it cannot be written.


@pytest.mark.parametrize("where", ["/proc/nowhere/history", "/dev/null/history", "file/history", "n\0n/h", "."])
def test_an_impossible_place_is_no_history(tmp_path: Path, told: list[str], where: str) -> None:
    (tmp_path / "file").touch()
    store = History(tmp_path / where, told.append)
    assert store.lookup_all("") == {}
    assert not store.record([("a", curve())])
    assert 1 <= len(told) <= 2
    assert all(line.startswith("no memory history in this build: ") for line in told)


def as_another_user(action: Callable[[], bool]) -> bool:
    """Run it in a child that is not root: root may write everywhere."""
    child = os.fork()
    if not child:
        right = False
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            right = action()
        finally:
            os._exit(not right)
    return os.waitpid(child, 0)[1] == 0


def test_a_read_only_home_is_read(told: list[str]) -> None:
    import shutil
    import tempfile

    # Not pytest's directory: another user may not enter it.
    home = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        store = History(home / "cache" / "history.sqlite", told.append)
        store.record([("a", curve())])
        for path, mode in ((home, 0o755), (store.path.parent, 0o555), (store.path, 0o444)):
            path.chmod(mode)
        assert as_another_user(lambda: store.lookup_all("") == {"a": curve()} and not told)
        assert as_another_user(lambda: not store.record([("b", curve())]) and len(told) == 1)
        fresh = History(home / "other" / "history.sqlite", told.append)
        assert as_another_user(lambda: fresh.lookup_all("") == {} and not told)
        assert as_another_user(lambda: not fresh.record([("b", curve())]) and "denied" in told[0])
        assert store.lookup_all("") == {"a": curve()}
    finally:
        store.path.parent.chmod(0o755)
        shutil.rmtree(home)


def test_a_full_disk_keeps_what_there_was(store: History) -> None:
    store.record([("a", curve())])
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"  # beyond, writing fails
        "done = store.record([(f'{n}', Curve(1.0, (n + 1,) * 16)) for n in range(2000)])\n"
        "print(done, len(told), told[0].startswith('no memory history in this build: '), flush=True)\n"
    )
    child = in_child(code, store.path, wait=False)
    assert child.communicate(timeout=60) == ("False 1 True\n", "")
    assert store.lookup_all("") == {"a": curve()}
    assert store.record([("b", curve())])
    assert not list(store.path.parent.glob("*broken*"))


def test_a_key_needs_no_database() -> None:
    """The supervisor makes keys; it never opens a history."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import safe_ext_build.schedule.history_key, safe_ext_build.machine.neighbours\n"
        "import safe_ext_build.machine.pressure\n"
        "print(sorted({'sqlite3', 'psutil', 'torch', 'setuptools', 'packaging', 'subprocess'} & set(sys.modules)))"
    )
    command = [sys.executable, "-I", "-S", "-E", "-c", code, HOME]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
