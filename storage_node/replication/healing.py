"""Whether, and where, the replicas of a failed log directory are made again on their own node (KIP-18).

The rule of `lost_replicas` forbids to create a replica while a known directory is not online, since that directory may
hold it (KAFKA-16234). This one loosens it for directories that have failed, which the metadata has as failed, and that
have been away for longer than a remount takes. What remains of the rule makes it safe: the controller has registered
this start, the node is out of the ISR, and another node leads, so that the old copy holds nothing acknowledged that the
leader lacks. The new replica has a higher generation and created epoch, and the metadata places it in its new directory
before anything of it is on disk. So the old copy loses on every start, and cannot join the ISR where only it is online.

A disk that returns before the delay is over ends it, and nothing is made. One that returns while the new replica is
being made, or catches up, is too late: the new one stays, and what the disk holds of it is set aside as older, however
much that is. A second rule for which of the two is better could leave two current copies, and the leader has the
records.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.replication import lost_replicas

CONFIG = "log.dir.heal.delay.ms"
KEPT_FREE = 64 << 20
"""Bytes that stay free on each disk."""


@dataclass(frozen=True, slots=True)
class MissingDirectory:
    """A known log directory that is not online.

    `recorded`: the metadata has it as failed; `seconds`: since it failed, 0 where that is not known.
    """

    id: str
    path: str
    recorded: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Room:
    """An online log directory that may get replicas: its disk (directories on one disk have the same number), the
    bytes that nothing else will use, and the bytes and replicas that it holds.
    """

    path: str
    disk: int
    free: int
    bytes: int = 0
    replicas: int = 0


def why_not(
    row: PartitionImage, node: int, *, registered: bool, missing: Collection[MissingDirectory], delay: float
) -> str:
    """Return why a replica of this node is not made again in another directory now, or "" if it may be.

    `registered` as in `lost_replicas`; `missing` are all known directories that are not online: the replica may be in
    any of them. `delay` in seconds since the last of them failed; below 0 the policy is off.
    """
    if delay < 0:
        return f"{CONFIG} is off"
    if len(row.replicas) < 2:
        return "it is the only replica"
    if node in row.assignment.removing:
        return "a reassignment removes it from this node"
    for each in missing:
        if not each.recorded:
            return f"the metadata does not have log directory {each.path or f'with id {each.id}'} as failed"
    for each in missing:
        if each.seconds < delay:
            left = delay - each.seconds
            return f"log directory {each.path} may come back: it is made again in {left:.0f} s ({CONFIG})"
    return lost_replicas.why_not(row, node, registered=registered, missing=())


def place(wanted: Mapping[TopicPartition, int], rooms: Sequence[Room]) -> dict[TopicPartition, str]:
    """Return the path for each replica that finds space; `wanted` has the bytes that its leader holds.

    A replica needs a tenth more than these, since the leader grows while it is copied. The directory with the fewest
    bytes, then replicas, gets it; what has no space anywhere is left out.
    """
    current = {room.path: room for room in rooms}
    places: dict[TopicPartition, str] = {}
    for tp, size in sorted(wanted.items()):
        needed = size + size // 10
        fitting = [room for room in current.values() if room.free - needed >= KEPT_FREE]
        if not fitting:
            continue
        chosen = min(fitting, key=lambda room: (room.bytes, room.replicas))
        places[tp] = chosen.path
        current[chosen.path] = replace(chosen, bytes=chosen.bytes + size, replicas=chosen.replicas + 1)
        for room in list(current.values()):
            if room.disk == chosen.disk:
                current[room.path] = replace(room, free=room.free - needed)
    return places
