"""Against the kernel: limits that are really set, read by a process that is really in the group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from machine_trees import MIB

import safe_ext_build
from safe_ext_build.machine import Cgroup, MemoryLimit, ancestors, read_machine
from safe_ext_build.machine.files import read

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")

HOME = str(Path(safe_ext_build.__file__).parents[1])
FILES = {
    ("memory", 1): "memory.limit_in_bytes",
    ("memory", 2): "memory.max",
    ("pids", 1): "pids.max",
    ("pids", 2): "pids.max",
    ("cpu", 1): "cpu.cfs_quota_us",
    ("cpu", 2): "cpu.max",
}
# What a process in the group runs first; the test's own code follows.
CHILD = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from safe_ext_build.machine import oom_kills, read_machine
def show():
    machine = read_machine()
    return {
        "cpus": [machine.cpus.count, machine.cpus.affinity, machine.cpus.quota, machine.cpus.why],
        "budget": [machine.budget.name, machine.budget.total, machine.budget.available],
        "memory": [limit.name for limit in machine.memory],
        "pids_free": machine.pids_free,
        "oom": oom_kills(),
    }
"""


@contextmanager
def group_of_our_own(controller: str) -> Iterator[Cgroup]:
    """A new cgroup below this process's own; gone afterwards. Skips where the kernel does not let us."""
    parent = _parent(controller)
    name = f"seb-test-{os.getpid()}"
    group = Cgroup(f"{parent.name.rstrip('/')}/{name}", parent.directory / name, parent.version)
    with _made(controller, group.directory):
        yield group


def _parent(controller: str) -> Cgroup:
    """The nearest cgroup that can have children with this controller (v2: where it is handed down)."""
    groups = ancestors(controller)
    for group in groups:
        if group.version == 1 or controller in read(group.directory / "cgroup.subtree_control").split():
            return group
    pytest.skip(f"the real {controller} controller is not to be seen from here: {groups}")


@contextmanager
def _made(controller: str, directory: Path) -> Iterator[None]:
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"the real {controller} controller is not writable here: {error}")
    try:
        yield
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    """Children first. A cgroup stays busy for some moments after the last process in it has ended."""
    for child in [path for path in directory.iterdir() if path.is_dir()]:
        _remove(child)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with suppress(OSError):
            directory.rmdir()
            return
        time.sleep(0.02)
    directory.rmdir()


def below(controller: str, outer: Cgroup) -> Cgroup:
    """A cgroup below `outer`, which removes it along with itself."""
    if outer.version == 2:
        (outer.directory / "cgroup.subtree_control").write_text(f"+{controller}")
    inner = outer.directory / "inner"
    inner.mkdir()
    return Cgroup(f"{outer.name}/inner", inner, outer.version)


def set_limit(controller: str, group: Cgroup, value: object) -> None:
    (group.directory / FILES[controller, group.version]).write_text(str(value))


def in_group(group: Cgroup, code: str = "print(json.dumps(show()))", *, through: Sequence[str] = ()) -> Any:
    """What a Python in the group prints; `through` is a command that runs another."""
    enter = "sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group.directory)
    return json.loads(python(CHILD + code, through=(*enter, *through)))


