"""A replica that the metadata has on this node and that no disk holds: whether an empty one may take its place.

Whoever is in sync has, as everybody believes, what was acknowledged; an empty log must never count as that. So it is
made anew only where the metadata says, under this start of the node, that the replica is out of the in-sync ones and
that another node leads: then it is a follower like one that is added. For that the node says of such a replica that it
is lost (KIP-858's reserved directory id), which takes it out of the in-sync replicas in the same step. The last of them
stays, without a leader: what it held is nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection

from storage_node.metadata import PartitionImage

NOBODY = -1


def why_not(row: PartitionImage, node: int, *, registered: bool, missing: Collection[str]) -> str:
    """Why no empty replica may be made, with what to do about it; "" where it may.

    `registered`: the row comes from a controller that knows this start of the node; `missing`: ids of log directories
    that are known and not online, where a copy may be.
    """
    if missing:
        return f"a copy may be in the log directory with id {', '.join(sorted(missing))}, which is not online"
    if not registered:
        return "whether another node has its records is not known before the controller knows this start"
    if set(row.isr) == {node}:
        kept = "it is the only replica" if len(row.replicas) == 1 else "it was the last one in sync"
        others = "reassign the partition to another node" if len(row.replicas) == 1 else "have another replica lead"
        return (
            f"{kept}, so none is made in its place: put its folder back and start the node again, or give its records "
            f"up ({others} by an unclean election, or delete the topic)"
        )
    if row.leader in (node, NOBODY) or node in row.isr:
        return "it is made anew once another node leads and this replica is not in sync any more"
    return ""
