"""Port checks before a start: a busy port is an error message instead of a half-started stack."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Mapping

import psutil

from ops.stack.errors import OpsError
from ops.stack.layout import HOST


class PortBusy(OpsError):
    """Another program uses a port that the stack needs."""


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether a listener can be opened on the port. Connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def accepts(port: int, host: str = HOST, timeout: float = 0.5) -> bool:
    """Return whether a process accepts connections on the port."""
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False


def holder(port: int) -> str:
    """Return the program that listens on the port as "name (pid 12)", or "" if this user cannot read it."""
    try:
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr
            if connection.status == psutil.CONN_LISTEN and here and here.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""


def require_free(ports: Mapping[int, str], data: str) -> None:
    """Raise `PortBusy` for the first port in use."""
    for port, what in sorted(ports.items()):
        if not is_free(port):
            by = holder(port)
            option = "--temporal-port" if "Temporal" in what else "--port"
            raise PortBusy(
                f"cannot start the stack in {data}: port {port} for {what} is in use"
                f"{' by ' + by if by else ''}; end that program or choose another with {option}"
            )


def free_block(size: int, start: int = 19092, taken: Iterable[int] = ()) -> int:
    """Return the first of `size` consecutive free ports from `start` on, none of them in `taken`."""
    avoid = set(taken)
    for first in range(start, 60000 - size, size):
        block = range(first, first + size)
        if avoid.isdisjoint(block) and all(is_free(port) for port in block):
            return first
    raise PortBusy(
        f"no {size} consecutive ports between {start} and 60000 on {HOST} are free; stop some listeners and try again"
    )


def some_block(size: int) -> int:
    """Return the first of `size` consecutive free ports below the ephemeral ones, from a random place on.

    Of a fixed place two processes that begin at once would both find the same block free.
    """
    return free_block(size, start=random.randrange(20_000, 30_000))
