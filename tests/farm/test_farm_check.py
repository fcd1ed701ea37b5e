"""Each way in which a farm is broken, brought about, and what is said of it."""

from __future__ import annotations

import email.utils
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import farm_harness
import farm_stub
import pytest
from farm_harness import Farm, Machine

from safe_ext_build.cli import checkup, farm_checkup
from safe_ext_build.cli.checkup import Finding
from safe_ext_build.cli.main import main
from safe_ext_build.farm import server
from safe_ext_build.launcher import tools
from safe_ext_build.machine import read_machine

GIB = 1 << 30


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm_harness.farm(tmp_path_factory.mktemp("farm"), servers=2, cpus=1) as running:
        yield running


def check(machine: Machine, place: Path, *before: str) -> list[dict[str, Any]]:
    """What a check says on one of the farm's machines; `before`: what it runs within."""
    command = [*before, sys.executable, "-m", "safe_ext_build", "farm", "check", "--json", "--dir", str(place)]
    environ = {**os.environ, "SCCACHE_CONF": "/nowhere"}
    done = subprocess.run(machine.inside(command), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    found: list[dict[str, Any]] = document["findings"]
    assert document["problems"] == sum(one["status"] == "problem" for one in found)
    assert done.returncode == (document["problems"] > 0)
    return found


def problems(found: list[dict[str, Any]]) -> dict[str, str]:
    assert all(one["fix"] for one in found if one["status"] == "problem")
    return {one["text"]: one["fix"] for one in found if one["status"] == "problem"}


def edited(farm: Farm, place: Path, old: str, new: str) -> Path:
    """The first server's configuration, with something else in it."""
    text = farm.server_config(0).read_text()
    assert old in text
    (place / "server.toml").write_text(text.replace(old, new))
    return place


def test_a_server_that_works(farm: Farm) -> None:
    found = check(farm.servers[0], farm.server_config(0).parent)
    assert problems(found) == {}
    said = "\n".join(one["text"] for one in found)
    for words in ("makes its sandbox here", "overlayfs can be mounted for", "it runs, and listens on"):
        assert words in said
    assert "the scheduler takes its token" in said and "the clocks agree" in said
    assert farm.server_token not in said
    assert farm.status().servers == 2, "the check is no server"


def test_a_scheduler_that_works_and_one_that_does_not(farm: Farm) -> None:
    place = farm.scheduler_config.parent
    found = check(farm.scheduler, place)
    assert problems(found) == {}
    assert "it answers: 2 servers with 2 CPUs" in [one["text"] for one in found]
    (elsewhere,) = problems(check(farm.servers[0], place))
    assert elsewhere.startswith(f"this machine has no address {farm.scheduler.address} (public_addr in ")


@pytest.mark.parametrize(
    ("old", "new", "said", "fix"),
    [
        ("/usr/bin/bwrap", "/usr/bin/bwrab", "bubblewrap cannot be run: /usr/bin/bwrab", "apt install bubblewrap"),
        ("/usr/bin/bwrap", "/bin/true", "/bin/true is no bubblewrap", "apt install bubblewrap"),
        ("/usr/bin/bwrap", "{place}/bwrap", "{place}/bwrap is bubblewrap 0.2.1, older than 0.3", "apt install"),
        (
            "/build",
            "",
            "(build_dir) holds build, and sccache-dist deletes all that is there",
            "not exist yet",
        ),
        ('"/', '"/none/', "(build_dir) cannot be made", "mkdir -p /none/"),
        (":10501", ":10502", ":10502: nobody listens there", "systemctl start sccache-server"),
        ('token = "', 'token = "0', "the scheduler does not take this server's token", "farm init server --force"),
        (":10600", ":10601", "nobody listens at http://198.18.", "systemctl start sccache-scheduler"),
        ('type = "overlay"', 'type = "overlap"', "compilers run in overlap, which is not looked at here", ""),
        (
            "[builder]",
            "[bilder]",
            "server.toml is no configuration of sccache-dist: it lacks 'builder'",
            "--force",
        ),
    ],
)
def test_a_server_that_is_told_wrong(old: str, new: str, said: str, fix: str, farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho bubblewrap 0.2.1\n")
    (tmp_path / "bwrap").chmod(0o755)
    place = edited(farm, tmp_path, old, new.format(place=tmp_path))
    found = [one for one in check(farm.servers[0], place) if said.format(place=tmp_path) in one["text"]]
    assert len(found) == 1 and fix in found[0]["fix"]
    assert farm.server_token not in json.dumps(found)


def test_a_server_at_another_address_is_told_apart_from_a_wrong_token(farm: Farm) -> None:
    found = problems(check(farm.servers[1], farm.server_config(0).parent))
    own, seen = sorted(found)
    assert seen.startswith("this machine has no address") and own.startswith("the scheduler sees this machine at")
    assert "X-Real-IP" in found[own]


def test_a_machine_that_allows_no_user_namespaces(farm: Farm) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    within = ["unshare", "-r", "sh", "-c", forbid, "sh"]
    found = problems(check(farm.servers[0], farm.server_config(0).parent, *within))
    (said,) = (text for text in found if text.startswith("bubblewrap may not make its namespaces here: "))
    assert "user.max_user_namespaces has to be above 0" in found[said]


def test_a_place_on_an_overlay_and_one_that_is_a_mount(farm: Farm, tmp_path: Path) -> None:
    layers = [tmp_path / name for name in ("lower", "upper", "work", "merged")]
    for layer in layers:
        layer.mkdir()
    mount = (
        'mount -t overlay o -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" "$1/merged"; shift; exec "$@"'
    )
    within = ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path)]
    data = str(farm.server_config(0).parent)
    found = problems(
        check(farm.servers[0], edited(farm, tmp_path, f"{data}/build", f"{tmp_path}/merged/build"), *within)
    )
    (said,) = found
    assert said.startswith(f"overlayfs cannot be mounted for {tmp_path}/merged/build (build_dir): ")
    assert "mount a volume there" in found[said]
    assert list(layers[1].iterdir()) == [], "nothing of the trial is left"
    found = problems(
        check(farm.servers[0], edited(farm, tmp_path, f"{data}/build", f"{tmp_path}/merged"), *within)
    )
    assert [text.partition("(build_dir) ")[2] for text in found] == [
        "is a mount point, which sccache-dist cannot make anew"
    ]


