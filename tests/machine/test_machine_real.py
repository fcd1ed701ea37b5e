"""Against the kernel: limits that are really set, read by a process that is really in the group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from machine_trees import MIB
from real_cgroups import Group, made

import safe_ext_build
from safe_ext_build.machine import MemoryLimit, ancestors, read_machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")

HOME = str(Path(safe_ext_build.__file__).parents[1])
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


def in_group(group: Group, code: str = "print(json.dumps(show()))", *, through: Sequence[str] = ()) -> Any:
    """What a Python in the group prints; `through` is a command that runs another."""
    return json.loads(python(CHILD + code, through=group.inside(through)))


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
    with made("memory") as group:
        group.set_limit(limit)
        name, total, available = in_group(group)["budget"]
    assert (name, total) == (f"cgroup {group.name}", limit)
    assert limit - 64 * MIB < available < limit


def test_memory_limit_of_an_ancestor() -> None:
    with made("memory") as outer:
        outer.set_limit(256 * MIB)
        inner = outer.child()
        seen = in_group(inner)
        inner.set_limit(512 * MIB)
        both = in_group(inner)
    assert seen["budget"][:2] == both["budget"][:2] == [f"cgroup {outer.name}", 256 * MIB]
    assert both["memory"][1:3] == [f"cgroup {inner.name}", f"cgroup {outer.name}"]


def test_memory_limit_in_a_cgroup_namespace() -> None:
    """The mount is the host's and begins above the namespace, where all that is told of our cgroup is `/`."""
    code = "print(json.dumps([open('/proc/self/cgroup').read(), show()]))"
    through = namespaces("--cgroup")
    with made("memory") as outer:
        outer.set_limit(256 * MIB)
        told, machine = in_group(outer.child(), code, through=through)
    assert ("memory:/\n" if outer.version == 1 else "0::/\n") in told
    assert machine["budget"][0].endswith(f"/{outer.directory.name}")
    assert machine["budget"][1] == 256 * MIB


def test_memory_limit_of_a_pod_that_is_hidden() -> None:
    """As Docker does on v1: our own cgroup is mounted over all the others."""
    with made("memory") as outer:
        if outer.version == 2:
            pytest.skip("v2 tells nothing of a limit above what is mounted")
        cover = 'mount --bind "$0" "$1" && shift && exec "$@"'
        outer.set_limit(256 * MIB)
        inner = outer.child()
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
    with made("memory") as group:
        group.set_limit(512 * MIB)
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
    with made("memory") as group:
        group.set_limit(64 * MIB)
        group.forbid_swap(64 * MIB)
        signal, before, after = in_group(group, code)
    own = f"cgroup {group.name}"
    assert signal == 9
    assert after[own] - before[own] == 1
    assert after["host"] > before["host"]


@pytest.mark.parametrize("quota", [50_000, 150_000, 100_000])
def test_cpu_quota(quota: int) -> None:
    with made("cpu") as group:
        group.set_limit(quota if group.version == 1 else f"{quota} 100000")
        count, affinity, seen, why = in_group(group)["cpus"]
    assert seen == quota / 100_000
    assert count == min(affinity, -(-quota // 100_000))
    assert "cgroup quota" in why or count == affinity


def test_cpu_quota_of_an_ancestor() -> None:
    with made("cpu") as outer:
        outer.set_limit(50_000 if outer.version == 1 else "50000 100000")
        seen = in_group(outer.child())["cpus"]
    assert seen[2] == 0.5


def test_pids_limit() -> None:
    with made("pids") as group:
        group.set_limit(20)
        assert in_group(group)["pids_free"] == 19


def test_pids_limit_of_an_ancestor() -> None:
    with made("pids") as outer:
        outer.set_limit(10)
        inner = outer.child()
        inner.set_limit(20)
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
