"""The placement of new replicas: over racks, then nodes, those with the fewest replicas first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count, zip_longest

from storage_node.model.assignment import assignment_problem
from storage_node.model.error_codes import ErrorCode
from storage_node.model.metadata import TopicImage
from workflows.model.metadata import topic_rules
from workflows.model.metadata.outcome import Refused
from workflows.model.metadata.state import ClusterState


class Room:
    """The existing topics, counted once per request: names that may collide, and replicas.

    `held` counts the replicas of each registered node, `replicas` all of them.
    """

    def __init__(self, state: ClusterState) -> None:
        self.names: dict[str, str] = {}
        self.held = Counter({node: 0 for node in state.nodes})
        self.replicas = 0
        self._alive = state.alive
        self._racks = {node.node: node.rack for node in state.nodes.values()}
        for topic in state.topics.values():
            self.take(topic)

    def take(self, topic: TopicImage) -> None:
        """Count a topic."""
        self.names[topic_rules.collision_key(topic.name)] = topic.name
        self.hold([partition.replicas for partition in topic.partitions])

    def hold(self, placed: Iterable[Sequence[int]]) -> None:
        """Count the replicas of partitions."""
        for replicas in placed:
            self.replicas += len(replicas)
            self.held.update(node for node in replicas if node in self.held)

    def place(self, partitions: int, factor: int) -> list[tuple[int, ...]]:
        """Return the replicas of new partitions; raises Refused if there are not enough nodes.

        Leaders are assigned round robin to the unfenced nodes, one of each rack in turn and those with the fewest
        replicas first; a partition's other replicas follow at a distance that grows with every round, so that a node's
        followers are spread over all others, and no rack has two replicas while another has none (as Kafka's
        AdminUtils). Fenced nodes only become followers, if there are too few others.
        """
        if not self._alive:
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR, "All nodes are fenced, none can host a replica; start one first."
            )
        if factor > len(self.held):
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot "
                f"be reached because only {len(self.held)} broker(s) are registered.",
            )
        order = self._in_turn()
        spare = sorted(set(self.held) - set(order), key=lambda node: (self.held[node], node))
        led = min(factor, len(order))
        return [(*self._spread(order, index, led), *spare[: factor - led]) for index in range(partitions)]

    def _in_turn(self) -> list[int]:
        """Return the unfenced nodes, one of each rack in turn; those with the fewest replicas first."""
        racks: dict[str, list[int]] = {}
        for node in sorted(self._alive, key=lambda node: (self.held[node], node)):
            racks.setdefault(self._racks[node], []).append(node)
        return [node for row in zip_longest(*racks.values()) for node in row if node is not None]

    def _spread(self, order: Sequence[int], index: int, factor: int) -> list[int]:
        """Return the replicas of the partition `index` of a request, the leader first."""
        nodes, first = len(order), index % len(order)
        racks = {self._racks[node] for node in order}
        chosen, used = [order[first]], {self._racks[order[first]]}
        shift = index // nodes * len(racks)
        for step in count():
            if len(chosen) == factor:
                break
            node = order[(first + 1 + (shift + step) % (nodes - 1)) % nodes]
            rack = self._racks[node]
            if node not in chosen and (rack not in used or len(used) == len(racks)):
                chosen.append(node)
                used.add(rack)
        return chosen


def check_assigned(state: ClusterState, index: int, replicas: Sequence[int], factor: int) -> None:
    """Raise Refused, with Kafka's messages, unless a new partition can have these replicas, `factor` in number."""
    if problem := assignment_problem(replicas, state.nodes, factor):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    if all(state.nodes[node].fenced for node in replicas):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown.",
        )
