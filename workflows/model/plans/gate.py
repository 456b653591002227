"""The health gate: no lane begins while the cluster is unhealthy for reasons that the plan does not cause."""

from __future__ import annotations

from collections.abc import Collection, Set

from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.plans.values import ClusterView

#: Partitions that a sentence names.
NAMED = 3


def held_by(view: ClusterView, of_plan: Set[TopicPartition]) -> tuple[str, ...]:
    """Return why no lane may begin, none if the cluster is healthy.

    Under-replicated partitions hold the plan only if they are not its own: those of a reassignment are so meanwhile.
    Partitions without a leader or with fewer members of the ISR than min.insync.replicas, of which a partition with
    fewer replicas needs only those, reject writes, and hold the plan in any case.
    """
    behind = [tp for tp, state in view.partitions.items() if state.under_replicated and tp not in of_plan]
    low = [
        tp
        for tp, state in view.partitions.items()
        if len(state.isr) < min(state.min_isr, len(state.target)) and state.leader != NO_LEADER
    ]
    dead = [tp for tp, state in view.partitions.items() if state.leader == NO_LEADER]
    found = [
        _sentence(dead, "without a leader"),
        _sentence(low, "with an ISR below min.insync.replicas"),
        _sentence(behind, "outside the plan under-replicated"),
    ]
    return tuple(each for each in found if each)


def _sentence(held: Collection[TopicPartition], what: str) -> str:
    if not held:
        return ""
    first = sorted(held)[:NAMED]
    more = f" and {len(held) - NAMED} more" if len(held) > NAMED else ""
    count = "1 partition is" if len(held) == 1 else f"{len(held)} partitions are"
    return f"{count} {what}: {', '.join(map(str, first))}{more}"
