"""What the machines of a farm are told, and the files that it is written into."""

from __future__ import annotations

import io
import os
import re
import stat
from pathlib import Path

import pytest

from safe_ext_build.cli import farm
from safe_ext_build.cli.main import main
from safe_ext_build.errors import FarmError
from safe_ext_build.farm import client, files, roles, server
from safe_ext_build.farm.roles import Capacity, Join

GIB = 1 << 30
JOIN = Join("client", "http://10.0.0.1:10600", "0a1b")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The word by which a machine joins.


def test_a_word_says_all() -> None:
    assert roles.read_join(f"  {JOIN.word}\n", "client", "x") == JOIN
    behind = Join("server", "https://farm.example", "0a1b")
    assert roles.read_join("https://farm.example/#server=0a1b", "server", "x") == behind
    assert "0a1b" not in repr(JOIN)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("", "there is nothing in standard input"),
        ("0a1b", "what stands there is no word to join a farm with in standard input"),
        ("http://10.0.0.1:10600#admin=0a1b", "what stands there is no word to join a farm with in standard input"),
        (
            "http://10.0.0.1:10600#client=0a1b",
            "the word in standard input is for a client, and this is to be a server",
        ),
    ],
)
def test_what_is_no_word(word: str, said: str) -> None:
    with pytest.raises(FarmError) as caught:
        roles.read_join(word, "server", "standard input")
    assert (caught.value.code, str(caught.value)) == ("SEB-9103", said)
    assert "0a1b" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", "10.0.0.1:10600"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[fd00:0::1]", "[fd00::1]:10600"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("fd00::1", "[fd00::1]:10600"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert roles.address(text, 10600) == address
    assert server.split(address)[1] in (80, 10600)


@pytest.mark.parametrize(
    "text", ["farm.example", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "0.0.0.0", "fd00::x", ""]
)
def test_what_others_cannot_reach(text: str) -> None:
    with pytest.raises(FarmError) as caught:
        roles.address(text, 10600)
    assert caught.value.code == "SEB-9102" and (text in str(caught.value))


# What a server offers.


@pytest.mark.parametrize(("cpus", "given"), [(1, 2), (2, 3), (7, 8), (8, 10), (64, 73)])
def test_how_many_steps_a_scheduler_gives(cpus: int, given: int) -> None:
    assert roles.steps(cpus) == given


@pytest.mark.parametrize(
    ("cpus", "memory", "offered", "given"),
    [
        (64, 512 * GIB, 64, 73),  # enough for all
        (64, 128 * GIB, 28, 32),  # by memory
        (16, 60 * GIB, 13, 15),
        (4, 8 * GIB, 1, 2),
        (4, 1 * GIB, 1, 2),  # less than one CPU cannot be offered
    ],
)
def test_what_a_server_offers_is_what_its_memory_bears(cpus: int, memory: int, offered: int, given: int) -> None:
    found = roles.capacity(range(cpus), memory)
    assert (len(found.cpus), found.steps) == (offered, given)
    assert found.steps * roles.STEP <= memory or offered == 1


@pytest.mark.parametrize(("cpus", "text"), [((0, 1, 2, 3, 8), "0-3,8"), ((5,), "5"), ((3, 1), "1,3")])
def test_cpus_are_listed_as_others_read_them(cpus: tuple[int, ...], text: str) -> None:
    assert roles.cpu_list(cpus) == text
    assert roles.count_cpus(text) == len(cpus)


@pytest.mark.parametrize(("text", "number"), [("0 1 2", 3), ("0-3, 8", 5), ("", 0), ("numa", 0)])
def test_cpus_of_a_unit(text: str, number: int) -> None:
    assert roles.count_cpus(text) == number


def test_a_unit_bounds_the_server() -> None:
    unit = roles.server_unit(Path("/opt/a b/sccache-dist"), Path("/etc/s.toml"), Capacity((0, 1), 3, 20 * GIB, 5))
    lines = unit.splitlines()
    assert 'ExecStart="/opt/a b/sccache-dist" server --config /etc/s.toml' in lines
    assert {"CPUAffinity=0-1", "MemoryMax=20480M", "OOMPolicy=continue", "Restart=always"} <= set(lines)
    assert not any(line.startswith("User=") for line in lines), "it has to be root"


# Files.


def test_files_are_for_their_owner_and_are_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        files.write_new({place / "one": "1", place / "two": "2"}, force=False)
    finally:
        os.umask(before)
    assert (mode(place), mode(place / "one"), mode(place / "two")) == (0o700, 0o600, 0o600)
    with pytest.raises(FarmError, match="two is there already"):
        files.write_new({place / "three": "3", place / "two": "x"}, force=False)
    assert sorted(path.name for path in place.iterdir()) == ["one", "two"], "nothing was written"
    files.write_new({place / "two": "x"}, force=True)
    assert (place / "two").read_text() == "x"


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FarmError, match="/file/one cannot be written: "):
        files.write(tmp_path / "file" / "one", "")
    (tmp_path / "there").mkdir()
    with pytest.raises(FarmError, match="/there cannot be written: "):
        files.write(tmp_path / "there", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there"]


OWN = '# mine\n[cache.disk]\ndir = "/c"  # here'
FARM = '[dist]\nscheduler_url = "http://old:1"\ncache_dir = "/d"\n\n[dist.auth]\ntype = "token"\ntoken = "old"\n'
TOOLCHAIN = '\n[[dist.toolchains]]\ntype = "no_dist"\ncompiler_executable = "/a"\n'


@pytest.mark.parametrize("before", ["", OWN, f"{OWN}\n\n"])
def test_a_client_keeps_what_it_has(before: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    if before:
        path.write_text(before)
    assert files.join_client(path, JOIN, force=False)
    assert path.read_text().startswith(before) and mode(path) == 0o600
    found = client.configured({"SCCACHE_CONF": str(path)})
    assert found and (found.scheduler, found.token) == (JOIN.scheduler, JOIN.token)
    assert not files.join_client(path, JOIN, force=False), "it is told once"


@pytest.mark.parametrize("before", [f"{OWN}\n{FARM}", f"{FARM}{TOOLCHAIN}{OWN}\n", f"{FARM}{OWN}\n"])
def test_another_farm_is_replaced_when_that_is_meant(before: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(before)
    with pytest.raises(FarmError, match=r"/config has a table \[dist\] already") as caught:
        files.join_client(path, JOIN, force=False)
    assert path.read_text() == before and JOIN.token not in caught.value.hint
    was = client.read(path)
    assert files.join_client(path, JOIN, force=True)
    now = client.read(path)
    assert now["cache"] == was["cache"] and "# mine" in path.read_text()
    assert now["dist"] == {
        **was["dist"],
        "scheduler_url": JOIN.scheduler,
        "auth": {"type": "token", "token": JOIN.token},
    }


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("config", 'dist.scheduler_url = "http://old:1"\n'),
        ("config", 'dist = { cache_dir = "/d" }\n'),
        ("c.json", "{}"),
    ],
)
def test_what_is_not_understood_is_not_touched(name: str, before: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(before)
    with pytest.raises(FarmError, match="is written in a way that is not changed by programs") as caught:
        files.join_client(tmp_path / name, JOIN, force=True)
    assert (tmp_path / name).read_text() == before
    assert 'scheduler_url = "http://10.0.0.1:10600"' in caught.value.hint and JOIN.token not in caught.value.hint


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").write_text(OWN)
    (tmp_path / "config").symlink_to("dotfiles")
    files.join_client(tmp_path / "config", JOIN, force=False)
    assert (tmp_path / "config").is_symlink() and JOIN.token in (tmp_path / "dotfiles").read_text()


# The command.


def given(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_farm_is_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "etc"
    where = ["--dir", str(place), "--systemd", str(tmp_path / "units")]
    assert main(["farm", "init", "scheduler", "--address", "127.0.0.1", *where]) == 0
    out = capsys.readouterr().out
    assert f"ssh root@127.0.0.1 cat {place}/server.join | safe-ext-build farm init server --systemd" in out
    assert sorted(path.name for path in place.iterdir()) == ["client.join", "scheduler.toml", "server.join"]
    assert {mode(path) for path in place.iterdir()} == {0o600} and mode(place) == 0o700

    given((place / "server.join").read_text(), monkeypatch)
    data = ["--data", str(tmp_path / "data"), "--cpus", "1"]
    assert main(["farm", "init", "server", "--address", "127.0.0.1", *where, *data]) == 0
    out += (said := capsys.readouterr().out)
    assert "It offers 1 CPU: the scheduler gives it 2 steps at a time; its memory, " in said
    assert "systemctl daemon-reload && systemctl enable --now sccache-server" in said

    monkeypatch.setenv("SCCACHE_CONF", str(tmp_path / "client"))
    assert main(["farm", "init", "client", "--join", str(place / "client.join")]) == 0
    out += (said := capsys.readouterr().out)
    assert (
        f"{tmp_path}/client names the farm now.\nBut it cannot be used yet: nobody listens at http://127.0" in said
    )

    told = client.read(place / "scheduler.toml")
    a_server, a_client = (
        server.read(place / "server.toml"),
        client.configured({"SCCACHE_CONF": f"{tmp_path}/client"}),
    )
    assert a_server and a_server.token == told["server_auth"]["token"]
    assert a_client and a_client.token == told["client_auth"]["token"]
    assert a_server.scheduler == a_client.scheduler == "http://127.0.0.1:10600"
    assert a_server.build_dir == tmp_path / "data" / "build" and not a_server.build_dir.exists()
    assert a_server.build_dir.parent.is_dir(), "sccache-dist makes one directory, not two"
    assert a_server.token not in out and a_client.token not in out
    assert not re.search(r"[0-9a-f]{64}", "".join(path.read_text() for path in (tmp_path / "units").iterdir()))


def test_nothing_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["farm", "init", "scheduler", "--address", "127.0.0.1", "--dir", str(tmp_path)]
    (tmp_path / "server.join").write_text("mine")
    assert main(command) == 1
    assert f"error[SEB-9101]: {tmp_path}/server.join is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["server.join"]
    assert main([*command, "--force", "--url", "https://farm.example/"]) == 0
    assert (tmp_path / "server.join").read_text().startswith("https://farm.example#server=")
    assert "SCCACHE_NO_DAEMON=1 " in capsys.readouterr().out


def test_what_sccache_would_delete_is_spared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "build" / "mine").mkdir(parents=True)
    given("http://10.0.0.1:10600#server=0a1b", monkeypatch)
    where = ["--dir", str(tmp_path / "etc"), "--data", str(tmp_path), "--force"]
    assert main(["farm", "init", "server", "--address", "127.0.0.1", *where]) == 1
    said = capsys.readouterr().err
    assert f"error[SEB-9104]: {tmp_path}/build holds mine, and sccache-dist deletes all" in said
    assert not (tmp_path / "etc").exists()


def test_a_unit_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sccache-scheduler.service").write_text("mine")
    where = ["--dir", str(tmp_path / "etc"), "--systemd", str(tmp_path)]
    assert main(["farm", "init", "scheduler", "--address", "127.0.0.1", *where]) == 1
    assert "error[SEB-9101]: " in capsys.readouterr().err and not (tmp_path / "etc").exists()
    assert main(["farm", "init", "scheduler", "--address", "127.0.0.1", *where, "--force"]) == 0
    assert mode(tmp_path / "sccache-scheduler.service") == 0o644


@pytest.mark.parametrize("role", ["client", "server"])
def test_who_has_no_word_joins_nothing(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCCACHE_CONF", str(tmp_path / "config"))
    given("", monkeypatch)
    where = ["--address", "127.0.0.1", "--dir", str(tmp_path)] if role == "server" else []
    assert main(["farm", "init", role, *where]) == 1
    assert "error[SEB-9103]: there is nothing in standard input" in capsys.readouterr().err
    assert main(["farm", "init", role, *where, "--join", str(tmp_path / "none")]) == 1
    assert "none cannot be read: No such file or directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_a_server_offers_is_said() -> None:
    said = farm._offer(Capacity((0, 1), 3, 20 * GIB, 5), 4)
    given, room = "the scheduler gives it 3 steps at a time", "its memory, 20.0 GiB, is enough for 5 of 4 GiB"
    assert said == f"It offers 2 CPUs: {given}; {room}."
