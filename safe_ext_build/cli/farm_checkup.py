"""Looks at a compile farm from one of its machines: as a client, a server or the scheduler, whatever it is."""

from __future__ import annotations

import email.utils
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from .. import __version__, probe, settings
from ..errors import FarmError
from ..farm import client, roles, server, share
from ..farm.server import Server
from ..launcher import tools
from ..launcher.call import SCCACHE
from ..launcher.redact import redact
from ..machine import read_machine, reserve
from ..report.words import count, duration, size
from ..toolchain import find
from .checkup import Checkup, Finding, find_torch, guarded, problem

OLDEST = (0, 16)
"""The first sccache whose farm was seen to compile CUDA."""
_SKEW = 60  # seconds
SERVICES = Path("/etc/sccache-farm")
"""Where root's services have their configuration."""
_UNIT = Path("/etc/systemd/system/sccache-server.service")
_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_STEPS_OF_NVCC = ("nvvm/bin/cicc", "bin/ptxas", "bin/cudafe++", "bin/fatbinary")


def look(environ: Mapping[str, str], place: Path, servers: Sequence[str] = ()) -> Checkup:
    """Look at the farm from here. `place`: where the services of this machine have their configuration; `servers`:
    addresses of servers to get through to. Raises nothing expected."""
    topics: dict[str, Callable[[], Iterable[Finding]]] = {
        "tools": lambda: programs(environ),
        "client": lambda: as_client(environ, place),
        "toolchain": lambda: toolchain(environ),
        "way to the servers": lambda: way(servers),
        "scheduler": lambda: as_scheduler(place),
        "server": lambda: as_server(place, environ),
    }
    found = probe.each(lambda topic: guarded(topic, topics[topic]), topics)
    return Checkup(
        __version__,
        f"{platform.python_version()} in {sys.prefix}",
        f"{platform.system()} {platform.release()} {platform.machine()}",
        tuple(finding for findings in found for finding in findings),
    )


# The programs.


def programs(environ: Mapping[str, str]) -> Iterator[Finding]:
    """sccache and sccache-dist, which have to be of the same version."""
    install = "Install them: python -m pip install 'safe-ext-build[farm]'."
    tool, beside = tools.find(SCCACHE, environ), sccache_dist(environ)
    if tool is None:
        yield Finding("tools", "sccache is not installed: clients need it", "problem", install)
        return
    if tuple(map(int, re.findall(r"\d+", tool.version)[:2])) < OLDEST:
        yield Finding("tools", f"{tool.path} is sccache {tool.version}, older than 0.16", "problem", install)
    else:
        yield Finding("tools", f"sccache {tool.version} in {tool.path}", values={"version": tool.version})
    if beside is None:
        yield Finding("tools", "sccache-dist is not installed: schedulers and servers need it", "note", install)
        return
    _, said = probe.run([str(beside), "--version"], environ)
    version = said.split()[-1] if said.split() else "unknown"
    same = version == tool.version
    text = f"sccache-dist {version} in {beside}{'' if same else ', and sccache is another version'}"
    yield Finding("tools", text, "ok" if same else "problem", "" if same else install, {"version": version})


def sccache_dist(environ: Mapping[str, str]) -> Path | None:
    """The program that schedulers and servers run: on PATH, else beside sccache."""
    if found := shutil.which("sccache-dist", path=environ.get("PATH")):
        return Path(found)
    tool = tools.find(SCCACHE, environ)
    beside = tool.path.with_name("sccache-dist") if tool else None
    return beside if beside and beside.is_file() else None


# A machine that builds.


def as_client(environ: Mapping[str, str], place: Path) -> Iterator[Finding]:
    """What sccache is told, and whether the scheduler takes it. Raises FarmError."""
    farm = client.configured(environ)
    if farm is None:
        # A directory that we may not look into is another user's: then we are a client.
        serves = any(os.access(place / name, os.F_OK) for name in ("scheduler.toml", "server.toml"))
        text = f"no client: {client.config_path(environ)} names no farm"
        fix = "" if serves else "Join one: safe-ext-build farm init client"
        yield Finding("client", text, "note" if serves else "problem", fix)
        return
    yield Finding("client", f"the farm of {farm.origin}", values={"scheduler": redact(farm.scheduler)})
    yield from _exposed("client", farm.config)
    yield from _proxies(farm.scheduler, environ)
    yield from clock("client", farm.scheduler, farm.origin)
    tool = tools.find(SCCACHE, environ)
    try:
        if tool:
            share.have_read(farm, tool.path, environ)
        status = client.ask(farm)
    except FarmError as error:
        yield problem("client", error)
    else:
        said = f"{count(status.servers, 'server')} with {count(status.cpus, 'CPU')}"
        values = {"servers": status.servers, "cpus": status.cpus, "steps": status.in_progress}
        yield Finding("client", f"the scheduler takes the token, and has {said}", values=values)


def _exposed(topic: str, path: Path) -> Iterator[Finding]:
    """A file with a token in it that others may read."""
    if path.stat().st_mode & 0o077:
        yield Finding(topic, f"others may read the token in {path}", "note", f"chmod 600 {path}")


