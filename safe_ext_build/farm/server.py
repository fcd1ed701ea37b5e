"""What a server of the farm needs of its machine, tried out. Nothing is left, and nobody is told."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import probe
from ..errors import FarmError
from . import client

OLDEST_BUBBLEWRAP = (0, 3)
_HEARTBEAT = "/api/v1/scheduler/heartbeat_server"
# What sccache-dist itself lets bubblewrap do.
_SANDBOX = (
    *("--die-with-parent", "--cap-drop", "ALL"),
    *(f"--unshare-{what}" for what in ("user", "cgroup", "ipc", "pid", "net", "uts")),
)
_OWN = {"builds", "toolchains"}


@dataclass(frozen=True)
class Server:
    """What `sccache-dist server` is told. `public`: the address that others reach it by, `bind`: the one that it
    listens on; `builder`: how it runs compilers, of which `overlay` has `build_dir` and `bwrap`."""

    config: Path
    public: str
    bind: str
    scheduler: str
    token: str = field(repr=False)
    token_kind: str
    builder: str
    build_dir: Path
    bwrap: Path


def read(config: Path) -> Server | None:
    """The server that this machine is to be; None where there is no such file. Raises FarmError."""
    found = client.read(config)
    if not found:
        return None
    try:
        builder, auth = found["builder"], found["scheduler_auth"]
        kind = builder["type"]
        return Server(
            config,
            public=_address(found["public_addr"]),
            bind=_address(found.get("bind_address", found["public_addr"])),
            scheduler=client.url(found["scheduler_url"], f"scheduler_url in {config}"),
            token=str(auth.get("token", "")),
            token_kind=str(auth["type"]),
            builder=str(kind),
            build_dir=Path(builder["build_dir"] if kind == "overlay" else ""),
            bwrap=Path(builder["bwrap_path"] if kind == "overlay" else ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(config, error) from error


def scheduler_address(config: Path) -> str:
    """What the scheduler of this machine listens on; '' where there is none. Raises FarmError."""
    found = client.read(config)
    try:
        return _address(found["public_addr"]) if found else ""
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(config, error) from error


def damaged(config: Path, error: Exception) -> FarmError:
    what = f"it lacks {error}" if isinstance(error, KeyError) else "a value in it is of another kind"
    hint = "Compare it with the example in sccache's docs/Distributed.md, or have it written anew: --force."
    return FarmError(f"{config} is no configuration of sccache-dist: {what}", code="SEB-9002", hint=hint)


def _address(value: Any) -> str:
    """`IP:PORT`. Raises ValueError."""
    split(str(value))
    return str(value)


def split(address: str) -> tuple[str, int]:
    """Host and port of `IP:PORT`. Raises ValueError."""
    host, _, port = address.rpartition(":")
    return str(ipaddress.ip_address(host.strip("[]"))), int(port)


# The sandbox.


def bubblewrap_version(path: Path, environ: Mapping[str, str]) -> str:
    """Its version, '' if it is no bubblewrap. Raises OSError where it cannot be run, and TimeoutExpired."""
    _, said = probe.run([str(path), "--version"], environ)
    found = re.search(r"\bbubblewrap (\d+(?:\.\d+)+)", said)
    return found[1] if found else ""


def is_too_old(version: str) -> bool:
    """Whether sccache-dist refuses this bubblewrap."""
    return tuple(int(part) for part in version.split(".")[:2]) < OLDEST_BUBBLEWRAP


def sandbox_trouble(bwrap: Path, environ: Mapping[str, str]) -> str:
    """What keeps bubblewrap from running a program as sccache-dist has it run compilers; '' for nothing."""
    inside = ["--bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", _found("true")]
    return _trouble([str(bwrap), *_SANDBOX, *inside], environ)


def overlay_trouble(build_dir: Path, environ: Mapping[str, str]) -> str:
    """What keeps overlayfs from being mounted where compilers are to run; '' for nothing. As root only."""
    try:
        with _beside(build_dir) as place:
            for name in ("lower", "upper", "work", "target"):
                (place / name).mkdir()
            layers = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
            script = 'mount -t overlay overlay -o "$1" "$2" && : > "$2/written"'
            return _trouble(["unshare", "-m", "sh", "-c", script, "sh", layers, f"{place}/target"], environ)
    except OSError as error:
        return error.strerror or str(error)


@contextlib.contextmanager
def _beside(build_dir: Path) -> Iterator[Path]:
    """A directory on the same file system, gone afterwards with what the kernel has put there."""
    place = Path(tempfile.mkdtemp(prefix=".safe-ext-build-", dir=build_dir.parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _trouble(command: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        status, said = probe.run(command, environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = said.strip().splitlines()
    return "" if status == 0 else lines[0] if lines else f"exit status {status}"


def _found(program: str) -> str:
    return shutil.which(program) or f"/bin/{program}"


def would_be_lost(build_dir: Path) -> str:
    """Something in the directory that sccache-dist deletes whenever it starts, and that it has not made; '' for
    nothing. Raises OSError where there is something that is no directory."""
    if not os.path.lexists(build_dir):
        return ""
    return next((path.name for path in sorted(build_dir.iterdir()) if path.name not in _OWN), "")


# The net.


def is_own_address(address: str) -> bool:
    """Whether this machine has the IP of `IP:PORT`."""
    host, _ = split(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as one:
        try:
            one.bind((host, 0))
        except OSError:
            return False
    return True


def listening_trouble(address: str, timeout: float = 3.0) -> str:
    """Why nobody would get through to a server at `IP:PORT`; '' where it answers. Its certificate, which only the
    scheduler knows, is not looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(split(address), timeout) as plain:
            try:
                context.wrap_socket(plain).close()
            except (TimeoutError, ssl.SSLError, ConnectionError) as error:
                hangs = isinstance(error, TimeoutError)
                return "it takes connections and says nothing: it hangs" if hangs else "what listens is no server"
    except ConnectionRefusedError:
        return "nobody listens there"
    except TimeoutError:
        return f"no answer within {timeout:g} s, as with a firewall"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def token_trouble(server: Server, timeout: float = 3.0) -> tuple[str, str]:
    """Why the scheduler does not take this server's token, and what to do; ('', '') where it does. Nothing is
    reported to it: the request is no report, which it sees once it has looked at the token. Raises FarmError."""
    origin = f"{server.scheduler} (scheduler_url in {server.config})"
    sent = server.token if server.token_kind == "jwt_token" else f"{server.public} {server.token}"
    headers = {"Authorization": f"Bearer {sent}", "Content-Type": "application/octet-stream"}
    answer = client.exchange(server.scheduler, origin, "POST", _HEARTBEAT, timeout, headers)
    if answer.status == 400:
        return "", ""
    if "mismatched_address" in answer.why:
        what = f"the scheduler sees this machine at another address than {split(server.public)[0]} (public_addr)"
        return what, (
            "Write the address by which this machine reaches the scheduler into public_addr; a proxy before the "
            "scheduler has to pass it on in the header X-Real-IP."
        )
    if answer.status in (401, 403):
        again = "Join the farm again: `safe-ext-build farm init server --force`, with the word in server.join."
        return "the scheduler does not take this server's token", again
    return f"the scheduler answers a server's report with HTTP {answer.status}", "Look at the proxy before it."
