"""What the machines of a farm are told: the configurations of sccache-dist, units for systemd, and the word by
which a machine joins. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import FarmError
from . import client

Role = Literal["client", "server"]
JOINING: tuple[Role, ...] = ("client", "server")
SCHEDULER_PORT, SERVER_PORT = 10600, 10501
STEP = 4 << 30
"""Bytes that a step of nvcc may take: cicc and ptxas of a big kernel."""
_ADDRESS = re.compile(r"(?:(?P<v4>\d+(?:\.\d+){3})|\[(?P<v6>[0-9a-fA-F:.]+)\])(?::(?P<port>\d{1,5}))?")
_JOIN = re.compile(r"(?P<url>https?://[!-~]+?)/?#(?P<role>client|server)=(?P<token>[!-~]+)")
_GET_ONE = "It is the line in {role}.join beside the scheduler's configuration, which `farm init scheduler` wrote."


@dataclass(frozen=True)
class Join:
    """What a machine has to know to join: it is a secret."""

    role: Role
    scheduler: str
    token: str = field(repr=False)

    @property
    def word(self) -> str:
        """All of it in one word, to be read by `read_join`."""
        return f"{self.scheduler}#{self.role}={self.token}"


def read_join(word: str, role: Role, source: str) -> Join:
    """The word that somebody was given. Raises FarmError, which does not show it."""
    match = _JOIN.fullmatch(word.strip())
    hint = _GET_ONE.format(role=role)
    if match is None:
        what = "there is nothing" if not word.strip() else "what stands there is no word to join a farm with"
        raise FarmError(f"{what} in {source}", code="SEB-9103", hint=hint)
    if match["role"] != role:
        what = f"the word in {source} is for a {match['role']}, and this is to be a {role}"
        raise FarmError(what, code="SEB-9103", hint=hint)
    return Join(role, client.url(match["url"], f"the address in {source}"), match["token"])


def new_token() -> str:
    """A token that nobody guesses, in letters that need no quoting anywhere."""
    return secrets.token_hex(32)


def address(text: str, port: int) -> str:
    """`IP[:PORT]` as sccache-dist wants it, with `port` where none is named. Raises FarmError."""
    match = _ADDRESS.fullmatch(text)
    host, given = (match["v4"] or match["v6"], match["port"]) if match else (text, None)
    hint = f"Write the IP address by which the others reach this machine, such as 10.0.0.1 or 10.0.0.1:{port}."
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        what = f"--address is no IP address, and sccache-dist takes no names: {text}"
        raise FarmError(what, code="SEB-9102", hint=hint) from None
    number = int(given or port)
    if found.is_unspecified or not 0 < number < 1 << 16:
        raise FarmError(f"nobody can reach a machine at {text} (--address)", code="SEB-9102", hint=hint)
    return f"[{found}]:{number}" if found.version == 6 else f"{found}:{number}"


# What a server can bear.


@dataclass(frozen=True)
class Capacity:
    """What a server offers. `cpus`: their numbers; `steps`: how many the scheduler gives it at a time; `memory`:
    bytes for all of them; `bears`: how many steps that memory is for."""

    cpus: tuple[int, ...]
    steps: int
    memory: int
    bears: int


def steps(cpus: int) -> int:
    """How many steps a scheduler of sccache-dist gives a server with so many CPUs at a time."""
    return cpus + 1 + cpus // 8


def capacity(cpus: Sequence[int], memory: int, step: int = STEP) -> Capacity:
    """As many of the CPUs as the memory has steps for, since the scheduler looks at CPUs only; one at least."""
    bears = memory // step
    number = max((n for n in range(1, len(cpus) + 1) if steps(n) <= bears), default=1)
    return Capacity(tuple(sorted(cpus)[:number]), steps(number), memory, bears)


def cpu_list(cpus: Sequence[int]) -> str:
    """`0-3,8`, as taskset and systemd read it."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def count_cpus(text: str) -> int:
    """How many CPUs a list such as `0-3,8` or `0 1 2` names; 0 where it is none."""
    total = 0
    for part in re.split(r"[\s,]+", text.strip()):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            return 0
        total += int(match[2] or match[1]) - int(match[1]) + 1
    return total


# Configurations.


def scheduler_config(public: str, client_token: str, server_token: str) -> str:
    """What `sccache-dist scheduler` is told."""
    return _lines(
        "# Written by `safe-ext-build farm init scheduler`. The tokens are secrets.",
        f"public_addr = {_text(public)}",
        "",
        *_token("client_auth", client_token),
        "",
        *_token("server_auth", server_token),
    )


def server_config(public: str, join: Join, data: Path, bwrap: Path) -> str:
    """What `sccache-dist server` is told. It deletes `data`/build whenever it starts."""
    return _lines(
        "# Written by `safe-ext-build farm init server`. The token is a secret.",
        f"public_addr = {_text(public)}",
        f"scheduler_url = {_text(join.scheduler)}",
        f"cache_dir = {_text(str(data / 'toolchains'))}",
        "",
        "[builder]",
        'type = "overlay"',
        f"build_dir = {_text(str(data / 'build'))}",
        f"bwrap_path = {_text(str(bwrap))}",
        "",
        *_token("scheduler_auth", join.token),
    )


def client_config(join: Join) -> str:
    """The tables that sccache's own configuration has for a farm."""
    url = f"scheduler_url = {_text(join.scheduler)}"
    return _lines("[dist]", url, "", *_token("dist.auth", join.token))


def _token(table: str, token: str) -> Iterator[str]:
    yield from (f"[{table}]", 'type = "token"', f"token = {_text(token)}")


def _text(value: str) -> str:
    """A text of TOML."""
    return json.dumps(value, ensure_ascii=False)


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"


# Units.


def scheduler_unit(program: Path, config: Path) -> str:
    """A unit of systemd that runs the scheduler: as root, who owns its configuration, without root's rights."""
    hardened = ("NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict", "PrivateTmp=yes")
    return _unit("scheduler", program, config, "Environment=SCCACHE_NO_DAEMON=1", *hardened)


def server_unit(program: Path, config: Path, offers: Capacity) -> str:
    """A unit of systemd that runs a server: as root, on its CPUs and within its memory. A compiler that exceeds
    that is killed, and the server goes on."""
    limits = (f"CPUAffinity={cpu_list(offers.cpus)}", f"MemoryMax={offers.memory >> 20}M", "OOMPolicy=continue")
    return _unit("server", program, config, *limits)


def _unit(role: str, program: Path, config: Path, *more: str) -> str:
    return _lines(
        "[Unit]",
        f"Description=The {role} of a compile farm (sccache-dist)",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        f"ExecStart={_word(program)} {role} --config {_word(config)}",
        "Environment=SCCACHE_LOG=warn",
        *more,
        "Restart=always",
        "RestartSec=5",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    )


def _word(path: Path) -> str:
    """A path as systemd reads it in a command."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if re.fullmatch(r"[\w./+@:=-]+", text) else f'"{text}"'
