"""The decisions of the machine room, as tables."""

from __future__ import annotations

import pytest
from machine_trees import GIB

from safe_ext_build.machine import Cpus, Machine, MemoryLimit, floor, reserve
from safe_ext_build.machine.cgroups import _below, _membership, _parse_mount
from safe_ext_build.machine.cpus import _parse_list, decide_cpus
from safe_ext_build.machine.files import field, number
from safe_ext_build.machine.memory import _least, _left


@pytest.mark.parametrize(
    ("total", "reserved", "lowest"),
    [
        (0, GIB, GIB // 2),
        (2 * GIB, GIB, GIB // 2),
        (16 * GIB, GIB, GIB // 2),
        (100 * GIB, 6 * GIB, 3 * GIB),
        (1000 * GIB, 60 * GIB, 30 * GIB),
    ],
)
def test_reserve_and_floor(total: int, reserved: int, lowest: int) -> None:
    assert (reserve(total), floor(total)) == (reserved, lowest)


@pytest.mark.parametrize(
    ("online", "affinity", "quota", "count", "why"),
    [
        (64, 64, None, 64, "64 CPUs"),
        (1, 1, None, 1, "1 CPU"),
        (64, 64, 16.0, 16, "16 of 64 CPUs (cgroup quota)"),
        (64, 64, 0.5, 1, "1 of 64 CPUs (cgroup quota 0.5)"),
        (64, 64, 0.001, 1, "1 of 64 CPUs (cgroup quota 0.001)"),
        (64, 64, 1.5, 2, "2 of 64 CPUs (cgroup quota 1.5)"),
        (64, 8, None, 8, "8 of 64 CPUs (affinity)"),
        (64, 8, 16.0, 8, "8 of 64 CPUs (affinity)"),
        (64, 8, 4.0, 4, "4 of 64 CPUs (cgroup quota)"),
        (64, 64, 64.0, 64, "64 CPUs"),
        (2, 2, 1.5, 2, "2 CPUs"),
        (0, 4, None, 4, "4 CPUs"),
        (0, 0, None, 1, "1 CPU"),
        (4, 4, 0.0, 1, "1 of 4 CPUs (cgroup quota 0)"),
    ],
)
def test_cpus(online: int, affinity: int, quota: float | None, count: int, why: str) -> None:
    assert decide_cpus(online, affinity, quota) == Cpus(count, max(1, affinity), quota, why)


@pytest.mark.parametrize(
    ("limit", "usage", "inactive", "left"),
    [
        (8 * GIB, 3 * GIB, 0, 5 * GIB),
        (8 * GIB, 3 * GIB, GIB, 6 * GIB),
        (8 * GIB, 9 * GIB, 0, 0),
        (8 * GIB, GIB, 2 * GIB, 8 * GIB),  # read at two moments, the figures need not agree
        (0, 0, 0, 0),
    ],
)
def test_left(limit: int, usage: int, inactive: int, left: int) -> None:
    assert _left(limit, usage, inactive) == left


@pytest.mark.parametrize(
    ("limits", "least"),
    [
        ((None, None), None),
        ((GIB, None), GIB),
        ((2 * GIB, GIB), GIB),
        ((9223372036854771712, GIB), GIB),
        ((9223372036854771712, 9223372036854710272), None),  # pages of 4 and of 64 KiB
        ((9223372036854775807, 18446744073709551615), None),
        ((0, GIB), 0),
    ],
)
def test_least(limits: tuple[int | None, ...], least: int | None) -> None:
    assert _least(*limits) == least


def test_budget_is_the_domain_with_least_available() -> None:
    host, small = MemoryLimit("host", 64 * GIB, 3 * GIB), MemoryLimit("cgroup /a", 8 * GIB, 4 * GIB)
    cpus = Cpus(1, 1, None, "1 CPU")
    assert Machine(cpus, (small, host), None, wsl=False).budget == host
    assert Machine(cpus, (), None, wsl=False).budget == MemoryLimit("unknown", 0, 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12\n", 12),
        ("0", 0),
        ("max", None),
        ("-1", None),
        ("", None),
        ("4.0", None),
        ("1_0", None),
        ("٣", None),
        ("9" * 5000, None),
    ],
)
def test_number(text: str, value: int | None) -> None:
    assert number(text) == value


def test_field_matches_the_whole_key() -> None:
    text = "oom_kill_disable 1\n\noom_kill\nunder_oom 0\noom_kill 7\nMemTotal:  12 kB\nbad x"
    assert [field(text, key) for key in ("oom_kill", "MemTotal", "oom", "bad")] == [7, 12, None, None]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        (" 5\n", {5}),
        ("", set()),
        ("x-3,1", {1}),
        ("3-1", set()),
        ("0-99999999999", set()),
        ("-", set()),
    ],
)
def test_cpu_list(text: str, cpus: set[int]) -> None:
    assert _parse_list(text) == cpus


@pytest.mark.parametrize(
    ("top", "path", "way"),
    [
        ("/", "/", (0, ())),
        ("/", "/a/b", (0, ("a", "b"))),
        ("/docker/x", "/docker/x", (0, ())),
        ("/docker/x", "/docker/x/y", (0, ("y",))),
        ("/docker/x", "/docker/xy", None),
        ("/docker/x", "/", None),
        ("/", "/../a", None),
        ("/..", "/../a", (0, ("a",))),
        ("/../..", "/../../a/b", (0, ("a", "b"))),
        ("/../..", "/", (2, ())),
        ("/../..", "/a", (2, ("a",))),
        ("/../..", "/../a", (1, ("a",))),
        ("/..", "/../../a", None),
        ("/../x", "/", None),
        ("", "/a", None),
        ("/", "", None),
        ("/", "/a:b", (0, ("a:b",))),
    ],
)
def test_way_below_a_mount(top: str, path: str, way: tuple[int, tuple[str, ...]] | None) -> None:
    assert _below(top, path) == way


@pytest.mark.parametrize(
    ("text", "membership"),
    [
        ("4:memory:/a\n0::/b", (1, "/a")),
        ("4:cpu,memory:/a:b\n0::/b", (1, "/a:b")),
        ("4:memoryx:/a\n0::/b", (2, "/b")),
        ("9:name=memory:/a\n0::/b", (2, "/b")),
        ("0::/", (2, "/")),
        ("", (2, "")),
        ("junk\n::\n:", (2, "")),
    ],
)
def test_membership(text: str, membership: tuple[int, str]) -> None:
    assert _membership("memory", text) == membership


def test_mountinfo_line() -> None:
    line = "35 31 0:32 /a\\134b /sys/my\\040cg rw shared:1 master:2 - cgroup cgroup rw,cpu,cpuacct"
    mount = _parse_mount(line)
    assert mount is not None
    assert (mount.top, mount.point, mount.version) == ("/a\\b", "/sys/my cg", 1)
    assert {"cpu", "cpuacct"} < mount.controllers


@pytest.mark.parametrize("line", ["", " - ", "1 2 3 - cgroup cgroup rw", "1 2 0:1 / /x rw - tmpfs cgroup rw"])
def test_mountinfo_line_of_no_use(line: str) -> None:
    assert _parse_mount(line) is None
