"""A real HTTP server on loopback that receives alerts, and responds to them as a test requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """The requests so far; `statuses` are those of the next responses, None one that never comes, then always 200."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int | None] = []
        self.released = threading.Event()
        self.url = ""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver."""
    it = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            it.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            it.headers.append(dict(self.headers))
            status = it.statuses.pop(0) if it.statuses else 200
            if status is None:
                it.released.wait(30)
                return
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", f"{it.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    it.url = f"http://127.0.0.1:{server.server_port}/secret-path"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        it.released.set()
        server.shutdown()
        server.server_close()
