"""A board made by hand, and its server on a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ops.dashboards.live import server
from ops.dashboards.live.board import Board, Fact, Freshness, Kind, Source, Work
from ops.dashboards.live.hub import Hub, Reader, Reading
from tests.support.nodes.node_harness import until

MB = 1_000_000
NASTY = "</script><img src=x onerror=alert(1)><b>t</b>"


def work(number: int = 0, **changes: Any) -> Work:
    """A copy under way, with other values in some fields."""
    values: dict[str, Any] = {
        "key": f"disk/1/orders-{number}",
        "kind": Kind.DISK,
        "title": f"orders-{number}",
        "phase": "copying",
        "id": f"rehome/move/1/orders-{number}/1",
        "origin": "node 1: /data/disk-a",
        "target": "/data/disk-b",
        "bytes_total": 1000 * MB,
        "bytes_copied": 250 * MB,
        "rate": 20.0 * MB,
        "eta_low": 35.0,
        "eta_high": 48.0,
        "facts": (Fact("bytes, rate, phase", "node 1", time.time()), Fact("run", "Temporal", time.time() - 1)),
    }
    return Work(**(values | changes))


def board(*rows: Work, at: float | None = None, notes: tuple[str, ...] = (), **states: Freshness) -> Board:
    """A board of these rows, one move if there are none; `states` are those of temporal and node_1."""
    now = time.time() if at is None else at
    stale = "Temporal at 127.0.0.1:7233 has not responded within 3 s"
    temporal = states.get("temporal", Freshness.FRESH)
    sources = (
        Source("Temporal", temporal, now - 1, "" if temporal is Freshness.FRESH else stale),
        Source("node 1", states.get("node_1", Freshness.FRESH), now - 0.4),
        Source("node 2", Freshness.FRESH, now - 0.4),
    )
    return Board(now, "prod", sources, rows or (work(),), notes, "http://localhost:8233/namespaces/default")


@contextmanager
def served(
    compose: Callable[[Mapping[str, Reading], float], Board],
    site: Path | None = None,
    hosts: Collection[str] = server.LOOPBACK,
    **readers: Reader,
) -> Iterator[str]:
    """The address of a server that composes its boards so."""
    hub = Hub(readers, compose)
    running = server.server(server.application(hub, hosts, site))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            until(lambda: running.started, what="the server listens")
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
        finally:
            running.should_exit = True
            thread.join(10)
        assert not thread.is_alive()
