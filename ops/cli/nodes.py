"""Talking to nodes over their private API: what needs neither Temporal nor the rest of the cluster."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Any

from ops.cli.kafka_admin import KafkaAdmin, NodeAddress
from ops.cli.target import Target
from ops.stack.errors import OpsError
from ops.stack.layout import HOST
from storage_node.protocol import private_client

#: A cluster's addresses are good for so long.
ADDRESSES_SECONDS = 30.0


class Reach(StrEnum):
    """How a node responds to a call of its private API from this host."""

    RESPONDS = "responds"
    REFUSED = "refused"  # its machine refuses the connection: nothing listens there
    SILENT = "silent"  # no response: its machine is down, or cut off from here
    CLOSED = "closed"  # it closes the connection: it responds to the hosts that its configuration allows


class Unreachable(OpsError):
    """A node that did not respond, and how."""

    def __init__(self, message: str, reach: Reach) -> None:
        super().__init__(message)
        self.reach = reach


def addresses(target: Target, *, fenced: bool = False) -> list[NodeAddress]:
    """All nodes: those of the stack (whether they run or not), else the live ones of Kafka's metadata, or with `fenced`
    all of it.
    """
    if target.stack is not None and target.bootstrap == target.stack.bootstrap:
        return [NodeAddress(node, HOST, target.stack.node_port(node)) for node in target.stack.node_ids]
    with KafkaAdmin(target.need_kafka()) as admin:
        return admin.nodes(fenced=fenced)


class Addresses:
    """The addresses of all nodes, fenced ones too, for a command that looks again and again.

    `retry`: seconds until addresses that were never found are looked up again.
    """

    def __init__(self, target: Target, retry: float = ADDRESSES_SECONDS) -> None:
        self._target, self._retry = target, retry
        self._known: list[NodeAddress] = []
        self._due = float("-inf")
        self.problem: OpsError | None = None
        """Why the last lookup failed; None where it did not."""

    def get(self) -> list[NodeAddress]:
        """Return the addresses, which are looked up every half a minute.

        A lookup that fails, as while the bootstrap node restarts, leaves those that are known; `OpsError` where none
        are.
        """
        if time.monotonic() >= self._due:
            try:
                self._known, self.problem = addresses(self._target, fenced=True), None
            except OpsError as error:
                self.problem = error
            found = self._known or self.problem is None
            self._due = time.monotonic() + (ADDRESSES_SECONDS if found else self._retry)
        if self.problem is not None and not self._known:
            raise self.problem.with_traceback(None)
        return self._known


def address(target: Target, node: int) -> NodeAddress:
    """One node's address. Raises `OpsError` where there is no such node."""
    known = addresses(target)
    for found in known:
        if found.node == node:
            return found
    names = ", ".join(str(found.node) for found in known)
    raise OpsError(f"there is no node {node} in this cluster; it has {names or 'none'}")


def offline_replicas(target: Target, topic: str | None = None) -> list[dict[str, Any]]:
    """Replicas that are offline alone, as the first node that responds has them, each with its node, directory, bad
    file and reason. Raises `OpsError` when no node responds.
    """
    problem: OpsError | None = None
    for where in addresses(target):
        try:
            found: list[dict[str, Any]] = call(where, "offline-replicas", topic=topic)["replicas"]
            return found
        except OpsError as error:
            problem = error
    raise problem or OpsError("there are no nodes in this cluster")


def failure_line(row: dict[str, Any]) -> str:
    """A replica that is offline alone, for people: which file failed, where, why, and what to do. A line of its own, so
    that long paths stay whole.
    """
    replica = f"{row['topic']}-{row['partition']}"
    return (
        f"{replica} is offline on node {row['node']}: {row['file'] or row['directory'] or 'no file named'}: "
        f"{row['reason']}; after a repair: rehome replicas online {row['node']} {replica}"
    )


def call(where: NodeAddress, op: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
    """One call to one node. Raises `OpsError` when it refuses, of its kinds `Unreachable` when it does not respond."""
    try:
        return private_client.call(where.host, where.port, op, timeout=timeout, **fields)
    except private_client.PrivateCallFailed as error:
        raise OpsError(f"node {where.node} refused {op}: {error}") from error
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"node {where.node} does not answer at {where} ({error or type(error).__name__}); "
            "is it running? see: rehome stack status",
            _reach(error),
        ) from error


def _reach(error: Exception) -> Reach:
    if isinstance(error, ConnectionRefusedError):
        return Reach.REFUSED
    if isinstance(error, (ConnectionError, ValueError)):
        return Reach.CLOSED
    return Reach.SILENT
