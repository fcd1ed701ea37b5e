"""Something that listens where a scheduler of sccache-dist should be, and answers as one does, or otherwise."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def scheduler(
    *,
    servers: int = 1,
    token: str = "right",
    status: bytes = b"",
    date: str = "",
    hangs: bool = False,
    scheme: str = "http",
) -> Iterator[str]:
    """Its URL. `status`: what it says in place of a scheduler's status; `date`: the time it claims to have."""

    class Handler(BaseHTTPRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return date or super().date_time_string(timestamp)

        def do_GET(self) -> None:
            if hangs:
                over.wait(10)
            numbers = {"num_servers": servers, "num_cpus": 4 * servers, "in_progress": 0}
            self._answer(200, status or json.dumps(numbers).encode())

        def do_POST(self) -> None:
            self._answer(400 if self.headers["Authorization"] == f"Bearer {token}" else 401, b"")

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    over = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"{scheme}://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


def nobody() -> str:
    """The URL of a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"
