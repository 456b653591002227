"""Can this move be meant? Asked of the cluster before a run is started, so that a slip of the pen is told at once.

A run judges all of this again, when it gets to its node; who starts one with Temporal's own tools is told by the run.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView, NoAnswer, UnknownTopic
from ops.cli.log_dirs import Wish
from ops.cli.target import Target
from ops.stack.errors import OpsError
from storage_node.directories.names import movable
from storage_node.errors import InvalidTopic

#: Seconds for one answer; and how long a topic may be unknown that was made a moment ago through another node.
ANSWER_SECONDS = 5.0
PATIENCE_SECONDS = 1.0


class NotMeant(OpsError):
    """The move names something that is not there. Nothing was started."""


def check(target: Target, wish: Wish, say: Callable[[str], None]) -> None:
    """Raise `NotMeant` for a move that cannot be.

    Where no node answers this is only said, with `say`: a durable run waits for its node.
    """
    if not posixpath.isabs(wish.directory):
        raise NotMeant(
            f"--to {wish.directory} is a relative path, which a node cannot know; "
            "write the absolute path of one of its log.dirs"
        )
    try:
        movable(wish.partition)
    except InvalidTopic as error:
        raise NotMeant(str(error).rstrip(".")) from error
    if not target.bootstrap:
        say("warning: the move is not checked beforehand, since no node's address is known (--bootstrap-server)")
        return
    try:
        with KafkaAdmin(target.bootstrap, timeout=ANSWER_SECONDS) as admin:
            _ask(admin, wish, say)
    except NoAnswer as error:
        say(f"warning: the move is not checked beforehand and waits for its node: {error}")


def _ask(admin: KafkaAdmin, wish: Wish, say: Callable[[str], None]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            replicas = _replicas(admin.describe([wish.partition.topic])[0])
            break
        except UnknownTopic as error:
            if time.monotonic() > until:
                raise NotMeant(str(error)) from error
            time.sleep(0.1)
    why = no_replica(wish, replicas, [node.node for node in admin.nodes(fenced=True)])
    if why:
        raise NotMeant(why)
    if wish.node not in [node.node for node in admin.nodes()]:
        say(f"warning: node {wish.node} is away; the move waits for it, and its directory is not checked beforehand")
        return
    why = no_directory(wish, admin.log_dirs([wish.node]))
    if why:
        raise NotMeant(why)


def _replicas(topic: Mapping[str, Any]) -> dict[int, list[int]]:
    return {int(row["partition"]): list(row["replicas"]) for row in topic["partitions"]}


def no_replica(wish: Wish, replicas: Mapping[int, Sequence[int]], nodes: Collection[int]) -> str | None:
    """Why the node has no such replica, or None. `replicas`: the topic's partitions, each with its nodes."""
    topic, partition, node = wish.partition.topic, wish.partition.partition, wish.node
    held = replicas.get(partition)
    if held is None:
        there = f"0 to {max(replicas)}" if len(replicas) > 1 else "only 0"
        return f"topic {topic} has no partition {partition}, it has {there}"
    if node in held:
        return None
    if node not in nodes:
        return f"there is no node {node} in this cluster; it has {', '.join(map(str, sorted(nodes))) or 'none'}"
    where = ", ".join(f"node {each}" for each in held)
    return f"node {node} has no replica of {wish.partition}, which is on {where}"


def no_directory(wish: Wish, views: Sequence[LogDirectoryView]) -> str | None:
    """Why the replica cannot go to that directory of its node, or None."""
    wanted = posixpath.normpath("/" + wish.directory.lstrip("/"))
    for view in views:
        if posixpath.normpath(view.path) == wanted:
            return f"{wanted} on node {wish.node} is offline ({view.error})" if view.error else None
    paths = ", ".join(view.path for view in views)
    return f"{wanted} is not one of the log.dirs of node {wish.node}: {paths}"
