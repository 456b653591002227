"""What the private API shows of moves and reassignments under way, to clients that read it repeatedly.

All of it comes from this node's memory, without a call to the controller or a workflow run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node


def moves(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """The copies of this node; what swaps have left of their sources, with the replica that took their place; log
    directories that are offline.
    """
    return {
        **_metadata(node),
        "stopped": node.engine.moves_stopped,
        "moves": [status.as_dict() for status in node.engine.statuses()],
        "waiting": _waiting(node),
        "offline": [{"path": one.name, "reason": one.failure} for one in node.dirs.directories if not one.online],
    }


def reassignments(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """The partitions of the topics named (`topics`, a list; without it those that are being reassigned) as this node's
    metadata has them, the bytes that this node holds of each that is being reassigned, and how far its own new replicas
    are (`catching_up`, as reported to `PartitionReassignment`).
    """
    image, wanted = node.metadata.image, call.get("topics")
    names = list(image.topics) if not isinstance(wanted, list) else [str(name) for name in wanted]
    rows: list[list[Any]] = []
    sizes: list[list[Any]] = []
    for name in names:
        topic = image.topics.get(name)
        for row in topic.partitions.values() if topic is not None else ():
            moving = bool(row.adding or row.removing)
            if moving or wanted is not None:
                sets = (row.replicas, row.adding, row.removing, row.isr)
                rows.append([name, row.partition, *map(list, sets), row.leader])
            if moving and (held := _held(node, name, row.partition)) is not None:
                sizes.append([name, row.partition, held])
    return {**_metadata(node), "partitions": rows, "sizes": sizes, "catching_up": node.catching_up()}


def _metadata(node: Node) -> dict[str, Any]:
    """The version of the response's metadata, and the nodes that are fenced in it."""
    image = node.metadata.image
    fenced = [row.node for row in image.nodes.values() if row.fenced]
    return {"generation": image.generation, "version": image.version, "fenced": fenced}


def _waiting(node: Node) -> list[dict[str, Any]]:
    rows = []
    for each in node.engine.waiting():
        held = node.replicas.served.get(each.tp)
        rows.append(
            {
                "topic": each.tp.topic,
                "partition": each.tp.partition,
                "source": each.directory,
                "directory": held.directory.name if held is not None else "",
                "bytes_total": held.log.size if held is not None else 0,
                "due": round(each.due, 3),
            }
        )
    return rows


def _held(node: Node, topic: str, partition: int) -> int | None:
    held = node.replicas.served.get(TopicPartition(topic, partition))
    return None if held is None else held.log.size
