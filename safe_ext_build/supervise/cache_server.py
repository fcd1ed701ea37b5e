"""The sccache server of one build: a child of the supervisor, so it is measured with it and ends with it.

Compilers run below the server, not below the J that waits for them: whose they are, their environment tells, which
is that of the J. Standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import time
from collections.abc import Mapping
from typing import Literal

from ..launcher.call import Launching
from ..launcher.redact import redact
from .linux import begin_child
from .processes import Process, read, send

PATIENCE = 15.0
"""Seconds for a server to begin to listen: one that stores elsewhere first tries whether it can."""
IDLE = 20.0
"""Seconds without any work for those who wait, after which it is given up: with a Redis that is gone, sccache 0.16
waits a minute for each step of each compile."""
SPENT = 3.0
"""The same where its storage is known to fail: nothing new goes through it, and who waits does so in vain."""
NICE = 3
State = Literal["none", "starting", "ready", "lost"]


class CacheServer:
    """Starts a server when the first compile needs it, and knows how it is."""

    what = "the sccache server of this build"

    def __init__(self, launching: Launching, environ: Mapping[str, str], temporary: str) -> None:
        self.launching = launching
        self.environ = environ
        self.temporary = temporary
        self.address = launching.server
        self.log = launching.log
        self.state: State = "none"
        self.process: Process | None = None
        self.why = ""
        self.patience = IDLE
        self._deadline = 0.0
        self._spent = 0.0
        self._worked = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def need(self) -> None:
        """A compile is to go through it. A server of the user's own is only asked for, never started."""
        if self.state != "none":
            return
        if not self.launching.ours:
            self.state = "ready" if _listener(self.address) is not None else "lost"
            self.why = f"nobody listens at {self.address}, the sccache server that the environment names"
            return
        if (pid := _listener(self.address)) is not None:  # something else of this build was first
            self.state, self.process = "ready", read(pid)
            return
        self.start()

    def start(self) -> None:
        self._deadline = time.monotonic() + PATIENCE
        self.state = "starting"
        self.process = read(self._fork())

    def look(self) -> None:
        """Take note of whether it has begun to listen."""
        if self.state != "starting":
            return
        if _listener(self.address) is not None:
            self.state = "ready"
        elif time.monotonic() > self._deadline:
            asked = "does what it stores in answer, and take its password?"
            self.lose(self._last_words() or f"it did not begin to listen within {PATIENCE:.0f} s ({asked})")
            if self.process:
                send(self.process, signal.SIGKILL)

    def watch(self, now: float, spent: float, waited_for: bool) -> None:
        """Take note of the CPU seconds that it and its compilers have used. `waited_for`: compiles run through it.
        (Who tries again and again to connect uses a little.)"""
        if not waited_for or spent - self._spent > 0.02 * (now - self._worked):
            self._spent, self._worked = spent, now
        elif self.state == "ready" and self.process and now - self._worked > self.patience:
            self.lose(f"it has done nothing for {self.patience:.0f} s (does what it stores in answer?)")
            send(self.process, signal.SIGKILL)

    def ended(self, pid: int, status: int) -> bool:
        """Whether the process that has ended was the server: then it is lost."""
        if not self.process or pid != self.process.pid:
            return False
        word = f"signal {status & 0x7F}" if status & 0x7F else f"exit status {status >> 8}"
        begun = self.state == "ready"
        self.lose(f"it ended with {word}" if begun else self._last_words() or f"it ended at once with {word}")
        self.process = None
        return True

    def lose(self, why: str) -> None:
        if self.state != "lost":
            self.state, self.why = "lost", f"{self.what} is lost: {why}"

    def line(self) -> str:
        return (
            f"{redact(self.why, self.environ, self.launching.secrets)}; what is left is compiled without a cache"
        )

    def _fork(self) -> int:
        parent, launching = os.getpid(), self.launching
        environ = {
            **self.environ,
            **self.own_variables(),
            "SCCACHE_START_SERVER": "1",
            "SCCACHE_NO_DAEMON": "1",
            "SCCACHE_IDLE_TIMEOUT": "0",
            "SCCACHE_SERVER_UDS": self.address,
            "SCCACHE_BASEDIRS": ":".join(filter(None, [self.environ.get("SCCACHE_BASEDIRS"), *launching.bases])),
            "SCCACHE_ERROR_LOG": self.log,
            "SCCACHE_LOG": "warn,sccache::server=debug,sccache::compiler::compiler=debug",
            "TMPDIR": self.temporary,
        }
        program = launching.program("sccache", "")
        pid = os.fork()
        if pid:
            return pid
        try:
            begin_child(parent)
            _be_expendable()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            os.execvpe(program, [program], environ)
        finally:
            os._exit(127)

    def own_variables(self) -> dict[str, str]:
        """Without a farm: what it runs has been admitted to this machine."""
        return {"SCCACHE_CONF": self.launching.config} if self.launching.config else {}

    def _last_words(self) -> str:
        """The error that its log ends with."""
        try:
            with open(self.log, errors="replace") as file:
                lines = [line.strip() for line in file if "ERROR" in line or line.startswith("sccache: ")]
        except OSError:
            return ""
        return lines[-1].rpartition("] ")[2].removeprefix("sccache: ")[:300] if lines else ""


def _be_expendable() -> None:
    """The compilers that it starts are the first that the kernel may kill, as those of a J are."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            score = min(1000, int(file.read()) + 500)
            file.seek(0)
            file.write(str(score))
        os.nice(NICE)
    except OSError:
        pass


def _listener(address: str) -> int | None:
    """The process that listens at a socket's path (or 0, at a port); None when nobody does."""
    try:
        if address.isdecimal():
            with socket.create_connection(("127.0.0.1", int(address)), timeout=1):
                return 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1)
            client.connect(address)
            return int(struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
    except OSError as error:
        return 0 if error.errno == errno.EAGAIN else None
