"""Nothing that a file system can hold, or not hold, makes a reader raise."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machine_trees import CGROUP, GIB, grow, host, memory_v1, memory_v2, mount_v1, mount_v2, mounts, own, pids

import safe_ext_build
from safe_ext_build.machine import Cpus, Machine, MemoryLimit, ancestors, memory, oom_kills, read_machine

HERE = "/a/b"
V2_TREE = (
    host(cpus=4),
    own(f"0::{HERE}"),
    mounts(mount_v2()),
    memory_v2(CGROUP + HERE, 8 * GIB, GIB),
    memory_v2(f"{CGROUP}/a", 4 * GIB, GIB),
    pids(CGROUP + HERE, 100, 10),
    {f"{CGROUP}{HERE}/cpu.max": "100000 100000"},
)
V1_TREE = (
    host(cpus=4),
    own(f"4:memory:{HERE}"),
    mounts(mount_v1("memory")),
    memory_v1(HERE, 8 * GIB, GIB),
    memory_v1("/a", 4 * GIB, GIB),
)
JUNK = {
    "empty": b"",
    "words": b"lorem ipsum\n\n: : :\n - - -\n",
    "bytes": b"\xff\xfe\x00\x80\n\x00 \x00",
    "digits": b"9" * 6000,
    "negative": b"-5 -5\nMemTotal: -1 kB\n",
    "zero": b"0 0\n",
}


def test_nothing_there(tmp_path: Path) -> None:
    assert read_machine(tmp_path) == Machine(Cpus(1, 1, None, "1 CPU"), (), None, wsl=False)
    assert oom_kills(tmp_path) == {}
    assert ancestors("memory", tmp_path / "none") == ()


@pytest.mark.parametrize("tree", [V1_TREE, V2_TREE], ids=["v1", "v2"])
@pytest.mark.parametrize("junk", [*JUNK, "missing", "directory", "loop"])
def test_each_file_in_turn(tmp_path: Path, tree: tuple[dict[str, str], ...], junk: str) -> None:
    """A file spoilt costs what it told, and no reader raises."""
    root = grow(tmp_path, *tree)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        _spoil(path, junk)
        machine = read_machine(root)
        assert machine.cpus.count >= 1
        assert all(0 <= limit.available <= limit.total for limit in machine.memory)
        assert all(count >= 0 for count in oom_kills(root).values())
        _mend(path, content)
    assert read_machine(root).budget == MemoryLimit("cgroup /a", 4 * GIB, 3 * GIB)


def _spoil(path: Path, junk: str) -> None:
    path.unlink()
    if junk == "directory":
        path.mkdir()
    elif junk == "loop":
        path.symlink_to(path)
    elif junk != "missing":
        path.write_bytes(JUNK[junk])


def _mend(path: Path, content: bytes) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(content)


def test_a_spoilt_group_leaves_the_others(tmp_path: Path) -> None:
    root = grow(tmp_path, *V2_TREE, {f"{CGROUP}/a/memory.current": "junk"})
    assert [limit.name for limit in read_machine(root).memory] == ["host", f"cgroup {HERE}"]


def test_unknown_cache_counts_as_none(tmp_path: Path) -> None:
    root = grow(tmp_path, *V2_TREE)
    (root / CGROUP / "a/memory.stat").unlink()
    assert read_machine(root).budget == MemoryLimit("cgroup /a", 4 * GIB, 3 * GIB)


def test_group_vanishes_between_discovery_and_reading(tmp_path: Path) -> None:
    root = grow(tmp_path, *V2_TREE)
    groups = ancestors("memory", root)
    before = [limit.name for limit in memory.read_memory(root, groups)]
    shutil.rmtree(root / CGROUP / "a/b")
    after = [limit.name for limit in memory.read_memory(root, groups)]
    assert (before, after) == (["host", f"cgroup {HERE}", "cgroup /a"], ["host", "cgroup /a"])
    assert oom_kills(root, groups) == {"host": 5}


def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    root = grow(tmp_path, host(), mounts(mount_v2()))
    (root / "proc/self/cgroup").write_bytes(b"0::/caf\xe9\n")
    directory = root / CGROUP / "caf\udce9"
    directory.mkdir(parents=True)
    grow(directory, memory_v2(".", 4 * GIB, 0))
    assert read_machine(root).budget.available == 4 * GIB


def test_where_proc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil, which needs to be there, tells what macOS and Windows have."""
    total = memory.read_memory()[0].total
    monkeypatch.setattr(memory, "read", lambda path: "")
    (limit,) = memory.read_memory(groups=())
    assert (limit.name, limit.total) == ("host", total)
    assert 0 < limit.available < total


def test_where_proc_and_psutil_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "read", lambda path: "")
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert memory.read_memory(groups=()) == ()


def test_supervisor_can_import_it() -> None:
    """The standard library only, and none of what is slow to load."""
    code = (
        "import sys; before = set(sys.modules); sys.path.insert(0, sys.argv[1]);"
        "from safe_ext_build.machine import read_machine, oom_kills; read_machine(); oom_kills();"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    home = str(Path(safe_ext_build.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-E", "-c", code, home]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.split()
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"safe_ext_build"}
    assert not {"subprocess", "socket", "json", "asyncio", "tempfile"} & set(loaded)
