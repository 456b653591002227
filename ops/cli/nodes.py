"""Calls of the nodes' private API, which requires neither Temporal nor the rest of the cluster."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ops.cli.kafka_admin import KafkaAdmin, NodeAddress
from ops.cli.target import Target
from ops.stack.errors import OpsError, Refused, ResponseTimeout
from ops.stack.layout import HOST
from storage_node.wire.client import private_client

#: Seconds for which the addresses of a cluster are cached.
ADDRESSES_SECONDS = 30.0


class Reach(StrEnum):
    """How a node responds to a call of its private API from this host."""

    RESPONDS = "responds"
    REFUSED = "refused"  # its machine refuses the connection: no process listens on the port
    SILENT = "silent"  # no response: its machine is down, or cut off from this host
    CLOSED = "closed"  # it closes the connection: its configuration does not allow this host


class Unreachable(ResponseTimeout):
    """A node did not respond; `reach` is how the call failed."""

    def __init__(self, message: str, reach: Reach, where: str = "") -> None:
        super().__init__(message, where=where)
        self.reach = reach


def addresses(target: Target, *, fenced: bool = False) -> list[NodeAddress]:
    """Return the addresses of the stack's nodes, running or not; without a stack those of Kafka's metadata that are not
    fenced, or with `fenced` all. Raises `OpsError` for Apache Kafka, whose brokers have no private API.
    """
    target.refuse_apache_kafka("only rehome's storage nodes support this command")
    if target.stack is not None and target.bootstrap == target.stack.bootstrap:
        return [NodeAddress(node, HOST, target.stack.node_port(node)) for node in target.stack.node_ids]
    with KafkaAdmin(target.need_kafka()) as admin:
        return admin.nodes(fenced=fenced)


class Addresses:
    """The addresses of all nodes, fenced ones too, for a command that reads repeatedly.

    `retry`: seconds until addresses that were never found are looked up again.
    """

    def __init__(self, target: Target, retry: float = ADDRESSES_SECONDS) -> None:
        self._target, self._retry = target, retry
        self._known: list[NodeAddress] = []
        self._due = float("-inf")
        self.problem: OpsError | None = None
        """Why the last lookup failed; None if it succeeded."""

    def get(self) -> list[NodeAddress]:
        """Return the addresses; they are looked up every `ADDRESSES_SECONDS`.

        If a lookup fails, for example while the bootstrap node restarts, the known addresses remain; raises `OpsError`
        if none are known.
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
    """Return one node's address. Raises `OpsError` for an unknown node."""
    known = addresses(target)
    for found in known:
        if found.node == node:
            return found
    names = ", ".join(str(found.node) for found in known)
    raise OpsError(f"node {node} does not exist in this cluster; its nodes are {names or 'unknown'}")


def offline_replicas(target: Target, topic: str | None = None) -> list[dict[str, Any]]:
    """Return the replicas that are offline alone, from the first node that responds, each with its node, directory,
    failed file and reason. Raises `OpsError` if no node responds.
    """
    problem: OpsError | None = None
    for where in addresses(target):
        try:
            found: list[dict[str, Any]] = call(where, "offline-replicas", topic=topic)["replicas"]
            return found
        except OpsError as error:
            problem = error
    raise problem or OpsError("the cluster has no nodes")


def failure_line(row: dict[str, Any]) -> str:
    """Return a line about a replica that is offline alone: which file failed, where, why, and how to bring it online.
    It is a line of its own, so that long paths are not cut.
    """
    replica = f"{row['topic']}-{row['partition']}"
    return (
        f"{replica} is offline on node {row['node']}: {row['file'] or row['directory'] or 'unknown file'}: "
        f"{row['reason']}; after a repair: rehome replicas online {row['node']} {replica}"
    )


def missing_line(node: int, row: dict[str, Any]) -> str:
    """Return a line about a directory id that no log directory has: where it was, who lists it, what to do."""
    was = f" (it was {row['path']!r})" if row["path"] else ""
    since = ""
    if row["since"] is not None:
        since = (
            f" since {datetime.fromtimestamp(row['since'], UTC).isoformat(' ', 'seconds').removesuffix('+00:00')} UTC"
        )
    then = f"mount it or put it back into log.dirs, or, if it is lost, stop node {node} and run: {row['forget']}"
    if row["may_be"]:
        then = f"repair {', '.join(map(repr, row['may_be']))} first, whose own id could not be read; then {then}"
    return (
        f"node {node} has no log directory with the id {row['id']}{was}{since}, which the meta.properties of "
        f"{', '.join(row['listed_by']) or 'its log directories'} list; {then}"
    )


def call(where: NodeAddress, op: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
    """Call one node. Raises `Unreachable` if the node does not respond, another `OpsError` if it rejects the call."""
    try:
        return private_client.call(where.host, where.port, op, timeout=timeout, **fields)
    except private_client.PrivateCallFailed as error:
        raise Refused(f"node {where.node} rejected {op}: {error}", where=str(where)) from error
    except (OSError, ValueError) as error:
        reach = _reach(error)
        see = "is it running? see: rehome stack status"
        if reach is Reach.CLOSED:
            see = "it is stopping, does not allow this host, or is Apache Kafka, which does not support this call"
        raise Unreachable(
            f"node {where.node} does not respond at {where} ({error or type(error).__name__}); {see}", reach, str(where)
        ) from error


def _reach(error: Exception) -> Reach:
    if isinstance(error, ConnectionRefusedError):
        return Reach.REFUSED
    if isinstance(error, (ConnectionError, ValueError)):
        return Reach.CLOSED
    return Reach.SILENT
