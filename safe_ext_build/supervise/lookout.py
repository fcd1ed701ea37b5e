"""The lookout: a fork of the supervisor that asks the farm's scheduler and servers whether they are still there.

sccache's client waits twenty minutes for a server that has been cut off or hangs in the middle of a step (0.16:
REQUEST_TIMEOUT_SECS), and its scheduler goes on naming such a server for a minute and a half. What is found out is
written to a pipe, one JSON object a line. Standard library only; what is heavy is imported in the fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from .linux import begin_child, set_name

EVERY = 3.0
"""Seconds between two rounds."""
TIMEOUT = 3.0
STRIKES = 3
"""Rounds without an answer after which somebody is given up."""
_OPENING, _OPEN = "02", "01"  # tcp(7) states as /proc/net/tcp has them: SYN_SENT, ESTABLISHED

Address = tuple[str, int]


@dataclass(frozen=True)
class Report:
    """What a round has found. `answers`: whether the scheduler still does; `cpus` of all its servers, and how many
    steps are `in_progress`, of whomever (-1: not known). `lost`: a server that somebody here waits for, and that
    is gone."""

    answers: bool
    cpus: int = -1
    in_progress: int = -1
    lost: str = ""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def read_reports(data: bytes) -> list[Report]:
    """Raises ValueError and TypeError for what is none."""
    return [Report(**json.loads(line)) for line in data.splitlines()]


def start(client: int, scheduler: str) -> tuple[int, int]:
    """Fork one; returns its pid and the pipe to read. `client`: the pid of the farm's client, `scheduler`: URL."""
    parent = os.getpid()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        os.set_blocking(reader, False)
        return pid, reader
    try:
        begin_child(parent)
        set_name("seb-lookout")
        for name in os.listdir("/proc/self/fd"):  # leases, the frontend's pipes
            if int(name) > 2 and int(name) != writer:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        _look_out(client, scheduler, writer)
    finally:
        os._exit(0)


def _look_out(client: int, scheduler: str, pipe: int) -> None:
    silent = 0
    strikes: dict[Address, int] = {}
    while os.path.exists(f"/proc/{client}"):
        status = ask(scheduler)
        silent = 0 if status else silent + 1
        missed = _missing(servers(client, scheduler))
        strikes = {address: strikes.get(address, 0) + 1 for address in missed}
        lost = [f"{host}:{port}" for (host, port), count in strikes.items() if count == STRIKES]
        report = Report(status is not None or silent < STRIKES, *(status or (-1, -1)), lost="".join(lost[:1]))
        if status or silent >= STRIKES or report.lost:
            os.write(pipe, report.to_line())
        time.sleep(EVERY)


def ask(scheduler: str) -> tuple[int, int] | None:
    """The CPUs of a farm, and the steps in progress there; None without an answer."""
    import http.client

    parts = urlsplit(scheduler)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/api/v1/scheduler/status", headers={"Accept": "application/json"})
        found = json.loads(connection.getresponse().read(1 << 16))
        return int(found["num_cpus"]), int(found["in_progress"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def servers(client: int, scheduler: str) -> list[Address]:
    """Whom the client waits for, the scheduler left out."""
    parts = urlsplit(scheduler)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found: set[Address] = set()
    sockets = _sockets(client)
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{client}/net/{table}") as file:
            found.update(_remotes(file.read(), sockets))
    known = {address for address in found if address[1] == port and _is_named(address[0], parts.hostname or "")}
    return sorted(found - known)


def _sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    links = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def _remotes(text: str, sockets: set[str]) -> list[Address]:
    """The other ends of connections in a table of proc_net_tcp(5), those of `sockets` only."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return [_address(row[2]) for row in rows if row[3] in (_OPEN, _OPENING) and row[9] in sockets]


def _address(text: str) -> Address:
    """`0100007F:1F90`: words in the machine's byte order, then the port."""
    host, _, port = text.partition(":")
    words = [int(host[place : place + 8], 16) for place in range(0, len(host), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    found = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
    return found.removeprefix("::ffff:"), int(port, 16)


def _is_named(host: str, name: str) -> bool:
    try:
        return host in {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False


def _missing(addresses: list[Address]) -> list[Address]:
    """All are asked at once: several may have gone together, and each takes its time to be missed."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        return [
            address for address, there in zip(addresses, pool.map(is_there, addresses), strict=True) if not there
        ]


def is_there(address: Address) -> bool:
    """Whether somebody answers: a server that hangs takes a connection, and never ends a TLS handshake."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is asked nothing and told nothing
    try:
        with socket.create_connection(address, TIMEOUT) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError:
        return True  # it speaks
    except OSError:
        return False
