"""The running builds of this user, seen from outside: who they are, how far they are, and how they are ended."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..machine.neighbours import Record, living
from .linux import pidfd_open
from .processes import Process, read
from .status import ASK, END, Status
from .workspace import Workspace

ANSWER = 2.0
"""Seconds that a supervisor has to answer; it is asked between two looks at its processes."""
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Found:
    """A build that lives. `status` is None when its supervisor does not answer (it may be stopped)."""

    record: Record
    status: Status | None
    elapsed: float


def running(environ: Mapping[str, str]) -> list[Found]:
    """The builds of this user on this machine, the eldest first."""
    return [look(record) for record in living(environ) if record.workspace]


def look(record: Record) -> Found:
    with contextlib.suppress(OSError), Line(Path(record.workspace)) as line:
        return Found(record, line.ask(ASK), time.time() - record.started)
    return Found(record, None, time.time() - record.started)


class Line:
    """A connection to the supervisor of a build; entering it raises OSError when there is none.

    `supervisor` is the process at its other end, as the kernel says, with a descriptor that stays its own: while
    the connection stands, the pid cannot have been used again.
    """

    supervisor: Process

    def __init__(self, workspace: Path) -> None:
        self._path = os.fspath(Workspace(workspace, -1).socket)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Line:
        try:
            self._socket.settimeout(ANSWER)
            self._socket.connect(self._path)
            self.supervisor = self._peer()
        except OSError:
            self._socket.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _peer(self) -> Process:
        """Who listens. Raises OSError when it is another user, or lives where we cannot see it."""
        pid, user, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid() or pid <= 0:
            raise PermissionError(f"{self._path} belongs to user {user}")
        pidfd = pidfd_open(pid)
        try:
            process = read(pid)
            if process is None or self._is_closed():
                raise ProcessLookupError(pid)
            return process
        finally:
            os.close(pidfd)

    def _is_closed(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0)) and not self._socket.recv(1, socket.MSG_PEEK)

    def ask(self, *fields: bytes) -> Status | None:
        """Send a message; None when there is no answer to it."""
        body = b"\0".join(fields)
        try:
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
            return Status.parse(b"".join(self._answer()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def end(self, reason: str) -> Status | None:
        """Ask the supervisor to end its build."""
        return self.ask(END, reason.encode())

    def _answer(self) -> Iterator[bytes]:
        deadline, size = time.monotonic() + ANSWER, 0
        while size < _LARGEST and time.monotonic() < deadline:
            part = self._socket.recv(1 << 16)
            yield part
            size += len(part)
            if not part or part.endswith(b"\n"):
                return