def _proxies(scheduler: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    host = urlsplit(scheduler).hostname or ""
    spared = [word.strip().lstrip(".") for word in environ.get("no_proxy", environ.get("NO_PROXY", "")).split(",")]
    name = next((name for name in _PROXIES if environ.get(name)), None)
    if name and not any(word and (word == "*" or host == word or host.endswith(f".{word}")) for word in spared):
        text = f"{name} is set, so sccache asks that proxy for the scheduler and the servers"
        yield Finding("client", text, "note", f"Take them out: NO_PROXY={host},… with the servers' addresses.")


def clock(topic: str, scheduler: str, origin: str) -> Iterator[Finding]:
    """The scheduler's clock against ours: a certificate that a server makes when it starts is valid from then on,
    by its own clock. Nothing where it does not answer, or does not say its time."""
    try:
        answer = client.exchange(scheduler, origin, "GET", client.STATUS, 3.0)
        ahead = email.utils.parsedate_to_datetime(answer.date).timestamp() - time.time()
    except (FarmError, ValueError):
        return
    if abs(ahead) > _SKEW:
        which = "ahead of" if ahead > 0 else "behind"
        text = (
            f"the scheduler's clock is {duration(abs(ahead))} {which} this one: certificates may not be valid yet"
        )
        yield Finding(topic, text, "problem", "Set the clocks by NTP on all machines.", {"seconds": int(ahead)})
    else:
        yield Finding(topic, "the clocks agree")


def toolchains(environ: Mapping[str, str]) -> Path:
    """Where sccache keeps the toolchains that it has packed for servers. Raises FarmError."""
    dist = client.read(client.config_path(environ)).get("dist", {})
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "/") / ".cache")
    named = dist.get("cache_dir") if isinstance(dist, dict) else None
    return Path(named or cache / "sccache-dist-client") / "client" / "tc"


