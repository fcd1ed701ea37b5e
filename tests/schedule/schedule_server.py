"""A supervisor for one job, played by the test over a real Unix socket."""

from __future__ import annotations

import socket
import struct
from pathlib import Path


class Connection:
    """The supervisor's end of a lease."""

    def __init__(self, client: socket.socket) -> None:
        client.settimeout(10)
        self.client = client
        self.pid = int(struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def receive(self) -> list[bytes] | None:
        """The next message; None at the end."""
        head = self._exactly(4)
        return None if head is None else (self._exactly(int.from_bytes(head, "big")) or b"").split(b"\0")

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                part = self.client.recv(count - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                return None
            data += part
        return data

    def send(self, *fields: bytes) -> None:
        body = b"\0".join(fields)
        self.client.sendall(len(body).to_bytes(4, "big") + body)

    def close(self) -> None:
        self.client.close()


class Server:
    """Listens where jobs and shims connect."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen(64)
        self.socket.settimeout(10)

    def accept(self) -> Connection:
        return Connection(self.socket.accept()[0])

    def close(self) -> None:
        self.socket.close()
