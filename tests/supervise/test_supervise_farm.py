"""The build's client of a farm, seen from the supervisor: what it runs here, who is gone, what people are told."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import farm_stub
import pytest

from safe_ext_build.launcher.call import Launching, farm_log
from safe_ext_build.schedule.away import Away
from safe_ext_build.schedule.claims import Job
from safe_ext_build.schedule.forecast import Features, Forecaster
from safe_ext_build.supervise import lookout
from safe_ext_build.supervise.farm import TRIES, FarmClient, compiles
from safe_ext_build.supervise.lookout import Report
from safe_ext_build.supervise.processes import read


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/opt/cuda/nvvm/bin/cicc --c++17 -arch compute_80 a.cpp1.ii -o a.ptx", True),
        ("/opt/cuda/bin/ptxas -arch=sm_80 a.ptx -o a.cubin", True),
        ("cudafe++ --c++17 a.cpp4.ii --gen_c_file_name a.cudafe1.cpp", True),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -fpreprocessed a.ii", True),
        ("/usr/bin/g++ -x c++-cpp-output -c -o a.o /tmp/sccache/a.ii", True),
        ("/usr/bin/x86_64-linux-gnu-gcc-12 -c a.cudafe1.cpp -o a.o", True),
        ("/usr/bin/clang++ -c a.ii -o a.o", True),
        ("g++ -E -c a.cpp", False),
        ("g++ -x c++ -E -fdirectives-only a.cpp", False),
        ("gcc -E /tmp/testfile.c", False),
        ("gcc -print-prog-name=as", False),
        ("/opt/cuda/bin/nvcc --dryrun -c a.cu -o a.o", False),
        ("/opt/cuda/bin/nvcc -c a.cu -o a.o", False),
        ("/usr/bin/python3.11 -I -S -E -c code front nvcc /opt/cuda/bin/nvcc 0 -c a.cu", False),
        ("/bin/sh /ws/bin/front/bin/nvcc --dryrun -c a.cu", False),
        ("bash -c true", False),
        ("fatbinary --create=a.fatbin a.cubin", False),
        ("sccache", False),
        ("", False),
    ],
)
def test_what_the_client_runs_that_was_to_run_elsewhere(command: str, expected: bool) -> None:
    assert compiles([word.encode() for word in command.split(" ")]) is expected


# Two lines of Linux 6.1, and what stands before and after; `tcp6` with an IPv4 address in it.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0000 100 0 0 10 0
   1: 010012C6:A1B2 0B0012C6:2905 01 00000000:00000000 02:000000A5 00000000     0        0 222 2 0000 20 4 0 10 -1
   2: 010012C6:A1B4 0C0012C6:2905 02 00000000:00000000 02:000000A5 00000000     0        0 333 2 0000 20 4 0 10 -1
   3: 010012C6:A1B6 0D0012C6:2905 06 00000000:00000000 02:000000A5 00000000     0        0 444 2 0000 20 4 0 10 -1
   4: 010012C6:A1B8 0E0012C6:2905 01 00000000:00000000 02:000000A5 00000000     0        0 555 2 0000 20 4 0 10 -1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr inode
   0: 0000000000000000FFFF0000010012C6:A1B2 0000000000000000FFFF00000B0012C6:2905 01 0:0 00:0 0 0 0 666 1 0 0 0 0
   1: 00000000000000000000000001000000:A1B2 B80D0120000000000000000001000000:01BB 01 0:0 00:0 0 0 0 777 1 0 0 0 0
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the tables are in the machine's byte order")
def test_the_other_ends_of_ones_own_connections() -> None:
    ours = {"111", "222", "333", "444", "666", "777"}
    assert lookout._remotes(TCP, ours) == [("198.18.0.11", 10501), ("198.18.0.12", 10501)]
    assert lookout._remotes(TCP6, ours) == [("198.18.0.11", 10501), ("2001:db8::1", 443)]
    assert lookout._remotes("", ours) == []


def test_whom_this_very_process_waits_for() -> None:
    """All but the scheduler, however it is named."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as scheduler:
        addresses = [one.getsockname()[:2] for one in (server, scheduler)]
        with socket.create_connection(addresses[0]), socket.create_connection(addresses[1]):
            found = lookout.servers(os.getpid(), f"http://localhost:{addresses[1][1]}")
            assert addresses[0] in found and addresses[1] not in found
            assert set(addresses) <= set(lookout.servers(os.getpid(), "http://name.invalid:10600"))
            assert not set(addresses) & set(lookout.servers(os.getppid(), "http://localhost:1"))
    assert lookout.servers(1 << 30, "http://localhost:1") == []


