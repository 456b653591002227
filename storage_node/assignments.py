"""What an operator may name as the replicas of a partition."""

from __future__ import annotations

from collections.abc import Sequence

from storage_node.metadata import ClusterImage


def bad_assignment(image: ClusterImage, replicas: Sequence[int], factor: int | None = None) -> str | None:
    """Why no partition can have these replicas, in Kafka's words; None when one can.

    `factor`: how many replicas the other partitions have, where all must have as many.
    """
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    before = None
    for node in sorted(replicas):
        if node not in image.nodes:
            return f"The manual partition assignment includes broker {node}, but no such broker is registered."
        if node == before:
            return f"The manual partition assignment includes the broker {node} more than once."
        before = node
    if factor is not None and len(replicas) != factor:
        return (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )
    return None
