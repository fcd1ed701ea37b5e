"""PSI: read from trees that look like machines, and from this one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from machine_trees import CGROUP, Tree, grow, host, mount_v1, mount_v2, mounts, own

from safe_ext_build.machine.cgroups import ancestors
from safe_ext_build.machine.pressure import Pressure, pressure_groups, read_pressure

CALM = Pressure(0.0, 0.0)


def psi(some: float | str, full: float | str) -> str:
    rest = "avg60=99.00 avg300=99.00 total=123456"
    return f"some avg10={some} {rest}\nfull avg10={full} {rest}"


def stalled(at: str, some: float | str, full: float | str) -> Tree:
    name = "proc/pressure/memory" if at == "host" else f"{at}/memory.pressure"
    return {name: psi(some, full)}


V2 = (mounts(mount_v2()), own("0::/user.slice/build.scope"))


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        ((), CALM),
        ((stalled("host", "12.50", "3.25"),), Pressure(12.5, 3.25)),
        ((*V2, stalled("host", "1.00", "0.50")), Pressure(1.0, 0.5)),
        ((*V2, stalled(f"{CGROUP}/user.slice/build.scope", "40.00", "9.00")), Pressure(40.0, 9.0)),
        # An ancestor binds as well, and each figure is the worst of its kind, wherever that was.
        (
            (
                *V2,
                stalled("host", "2.00", "2.00"),
                stalled(f"{CGROUP}/user.slice", "60.00", "0.00"),
                stalled(f"{CGROUP}/user.slice/build.scope", "40.00", "9.00"),
            ),
            Pressure(60.0, 9.0),
        ),
        # A neighbour's cgroup does not.
        ((*V2, stalled(f"{CGROUP}/user.slice", "0.00", "0.00"), stalled(f"{CGROUP}/other", "90", "90")), CALM),
    ],
)
def test_the_worst_that_applies(tmp_path: Path, trees: tuple[Tree, ...], expected: Pressure) -> None:
    assert read_pressure(grow(tmp_path, host(), *trees)) == expected


def test_a_hybrid_machine_has_psi_though_v1_has_the_memory_controller(tmp_path: Path) -> None:
    lines = own("4:memory:/job", "0::/unified-job")
    hybrid = mounts(mount_v1("memory"), mount_v2(point=f"/{CGROUP}/unified"))
    trees = (
        lines,
        hybrid,
        stalled(f"{CGROUP}/unified/unified-job", "7.00", "1.00"),
        # A file that no kernel has, in a hierarchy that does not count.
        stalled(f"{CGROUP}/memory/job", "80.00", "80.00"),
    )
    root = grow(tmp_path, host(), *trees)
    assert read_pressure(root) == Pressure(7.0, 1.0)
    assert read_pressure(root, groups=ancestors("memory", root)) == CALM
    assert read_pressure(root, groups=pressure_groups(root)) == Pressure(7.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "\x00" * 100, "some", "some avg10=", "some avg10=nan avg60=0", "some avg10=inf "),
        *("some avg10=-3.00 x", "avg10=9.00 avg60=9.00", "some avg60=9.00 avg10=9.00", "xsome avg10=9.00 "),
        "some avg10=" + "9" * 400,
    ],
)
def test_junk_is_calm(tmp_path: Path, text: str) -> None:
    assert read_pressure(grow(tmp_path, host(), {"proc/pressure/memory": text})) == CALM


def test_more_than_everything_is_everything(tmp_path: Path) -> None:
    assert read_pressure(grow(tmp_path, host(), stalled("host", "999.99", "0.00"))).some_avg10 == 100.0


@pytest.mark.skipif(sys.platform != "linux", reason="PSI is Linux's")
def test_this_machine() -> None:
    pressure = read_pressure()
    assert 0.0 <= pressure.full_avg10 <= 100.0
    assert 0.0 <= pressure.some_avg10 <= 100.0
    if Path("/proc/pressure/memory").exists():
        line = Path("/proc/pressure/memory").read_text().splitlines()[0]
        assert line.startswith("some avg10=")
