"""Checks a move against the cluster before its run is started, so that a mistyped name fails at once.

The run checks all of this again on its node; for a run that an operator starts with Temporal's tools that is the only
check.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView, NoResponse, UnknownTopic
from ops.cli.moves.log_dirs import RequestedMove
from ops.cli.target import Target
from ops.stack.errors import Refused
from storage_node.directories.names import movable
from storage_node.errors import InvalidTopic

#: Seconds for one response.
RESPONSE_SECONDS = 5.0
#: Seconds for which a topic that was just created through another node may be unknown.
PATIENCE_SECONDS = 1.0


class InvalidMove(Refused):
    """The move names a replica, node or directory that does not exist. No run was started."""


def check(target: Target, move: RequestedMove, say: Callable[[str], None]) -> None:
    """Raise `InvalidMove` for an invalid move.

    If no node responds, only print a warning: a durable run waits for its node.
    """
    if not posixpath.isabs(move.directory):
        raise InvalidMove(
            f"--to {move.directory!r} is a relative path; pass the absolute path of one of the node's log.dirs"
        )
    try:
        movable(move.partition)
    except InvalidTopic as error:
        raise InvalidMove(str(error).rstrip(".")) from error
    if not target.bootstrap:
        say("warning: the move is not checked beforehand: no bootstrap server is known (--bootstrap-server)")
        return
    try:
        with KafkaAdmin(target.bootstrap, timeout=RESPONSE_SECONDS) as admin:
            _check(admin, move, say)
    except NoResponse as error:
        say(f"warning: the move is not checked beforehand and waits for its node: {error}")


def _check(admin: KafkaAdmin, move: RequestedMove, say: Callable[[str], None]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            replicas = _replicas(admin.describe([move.partition.topic])[0])
            break
        except UnknownTopic as error:
            if time.monotonic() > until:
                raise InvalidMove(str(error)) from error
            time.sleep(0.1)
    why = no_replica(move, replicas, [node.node for node in admin.nodes(fenced=True)])
    if why:
        raise InvalidMove(why)
    if move.node not in [node.node for node in admin.nodes()]:
        say(
            f"warning: node {move.node} is unavailable; the move waits for it, and its directory is "
            "not checked beforehand"
        )
        return
    why = no_directory(move, admin.log_dirs([move.node]))
    if why:
        raise InvalidMove(why)


def _replicas(topic: Mapping[str, Any]) -> dict[int, list[int]]:
    return {int(row["partition"]): list(row["replicas"]) for row in topic["partitions"]}


def no_replica(move: RequestedMove, replicas: Mapping[int, Sequence[int]], nodes: Collection[int]) -> str | None:
    """Return why the node does not host the replica, or None. `replicas`: the nodes of each partition of the topic."""
    topic, partition, node = move.partition.topic, move.partition.partition, move.node
    held = replicas.get(partition)
    if held is None:
        numbers = f"0 to {max(replicas)}" if len(replicas) > 1 else "only 0"
        return f"topic {topic} has no partition {partition}, it has {numbers}"
    if node in held:
        return None
    if node not in nodes:
        known = ", ".join(map(str, sorted(nodes))) or "unknown"
        return f"node {node} does not exist in this cluster; its nodes are {known}"
    where = ", ".join(f"node {each}" for each in held)
    return f"node {node} has no replica of {move.partition}, which is on {where}"


def no_directory(move: RequestedMove, views: Sequence[LogDirectoryView]) -> str | None:
    """Return why the replica cannot be moved to that directory of its node, or None."""
    wanted = posixpath.normpath("/" + move.directory.lstrip("/"))
    for view in views:
        if posixpath.normpath(view.path) == wanted:
            return f"{wanted} on node {move.node} is offline ({view.error})" if view.error else None
    paths = ", ".join(view.path for view in views)
    return f"{wanted!r} is not one of the log.dirs of node {move.node}: {paths}"