def toolchain(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the toolkit that a build here would use has what nvcc's steps are. Raises SafeExtBuildError."""
    if client.configured(environ) is None:
        return
    chosen, _ = settings.load(Path.cwd(), None, environ)
    torch, lacking = find_torch(chosen, environ)
    yield from lacking
    choice = find.survey(chosen, torch, environ).choice if torch else None
    if choice is None:
        text = "no CUDA toolkit that a build here would use: only C++ can be compiled by the farm"
        yield Finding("toolchain", text, "note", "safe-ext-build doctor says what was looked at")
        return
    home = choice.toolkit.home
    missing = [name for name in _STEPS_OF_NVCC if not (home / name).exists()]
    if missing:
        fix = "Install CUDA's compiler as a whole (cuda-nvcc), or name another toolkit: cuda.home."
        yield Finding("toolchain", f"{home} lacks {', '.join(missing)}, which servers run", "problem", fix)
    else:
        yield Finding("toolchain", f"{choice.toolkit.describe()} has what servers run")


def way(servers: Sequence[str]) -> Iterator[Finding]:
    """Whether this machine gets through to servers: clients send them the steps themselves."""
    for address in servers:
        trouble = server.listening_trouble(address)
        fix = "Start it, or let its firewall pass TCP to that port from clients and scheduler." if trouble else ""
        text = f"server {address}: {trouble or 'it answers'}"
        yield Finding("way to the servers", text, "problem" if trouble else "ok", fix)


# A machine with services.


def as_scheduler(place: Path) -> Iterator[Finding]:
    """The scheduler of this machine, if it is to have one. Raises FarmError."""
    config = place / "scheduler.toml"
    address = server.scheduler_address(config)
    if not address:
        return
    yield Finding("scheduler", f"{address}, by {config}")
    yield from _exposed("scheduler", config)
    if not server.is_own_address(address):
        yield _foreign("scheduler", address, config)
        return
    answer = client.exchange(
        f"http://{address}", f"{address} (public_addr in {config})", "GET", client.STATUS, 3.0
    )
    status = client.read_status(answer, address)
    text = f"it answers: {count(status.servers, 'server')} with {count(status.cpus, 'CPU')}"
    fix = (
        "" if status.servers else "Start the servers; safe-ext-build farm check on one says why it does not come."
    )
    yield Finding("scheduler", text, "ok" if status.servers else "problem", fix)


def _foreign(topic: str, address: str, config: Path) -> Finding:
    text = f"this machine has no address {server.split(address)[0]} (public_addr in {config})"
    return Finding(topic, text, "problem", "Write one that `ip address` shows.")


def as_server(place: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The server of this machine, if it is to be one: all that it needs. Raises FarmError."""
    try:
        found = server.read(place / "server.toml")
    except FarmError as error:
        hidden = error.code == "SEB-9001" and os.geteuid() != 0
        as_root = FarmError(str(error), code="SEB-9001", hint="Run this check as root, as the server runs.")
        yield problem("server", as_root if hidden else error)
        return
    if found is None:
        if os.geteuid() != 0 and place != SERVICES and SERVICES.is_dir():
            yield Finding(
                "server", f"{SERVICES} is there, and is not looked at", "note", "Run this check as root."
            )
        return
    yield Finding("server", f"{found.public}, by {found.config}, for {redact(found.scheduler)}")
    yield from _exposed("server", found.config)
    yield from _sandbox(found, environ)
    yield from _on_the_net(found)
    yield from offers(_unit_cpus())


def _sandbox(found: Server, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What compilers run in."""
    if found.builder != "overlay":
        yield Finding("server", f"compilers run in {found.builder}, which is not looked at here", "note")
        return
    if os.geteuid() != 0:
        yield Finding(
            "server", "this check does not run as root, and a server has to", "problem", "Run it as root."
        )
        return
    yield bubblewrap(found.bwrap, environ)
    yield overlay(found.build_dir, environ)


def bubblewrap(path: Path, environ: Mapping[str, str]) -> Finding:
    """bubblewrap, tried as sccache-dist uses it."""
    install = "apt install bubblewrap"
    try:
        version = server.bubblewrap_version(path, environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or "it does not answer"
        return Finding("server", f"bubblewrap cannot be run: {path} (bwrap_path): {why}", "problem", install)
    if not version or server.is_too_old(version):
        what = f"{path} is bubblewrap {version}, older than 0.3" if version else f"{path} is no bubblewrap"
        return Finding("server", what, "problem", install)
    if trouble := server.sandbox_trouble(path, environ):
        fix = (
            "In a container, it needs --privileged, or CAP_SYS_ADMIN with seccomp and AppArmor unconfined; on a "
            "host, sysctl user.max_user_namespaces has to be above 0."
        )
        return Finding("server", f"bubblewrap may not make its namespaces here: {trouble}", "problem", fix)
    return Finding("server", f"bubblewrap {version} ({path}) makes its sandbox here", values={"version": version})


def overlay(build_dir: Path, environ: Mapping[str, str]) -> Finding:
    """The directory that compilers run in."""
    place, topic = f"{build_dir} (build_dir)", "server"
    if not build_dir.parent.is_dir():
        return Finding(topic, f"{place} cannot be made", "problem", f"mkdir -p {build_dir.parent}")
    if build_dir.is_mount():
        text = f"{place} is a mount point, which sccache-dist cannot make anew"
        return Finding(topic, text, "problem", "Name a directory within it.")
    try:
        lost = server.would_be_lost(build_dir)
    except OSError as error:
        return Finding(topic, f"{place} cannot be used: {error.strerror}", "problem", "Name a directory.")
    if lost:
        text = f"{place} holds {lost}, and sccache-dist deletes all that is there when it starts"
        return Finding(topic, text, "problem", "Name a directory that does not exist yet.")
    if trouble := server.overlay_trouble(build_dir, environ):
        fix = "Name a place on ext4 or xfs; what a container writes to is an overlay itself: mount a volume there."
        return Finding(topic, f"overlayfs cannot be mounted for {place}: {trouble}", "problem", fix)
    return Finding(topic, f"overlayfs can be mounted for {build_dir}")


def _on_the_net(found: Server) -> Iterator[Finding]:
    if not server.is_own_address(found.bind):
        yield _foreign("server", found.bind, found.config)
    elif trouble := server.listening_trouble(found.bind):
        fix = "Start it (systemctl start sccache-server); its log says why it ends (journalctl -u sccache-server)."
        yield Finding("server", f"it does not answer on {found.bind}: {trouble}", "problem", fix)
    else:
        yield Finding("server", f"it runs, and listens on {found.bind}")
    yield from clock("server", found.scheduler, found.scheduler)
    try:
        trouble, fix = server.token_trouble(found)
    except FarmError as error:
        yield problem("server", error)
    else:
        text = trouble or "the scheduler takes its token"
        yield Finding("server", text, "problem" if trouble else "ok", fix)


def _unit_cpus() -> int:
    """The CPUs that its unit lets it have; all, where there is none."""
    try:
        named = re.search(r"^CPUAffinity=(.*)$", _UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        named = None
    return (roles.count_cpus(named[1]) if named else 0) or read_machine().cpus.count


def offers(cpus: int) -> Iterator[Finding]:
    """What a server with so many CPUs is given, against this machine's memory."""
    memory = min((limit.total - reserve(limit.total) for limit in read_machine().memory), default=0)
    yield offered(cpus, memory)


def offered(cpus: int, memory: int) -> Finding:
    """The same. Pure."""
    bears, given = memory // roles.STEP, roles.steps(cpus)
    room = f"{size(memory)} of memory are enough for {bears}"
    text = f"{count(cpus, 'CPU')}: the scheduler gives it {given} steps at a time; {room}"
    values = {"cpus": cpus, "steps": given, "bears": bears}
    if given <= max(bears, 2):
        return Finding("server", text, values=values)
    fix = "Offer fewer: CPUAffinity in its unit, as farm init server writes it; the scheduler looks at CPUs only."
    return Finding("server", text, "note", fix, values)
