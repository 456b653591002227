"""The private API's views of the moves and reassignments under way, for clients that poll them.

This node returns them from memory, without a call to the controller or a workflow run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from storage_node.directories.manager import DirectoryManager
from storage_node.model.ids import TopicPartition
from storage_node.move.engine import MoveEngine
from storage_node.protocol.host import ReplicaHost


class ViewsHost(ReplicaHost, Protocol):
    """The node, as the views of its moves and reassignments see it."""

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def engine(self) -> MoveEngine: ...

    @property
    def catching_up(self) -> Callable[[], list[dict[str, Any]]]:
        """Returns the progress of this node's new replicas."""
        ...


def moves(node: ViewsHost, call: dict[str, Any]) -> dict[str, Any]:
    """Return this node's copies, the sources that await their deletion after a swap with the replicas that replaced
    them, and the offline log directories.
    """
    return {
        **_metadata(node),
        "stopped": node.engine.moves_stopped,
        "moves": [status.as_dict() for status in node.engine.statuses()],
        "delete_delays": _delete_delays(node),
        "offline": [{"path": one.name, "reason": one.failure} for one in node.dirs.directories if not one.online],
    }


def reassignments(node: ViewsHost, call: dict[str, Any]) -> dict[str, Any]:
    """Return the partitions of the topics in `topics` (without it, those that are being reassigned) according to this
    node's metadata, the size of this node's replica of each partition that is being reassigned, and the progress of its
    new replicas (`catching_up`, as reported to `PartitionReassignment`).
    """
    image, wanted = node.metadata.image, call.get("topics")
    names = list(image.topics) if not isinstance(wanted, list) else [str(name) for name in wanted]
    rows: list[list[Any]] = []
    sizes: list[list[Any]] = []
    for name in names:
        topic = image.topics.get(name)
        for row in topic.partitions if topic is not None else ():
            moving = row.assignment.reassigning
            if moving or wanted is not None:
                sets = (row.replicas, row.assignment.adding, row.assignment.removing, row.isr)
                rows.append([name, row.index, *map(list, sets), row.leader])
            if moving and (held := _held(node, name, row.index)) is not None:
                sizes.append([name, row.index, held])
    return {**_metadata(node), "partitions": rows, "sizes": sizes, "catching_up": node.catching_up()}


def _metadata(node: ViewsHost) -> dict[str, Any]:
    """Return the generation and version of the response's metadata, and the fenced nodes."""
    image = node.metadata.image
    fenced = [row.node for row in image.nodes.values() if row.fenced]
    return {"generation": image.cluster_generation, "version": image.version, "fenced": fenced}


def _delete_delays(node: ViewsHost) -> list[dict[str, Any]]:
    rows = []
    for each in node.engine.delayed_deletions():
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


def _held(node: ViewsHost, topic: str, partition: int) -> int | None:
    held = node.replicas.served.get(TopicPartition(topic, partition))
    return None if held is None else held.log.size
