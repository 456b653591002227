"""Are the ports free? Asked before anything starts, so that a busy one is a sentence and not a half-started stack."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

import psutil

from ops.stack.errors import OpsError
from ops.stack.layout import HOST


class PortBusy(OpsError):
    """A port the stack needs is taken by another program."""


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a listener could be opened on the port now. Connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def answers(port: int, host: str = HOST, timeout: float = 0.5) -> bool:
    """Whether somebody accepts connections on the port."""
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False


def holder(port: int) -> str:
    """The program that listens on the port, as far as this user may know it: "name (pid 12)" or ""."""
    try:
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr
            if connection.status == psutil.CONN_LISTEN and here and here.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""


def require_free(ports: Mapping[int, str], data: str) -> None:
    """Raise `PortBusy` for the first port that is taken."""
    for port, what in sorted(ports.items()):
        if not is_free(port):
            by = holder(port)
            option = "--temporal-port" if "Temporal" in what else "--port"
            raise PortBusy(
                f"cannot start the stack in {data}: port {port} for {what} is in use"
                f"{' by ' + by if by else ''}; end that program or choose another with {option}"
            )


def free_block(size: int, start: int = 19092, taken: Iterable[int] = ()) -> int:
    """The first port of `size` free ones in a row, from `start` on and none of `taken`."""
    avoid = set(taken)
    for first in range(start, 60000 - size, size):
        block = range(first, first + size)
        if avoid.isdisjoint(block) and all(is_free(port) for port in block):
            return first
    raise PortBusy(
        f"no {size} free ports in a row between {start} and 60000 on {HOST}; end some listeners and try again"
    )