def python(code: str, *, through: Sequence[str] = ()) -> str:
    command = [*through, sys.executable, "-c", code, HOME]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def namespaces(*options: str) -> tuple[str, ...]:
    """The command that runs another in namespaces of its own, as containers do; skips where it may not."""
    command = ("unshare", *options)
    try:
        subprocess.run([*command, "true"], capture_output=True, text=True, timeout=60, check=True)
    except OSError as error:
        pytest.skip(f"namespaces cannot be tried here: {error}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"namespaces cannot be made here: {error.stderr.strip()}")
    return command


def test_memory_limit() -> None:
    limit = 512 * MIB
    with group_of_our_own("memory") as group:
        set_limit("memory", group, limit)
        name, total, available = in_group(group)["budget"]
    assert (name, total) == (f"cgroup {group.name}", limit)
    assert limit - 64 * MIB < available < limit


def test_memory_limit_of_an_ancestor() -> None:
    with group_of_our_own("memory") as outer:
        set_limit("memory", outer, 256 * MIB)
        inner = below("memory", outer)
        seen = in_group(inner)
        set_limit("memory", inner, 512 * MIB)
        both = in_group(inner)
    assert seen["budget"][:2] == both["budget"][:2] == [f"cgroup {outer.name}", 256 * MIB]
    assert both["memory"][1:3] == [f"cgroup {inner.name}", f"cgroup {outer.name}"]


def test_memory_limit_in_a_cgroup_namespace() -> None:
    """The mount is the host's and begins above the namespace, where all that is told of our cgroup is `/`."""
    code = "print(json.dumps([open('/proc/self/cgroup').read(), show()]))"
    through = namespaces("--cgroup")
    with group_of_our_own("memory") as outer:
        set_limit("memory", outer, 256 * MIB)
        told, machine = in_group(below("memory", outer), code, through=through)
    assert ("memory:/\n" if outer.version == 1 else "0::/\n") in told
    assert machine["budget"][0].endswith(f"/{outer.directory.name}")
    assert machine["budget"][1] == 256 * MIB


def test_memory_limit_of_a_pod_that_is_hidden() -> None:
    """As Docker does on v1: our own cgroup is mounted over all the others."""
    with group_of_our_own("memory") as outer:
        if outer.version == 2:
            pytest.skip("v2 tells nothing of a limit above what is mounted")
        cover = 'mount --bind "$0" "$1" && shift && exec "$@"'
        set_limit("memory", outer, 256 * MIB)
        inner = below("memory", outer)
        over = str(ancestors("memory")[-1].directory)
        through = (*namespaces("--mount"), "sh", "-c", cover, str(inner.directory), over)
        machine = in_group(inner, through=through)
    assert machine["memory"] == ["host", f"cgroup {inner.name}"]
    assert machine["budget"][:2] == [f"cgroup {inner.name}", 256 * MIB]


def test_memory_in_use_is_not_available() -> None:
    code = """
before = read_machine().budget.available
ballast = bytearray(b"x") * (100 << 20)
print(json.dumps(before - read_machine().budget.available))
"""
    with group_of_our_own("memory") as group:
        set_limit("memory", group, 512 * MIB)
        used = in_group(group, code)
    assert 95 * MIB < used < 110 * MIB


def test_oom_kill_is_counted() -> None:
    """A child eats more than the group has; its parent, in the same group, sees the counters rise."""
    code = """
before = oom_kills()
pid = os.fork()
if not pid:
    with open("/proc/self/oom_score_adj", "w") as adjust:
        adjust.write("1000")
    ballast = bytearray(b"x") * (512 << 20)
    os._exit(0)
signal = os.WTERMSIG(os.waitpid(pid, 0)[1])
print(json.dumps([signal, before, oom_kills()]))
"""
    with group_of_our_own("memory") as group:
        set_limit("memory", group, 64 * MIB)
        _forbid_swap(group, 64 * MIB)
        signal, before, after = in_group(group, code)
    own = f"cgroup {group.name}"
    assert signal == 9
    assert after[own] - before[own] == 1
    assert after["host"] > before["host"]


def _forbid_swap(group: Cgroup, limit: int) -> None:
    name, value = ("memory.memsw.limit_in_bytes", limit) if group.version == 1 else ("memory.swap.max", 0)
    with suppress(OSError):  # the kernel may be built without
        (group.directory / name).write_text(str(value))


@pytest.mark.parametrize("quota", [50_000, 150_000, 100_000])
def test_cpu_quota(quota: int) -> None:
    with group_of_our_own("cpu") as group:
        set_limit("cpu", group, quota if group.version == 1 else f"{quota} 100000")
        count, affinity, seen, why = in_group(group)["cpus"]
    assert seen == quota / 100_000
    assert count == min(affinity, -(-quota // 100_000))
    assert "cgroup quota" in why or count == affinity


def test_cpu_quota_of_an_ancestor() -> None:
    with group_of_our_own("cpu") as outer:
        set_limit("cpu", outer, 50_000 if outer.version == 1 else "50000 100000")
        seen = in_group(below("cpu", outer))["cpus"]
    assert seen[2] == 0.5


def test_pids_limit() -> None:
    with group_of_our_own("pids") as group:
        set_limit("pids", group, 20)
        assert in_group(group)["pids_free"] == 19


def test_pids_limit_of_an_ancestor() -> None:
    with group_of_our_own("pids") as outer:
        set_limit("pids", outer, 10)
        inner = below("pids", outer)
        set_limit("pids", inner, 20)
        assert in_group(inner)["pids_free"] == 9


def test_affinity() -> None:
    os_call = f"os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])"
    cpus = json.loads(python(f"{CHILD}{os_call}; print(json.dumps(show()))"))["cpus"]
    assert cpus[:2] == [1, 1]
    assert cpus[3] == ("1 CPU" if os.cpu_count() == 1 else f"1 of {os.cpu_count()} CPUs (affinity)")


def test_this_machine() -> None:
    """What the kernel's call and the kernel's files say is the same."""
    real, from_files = read_machine(), read_machine(Path("/proc/self/root"))
    assert real.cpus == from_files.cpus
    assert [limit.name for limit in real.memory] == [limit.name for limit in from_files.memory]
    host = real.memory[0]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host == MemoryLimit("host", pages, host.available)
    assert 0 < real.budget.available <= host.available