def test_reports_come_over_a_pipe() -> None:
    reports = [Report(True, 8, 3), Report(False), Report(True, 1, 0, "198.18.0.11:10501")]
    assert lookout.read_reports(b"".join(one.to_line() for one in reports)) == reports
    assert lookout.read_reports(b"") == []
    for damaged in (b"{", b'{"answers": true, "other": 1}\n', b"[]\n", b"1\n"):
        with pytest.raises((ValueError, TypeError)):
            lookout.read_reports(damaged)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "TIMEOUT", 0.2)
    monkeypatch.setattr(lookout, "EVERY", 0.02)


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_is_asked() -> None:
    with farm_stub.scheduler(servers=3) as url:
        assert lookout.ask(url) == (12, 0)
    assert lookout.ask(farm_stub.nobody()) is None
    with farm_stub.scheduler(status=b"<html>") as url:
        assert lookout.ask(url) is None
    with farm_stub.scheduler(status=b"[]") as url:
        assert lookout.ask(url) is None
    with farm_stub.scheduler(hangs=True) as url:
        assert lookout.ask(url) is None


@contextlib.contextmanager
def answering(data: bytes) -> Iterator[lookout.Address]:
    """Somebody who answers whatever he is told with `data`, and closes."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[:2]
        finally:
            thread.join()


# An alert of TLS 1.2: handshake_failure.
ALERT = bytes([21, 3, 3, 0, 2, 2, 40])


@pytest.mark.usefixtures("impatient")
def test_whoever_ends_a_handshake_is_there() -> None:
    for data, there in ((ALERT, True), (b"HTTP/1.1 400 Bad Request\r\n\r\n", True)):
        with answering(data) as address:
            assert lookout.is_there(address) is there


@pytest.mark.usefixtures("impatient")
def test_whoever_takes_a_connection_and_says_nothing_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
        assert not lookout.is_there(address)
    assert not lookout.is_there(address), "and who refuses is gone"


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    """As the servers of sccache-dist make them: self-signed."""
    key, cert = tmp_path / "key", tmp_path / "cert"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=server"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@pytest.mark.usefixtures("impatient")
def test_a_server_with_a_certificate_that_nobody_knows_is_there(certificate: ssl.SSLContext) -> None:
    def serve() -> None:
        client, _ = server.accept()
        client.settimeout(5)
        with contextlib.suppress(OSError), certificate.wrap_socket(client, server_side=True) as wrapped:
            wrapped.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        assert lookout.is_there(server.getsockname()[:2])
        thread.join()


# One of the supervisor's forks looks out, for a client that is played by a program of ours.

WAITS = """
import socket, sys, time
connections = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
print("there", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def client_of(*ports: int) -> Iterator[int]:
    """The pid of a process that waits for servers."""
    command = [sys.executable, "-S", "-c", WAITS, *map(str, ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def heard(reader: int, seconds: float = 5.0) -> Iterator[Report]:
    """What comes, until the other side ends."""
    until = time.monotonic() + seconds
    os.set_blocking(reader, True)
    while time.monotonic() < until and (data := os.read(reader, 1 << 16)):
        yield from lookout.read_reports(data)


@pytest.mark.usefixtures("impatient")
def test_the_lookout_names_a_server_that_hangs_and_ends_with_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs, farm_stub.scheduler() as url:
        port = hangs.getsockname()[1]
        with client_of(port) as client:
            pid, reader = lookout.start(client, url)
            reports = heard(reader)
            lost = next(report for report in reports if report.lost)
            assert (lost.answers, lost.cpus, lost.lost) == (True, 4, f"127.0.0.1:{port}")
            assert not next(reports).lost, "once is enough"
        assert all(not report.lost for report in reports)
    os.waitpid(pid, 0)
    os.close(reader)


@pytest.mark.usefixtures("impatient")
def test_the_lookout_tells_of_a_scheduler_that_is_silent_and_again_of_one_that_is_not() -> None:
    with client_of() as client:
        pid, reader = lookout.start(client, farm_stub.nobody())
        assert next(heard(reader)) == Report(False)
    os.waitpid(pid, 0)
    os.close(reader)


# What is made of it.


def launching(place: Path, *, shares: bool = True) -> Launching:
    return Launching(farm=str(place / "farm"), log=str(place / "log"), slots=4, shares=shares)


@pytest.fixture
def client(tmp_path: Path) -> FarmClient:
    return FarmClient(launching(tmp_path), {})


def hear(client: FarmClient, away: Away, *reports: Report) -> str:
    client.lookout, writer = os.pipe()
    reader = client.lookout
    os.write(writer, b"".join(one.to_line() for one in reports))
    os.close(writer)
    try:
        return client.hear(away)
    finally:
        os.close(reader)


def test_slots_follow_what_others_leave(client: FarmClient) -> None:
    away = Away()
    assert hear(client, away, Report(True, 8, 3)) == ""
    assert away.slots == 5
    assert hear(client, away, Report(True, 2, 7)) == "" and away.slots == 0
    hear(client, away, Report(True, 0, 0))
    assert away.slots == 0


def test_a_number_that_somebody_has_said_stays(tmp_path: Path) -> None:
    client, away = FarmClient(launching(tmp_path, shares=False), {}), Away()
    hear(client, away, Report(True, 8, 3))
    assert away.slots == 0


@pytest.mark.parametrize(("shares", "steps", "slots"), [(True, 2, 2), (True, 4, 1), (True, 0, 4), (False, 2, 4)])
def test_what_a_lost_client_leaves_behind_takes_up_slots(
    tmp_path: Path, shares: bool, steps: int, slots: int
) -> None:
    away = Away()
    away.slots = 4
    features = Features(True, max(1, steps), max(1, steps), "k")
    if steps:
        job = Job(1, features, features, steps, 1, Forecaster({}).forecast(features), True)
        job.threads = steps
        away.begin(job)
    FarmClient(launching(tmp_path, shares=shares), {}).leave_behind(away)
    assert away.slots == slots


def test_a_silent_scheduler_is_told_of_once_and_once_when_it_is_back(client: FarmClient) -> None:
    away = Away()
    assert hear(client, away, Report(False), Report(False)) == (
        "the farm's scheduler does not answer any more: what is left is compiled here until it does"
    )
    assert not client.answers
    assert hear(client, away, Report(False)) == ""
    assert hear(client, away, Report(True, 4), Report(True, 4)) == "the farm's scheduler answers again"
    assert client.answers


def test_a_lookout_that_has_ended_or_talks_nonsense_is_let_go(client: FarmClient) -> None:
    assert hear(client, Away()) == ""
    assert client.lookout == -1
    client.lookout, writer = os.pipe()
    reader = client.lookout
    os.write(writer, b"nonsense\n")
    assert client.hear(Away()) == "" and client.lookout == -1
    os.close(reader)
    os.close(writer)


def test_with_a_server_that_is_gone_goes_the_client(client: FarmClient) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        client.state, client.process, client.tries = "ready", read(sleeper.pid), 1
        assert hear(client, Away(), Report(True, 4, 1, "198.18.0.11:10501")) == ""
        assert sleeper.wait(10) == -9
    lost = (
        "the client of the compile farm is lost: a server of the farm, 198.18.0.11:10501, does not answer any more"
    )
    assert client.line() == f"{lost}; it is started again"
    client.tries = TRIES
    assert client.line() == f"{lost}; what is left is compiled here"


def test_it_is_started_again_a_few_times(client: FarmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(client, "start", lambda: started.append(client.state))
    for _ in range(5):
        client.need()
        client.state = "lost"
    assert started == ["none"] * TRIES
    assert Path(client.temporary).is_dir()


def test_one_that_never_began_is_not_tried_again(client: FarmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a storage that is gone each try takes 15 s."""
    monkeypatch.setattr(client, "start", lambda: setattr(client, "state", "starting"))
    client.need()
    client.lose("it did not begin to listen within 15 s")
    assert client.line().endswith("; what is left is compiled here")
    client.need()
    assert client.state == "lost"


def test_it_is_told_of_the_farm_and_the_cache_is_not(tmp_path: Path) -> None:
    told = Launching(farm="/f", log=str(tmp_path / "log"), config="/ws/sccache.json")
    assert FarmClient(told, {}).own_variables() == {}
    assert FarmClient(told, {}).log == farm_log(told) != told.log


FELL_BACK = "[2026-01-01 WARN  sccache] [a.o]: Could not perform distributed compile, falling back to local: "
# The server's error in the scheduler's.
INNER = {"description": 'no "room"', "cause": None}
OUTER = {"description": f'Error 500 (Headers={{"server": "tiny"}}): {json.dumps(INNER)}', "cause": None}
NESTED = f"Error 500: {json.dumps(OUTER)}"


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("", ""),
        ("[x] Cache miss\n", ""),
        (f"{FELL_BACK}connection refused\n", "connection refused"),
        (f"{FELL_BACK}first\n[x] other\n{FELL_BACK}second\n[x] more\n", "second"),
        (f"{FELL_BACK}{NESTED}\n", 'no "room"'),
        (
            f"{FELL_BACK}could not run it on S(1): error sending request for url (https://h/run_job/2): reset\n",
            "could not run it on S(1): error sending request: reset",
        ),
        (f"{FELL_BACK}{'x' * 999}\n", "x" * 200),
    ],
)
def test_why_the_farm_has_refused(client: FarmClient, log: str, why: str) -> None:
    Path(client.log).write_text(log)
    assert client.why_not() == why


def test_only_the_end_of_a_long_log_is_read(client: FarmClient) -> None:
    Path(client.log).write_text(f"{FELL_BACK}long ago\n" + "x" * (1 << 17))
    assert client.why_not() == ""
    Path(client.log).unlink()
    assert client.why_not() == ""


def test_what_the_log_names_is_no_secret(tmp_path: Path) -> None:
    client = FarmClient(launching(tmp_path), {"FARM_TOKEN": "s3cr3ts3cr3t"})
    Path(client.log).write_text(f"{FELL_BACK}token s3cr3ts3cr3t refused\n")
    assert "s3cr3ts3cr3t" not in client.why_not()
