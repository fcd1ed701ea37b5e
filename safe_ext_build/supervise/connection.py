"""A connection to a J or to the ninja shim. Standard library only."""

from __future__ import annotations

import os
import socket
import struct

PATIENCE = 5.0
# The longest command line that Linux runs has 6 MiB. More than this nobody says who speaks our language.
LONGEST = 1 << 26


class Connection:
    """Frames of four bytes of length and NUL-separated fields (see schedule/job.py)."""

    def __init__(self, client: socket.socket, pid: int) -> None:
        self.socket = client
        self.number = client.fileno()
        self.pid = pid
        self.buffer = b""
        self.is_visitor = False  # who looks at the build from outside

    def read(self) -> bool:
        """Take what has arrived; False when the other end is gone."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.buffer += data
        return bool(data)

    def messages(self) -> list[list[bytes]]:
        """The messages that have arrived whole. Raises ValueError when it cannot be one of ours that speaks."""
        result = []
        while len(self.buffer) >= 4:
            end = 4 + int.from_bytes(self.buffer[:4], "big")
            if end > LONGEST:
                raise ValueError("not a message")
            if len(self.buffer) < end:
                break
            result.append(self.buffer[4:end].split(b"\0"))
            self.buffer = self.buffer[end:]
        return result

    def send(self, fields: list[bytes]) -> None:
        body = b"\0".join(fields)
        self.socket.settimeout(PATIENCE)
        try:
            self.socket.sendall(len(body).to_bytes(4, "big") + body)
        except OSError:
            pass  # it is gone, and its end of the connection will tell
        finally:
            self.socket.setblocking(False)

    def offer(self, data: bytes) -> None:
        """Send what fits into the other's buffer, at once: one who does not read loses the rest."""
        try:
            self.socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            pass


def listen(path: str) -> socket.socket:
    """A socket that only this user can connect to."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    old = os.umask(0o177)
    try:
        server.bind(path)
    finally:
        os.umask(old)
    server.listen(1024)
    return server


def accept(server: socket.socket) -> Connection | None:
    """The next connection; None when it is not of this user, or is gone already."""
    try:
        client, _ = server.accept()
    except OSError:
        return None
    pid, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        client.close()
        return None
    client.setblocking(False)
    return Connection(client, pid)
