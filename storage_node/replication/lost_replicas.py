"""Whether an empty replica may replace one that the metadata assigns to this node but that is on no disk.

A member of the ISR is assumed to have all acknowledged records; an empty log must never count as a member. Therefore a
lost replica is created again only once the metadata, under this start of the node, shows that it is out of the ISR and
that another node leads: it is then a follower like an added one. To get there, the node reports the replica as LOST
(KIP-858's reserved directory id), which removes it from the ISR in the same step. The last member of the ISR stays in
it, without a leader, since its records are nowhere else.

`healing` has the exception to the rule that all directories must be online.
"""

from __future__ import annotations

from collections.abc import Collection

from storage_node.model.ids import NO_LEADER
from storage_node.model.metadata import PartitionImage


def why_not(row: PartitionImage, node: int, *, registered: bool, missing: Collection[str]) -> str:
    """Return why an empty replica may not be created and what the operator can do, or "" if it may.

    `registered`: the row comes from a controller that has registered this start of the node; `missing`: ids of known
    log directories that are not online, which may hold the replica.
    """
    if missing:
        return f"a copy may be in the log directory with id {', '.join(sorted(missing))}, which is not online"
    if not registered:
        return "whether another node has its records is unknown until the controller has registered this start"
    if set(row.isr) == {node}:
        kept = "it is the only replica" if len(row.replicas) == 1 else "it was the last one in sync"
        others = "reassign the partition to another node" if len(row.replicas) == 1 else "have another replica lead"
        return (
            f"{kept}, so it is not created again: restore its folder and restart the node, or give its records "
            f"up ({others} by an unclean election, or delete the topic)"
        )
    if row.leader in (node, NO_LEADER) or node in row.isr:
        return "it is created again once another node leads and this replica is out of the ISR"
    return ""
