"""The farm that the tests make: it is one, it can be hurt, and nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import farm_harness
import pytest
import real_cgroups

from safe_ext_build.errors import FarmError
from safe_ext_build.farm import client

SCCACHE = str(farm_harness.SCCACHE_DIST.with_name("sccache"))
NAMES = "ip netns list; ip -o link"
KILLED = """
import farm_harness, os, pathlib, sys
with farm_harness.farm(pathlib.Path(sys.argv[1])) as farm:
    print(farm.net.name, *farm.servers[0].processes(), flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[farm_harness.Farm]:
    place = tmp_path_factory.mktemp("farm")
    with farm_harness.farm(place, servers=2, memory=256 << 20, cpus=1) as running:
        yield running
        pids = [pid for machine in (running.scheduler, *running.servers) for pid in machine.processes()]
    assert pids and not any(Path("/proc", str(pid)).exists() for pid in pids)
    left = subprocess.run(NAMES, shell=True, capture_output=True, text=True, check=True)
    assert running.net.name not in left.stdout


def ask(farm: farm_harness.Farm, place: Path) -> client.Status:
    found = client.configured({"SCCACHE_CONF": str(farm.client_config(place / "config"))})
    assert found
    return client.ask(found, timeout=0.5)


def refused(farm: farm_harness.Farm, place: Path) -> str:
    with pytest.raises(FarmError) as caught:
        ask(farm, place)
    return f"{caught.value.code} {caught.value}"


@contextlib.contextmanager
def sccache(farm: farm_harness.Farm, place: Path) -> Iterator[dict[str, str]]:
    """The environment of a client with a server of its own."""
    own = {
        "SCCACHE_CONF": str(farm.client_config(place / "config")),
        "SCCACHE_DIR": str(place / "cache"),
        "SCCACHE_SERVER_UDS": str(place / "socket"),
    }
    environ = {**os.environ, **own}
    try:
        yield environ
    finally:
        subprocess.run([SCCACHE, "--stop-server"], env=environ, check=True, capture_output=True)


def test_it_takes_work(farm: farm_harness.Farm, tmp_path: Path) -> None:
    assert ask(farm, tmp_path) == client.Status(servers=2, cpus=2, in_progress=0)
    (tmp_path / "a.c").write_text("int f(void) { return 1; }\n")
    with sccache(farm, tmp_path) as environ:
        command = [SCCACHE, "gcc", "-c", "a.c", "-o", "a.o"]
        subprocess.run(command, cwd=tmp_path, env=environ, check=True, capture_output=True)
        show = [SCCACHE, "--show-stats", "--stats-format=json"]
        said = subprocess.run(show, env=environ, check=True, capture_output=True)
    stats = json.loads(said.stdout)["stats"]
    assert sum(stats["dist_compiles"].values()) == 1 and not stats["dist_errors"], stats
    assert next(iter(stats["dist_compiles"])).partition(":")[0] in {one.address for one in farm.servers}


def test_its_memory_ends(farm: farm_harness.Farm) -> None:
    hog = farm.servers[0].inside([sys.executable, "-c", "x = b'x' * (1 << 29)"])
    assert subprocess.run(hog, check=False).returncode == -signal.SIGKILL
    assert (farm.kernel_kills(0), farm.kernel_kills(1)) == (1, 0)


def test_the_scheduler_may_be_out_of_reach(farm: farm_harness.Farm, tmp_path: Path) -> None:
    farm.firewall(farm.scheduler)
    assert refused(farm, tmp_path).startswith("SEB-9005") and "no answer within 0.5 s" in refused(farm, tmp_path)
    farm.no_firewall(farm.scheduler)
    farm.scheduler.signal(signal.SIGSTOP)
    assert "says nothing within 0.5 s: it hangs" in refused(farm, tmp_path)
    farm.scheduler.signal(signal.SIGCONT)
    assert ask(farm, tmp_path).servers == 2


def test_the_scheduler_may_end(farm: farm_harness.Farm, tmp_path: Path) -> None:
    farm.scheduler_down()
    assert refused(farm, tmp_path).startswith("SEB-9004 nobody listens at http://198.18.")
    farm.scheduler_up()
    farm.wait(servers=0)
    assert refused(farm, tmp_path).startswith("SEB-9010 no server is registered")
    farm.restart(1)
    farm.wait(servers=1)
    farm.stop(1)
    until = time.monotonic() + 5
    while farm.servers[1].processes() and time.monotonic() < until:
        assert farm.servers[1].process
        farm.servers[1].process.poll()
    assert farm.servers[1].processes() == []


def test_what_a_killed_run_leaves_is_cleared(tmp_path: Path) -> None:
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, env=paths, check=False)
    name, *pids = killed.stdout.split()
    assert killed.returncode == -signal.SIGKILL and pids, killed.stderr
    until = time.monotonic() + 5
    while any(Path("/proc", pid).exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    farm_harness.clear()
    pid = name.removeprefix("sebf").partition("x")[0]
    assert not list(real_cgroups.parent("memory").directory.glob(f"seb-test-{pid}-*"))
    assert name not in subprocess.run(NAMES, shell=True, capture_output=True, text=True, check=True).stdout
    assert not any(Path("/proc", pid).exists() for pid in pids)