def test_the_way_to_a_server(farm: Farm) -> None:
    address = f"{farm.servers[0].address}:10501"
    assert server.listening_trouble(address) == ""
    farm.firewall(farm.servers[0])
    assert server.listening_trouble(address, 0.3) == "no answer within 0.3 s, as with a firewall"
    farm.no_firewall(farm.servers[0])
    farm.stop(0, signal.SIGSTOP)
    assert server.listening_trouble(address, 0.3) == "it takes connections and says nothing: it hangs"
    farm.stop(0, signal.SIGCONT)
    farm.cut(0)
    assert server.listening_trouble(address, 0.3).startswith(("no answer within", "No route to host"))
    farm.mend(0)
    assert server.listening_trouble(address) == ""
    assert server.listening_trouble(f"{farm.scheduler.address}:10600", 0.3).endswith(("hangs", "is no server"))
    (finding,) = farm_checkup.way([f"{farm.servers[0].address}:10502"])
    assert (finding.status, finding.text.endswith(":10502: nobody listens there")) == ("problem", True)


# A client.


def as_client(environ: dict[str, str]) -> list[Finding]:
    return list(checkup.guarded("client", lambda: farm_checkup.as_client(environ, Path("/nowhere"))))


def config(place: Path, address: str, token: str = "right") -> dict[str, str]:
    text = f'[dist]\nscheduler_url = "{address}"\nauth = {{ type = "token", token = "{token}" }}\n'
    (place / "config").write_text(text)
    (place / "config").chmod(0o600)
    return {"SCCACHE_CONF": str(place / "config")}


def test_a_client_that_works(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCCACHE_CONF", str(farm.client_config(tmp_path / "config")))
    monkeypatch.setenv("SCCACHE_DIR", str(tmp_path))
    way = ["--server", farm.servers[0].address, "--server", f"{farm.servers[1].address}:10501"]
    status = main(["farm", "check", "--dir", str(tmp_path), *way])
    out = capsys.readouterr().out
    assert "the scheduler takes the token, and has 2 servers with 2 CPUs\n" in out
    assert out.count(":10501: it answers\n") == 2 and farm.client_token not in out
    assert (status == 0) == ("No problem was found." in out)
    packed = farm.place / "client" / "client" / "tc" / "a" / "b"
    packed.mkdir(parents=True)
    (packed / "ab").write_bytes(b"x" * (3 << 20))
    assert main(["farm", "status"]) == 0
    out = capsys.readouterr().out
    assert "servers     2, with 2 CPUs\nslots       4 steps at a time, or some more\nin flight   0 steps\n" in out
    assert f"toolchains  1 packed here, 3 MiB in {farm.place}/client/client/tc\n" in out
    assert main(["farm", "status", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["servers"], document["cpus"], document["steps"]) == (2, 2, 0)
    assert document["toolchains"]["count"] == 1 and farm.client_token not in json.dumps(document)


def test_a_client_with_a_wrong_token(farm: Farm, tmp_path: Path) -> None:
    path = farm.client_config(tmp_path / "config", token="wrong0a1b")
    found = as_client({"SCCACHE_CONF": str(path)})
    assert found[-1].code == "SEB-9009" and not any("0a1b" in f"{one}" for one in found)


def test_a_client_of_no_farm(tmp_path: Path) -> None:
    (finding,) = as_client({"SCCACHE_CONF": str(tmp_path / "none")})
    assert (finding.status, finding.fix) == ("problem", "Join one: safe-ext-build farm init client")
    (tmp_path / "server.toml").touch()
    (finding,) = farm_checkup.as_client({"SCCACHE_CONF": str(tmp_path / "none")}, tmp_path)
    assert finding.status == "note", "a server need not be a client"


@pytest.mark.parametrize(
    ("ahead", "words"), [(600, "10 min ahead of this one"), (-7200, "2 h 00 min behind this one")]
)
def test_clocks_that_do_not_agree(ahead: int, words: str, tmp_path: Path) -> None:
    with farm_stub.scheduler(date=email.utils.formatdate(time.time() + ahead, usegmt=True)) as address:
        found = {one.text: one.status for one in as_client(config(tmp_path, address))}
    (said,) = (text for text in found if "the scheduler's clock is" in text)
    assert found[said] == "problem" and (words in said or words.replace("10 min", "9 min 59 s") in said)


def test_what_others_may_read_and_what_goes_through_a_proxy(tmp_path: Path) -> None:
    with farm_stub.scheduler() as address:
        environ = {**config(tmp_path, address), "http_proxy": "http://proxy:1"}
        (tmp_path / "config").chmod(0o644)
        found = {one.text: one for one in as_client(environ)}
        spared = [one.text for one in as_client({**environ, "no_proxy": "a.example, 127.0.0.1"})]
    (open_,) = (one for one in found.values() if one.text.startswith("others may read the token in "))
    (proxy,) = (one for one in found.values() if one.text.startswith("http_proxy is set"))
    assert (open_.status, proxy.status) == ("note", "note") and "NO_PROXY=127.0.0.1" in proxy.fix
    assert proxy.text not in spared


# The programs, and what a server offers.


def programs(place: Path, sccache: str, dist: str) -> list[Finding]:
    for name, version in (("sccache", sccache), ("sccache-dist", dist)):
        (place / name).write_text(f"#!/bin/sh\necho sccache {version}\n")
        (place / name).chmod(0o755)
    return list(farm_checkup.programs({"PATH": f"{place}:/bin"}))


@pytest.mark.parametrize(
    ("sccache", "dist", "said"),
    [
        ("0.16.0", "0.16.0", []),
        ("0.16.0", "0.15.0", ["sccache-dist 0.15.0 in {place}/sccache-dist, and sccache is another version"]),
        ("0.10.0", "0.10.0", ["{place}/sccache is sccache 0.10.0, older than 0.16"]),
    ],
)
def test_programs_of_one_version(sccache: str, dist: str, said: list[str], tmp_path: Path) -> None:
    found = [one for one in programs(tmp_path, sccache, dist) if one.status == "problem"]
    assert [one.text for one in found] == [text.format(place=tmp_path) for text in said]
    assert all("safe-ext-build[farm]" in one.fix for one in found)


def test_programs_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_packaged", lambda _: None)
    (finding,) = farm_checkup.programs({"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert (finding.status, finding.text) == ("problem", "sccache is not installed: clients need it")


def test_who_is_not_root_is_told_so(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    told = server.read(farm.server_config(0))
    assert told
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (finding,) = farm_checkup._sandbox(told, os.environ)
    assert (finding.status, finding.fix) == ("problem", "Run it as root.")


@pytest.mark.parametrize(
    ("cpus", "memory", "status"), [(2, 12 * GIB, "ok"), (1, GIB, "ok"), (8, 32 * GIB, "note")]
)
def test_a_server_that_offers_more_than_its_memory_bears(cpus: int, memory: int, status: str) -> None:
    finding = farm_checkup.offered(cpus, memory)
    assert finding.status == status and bool(finding.fix) == (status == "note")


def test_the_cpus_of_a_unit_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unit").write_text("[Service]\nCPUAffinity=0-2\n")
    monkeypatch.setattr(farm_checkup, "_UNIT", tmp_path / "unit")
    assert farm_checkup._unit_cpus() == 3
    monkeypatch.setattr(farm_checkup, "_UNIT", tmp_path / "none")
    assert farm_checkup._unit_cpus() == read_machine().cpus.count
