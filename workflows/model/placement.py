"""Where new replicas go: over racks, then nodes, the emptiest first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count, zip_longest

from workflows.model import topic_rules
from workflows.model.outcome import Code, Refused
from workflows.model.state import ClusterState, Topic


class Room:
    """What a request's topics must fit in with, counted once per request: names that collide, replicas per node.

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

    def take(self, topic: Topic) -> None:
        """Count a topic in."""
        self.names[topic_rules.collision_key(topic.name)] = topic.name
        self.hold([partition.replicas for partition in topic.partitions])

    def hold(self, placed: Iterable[Sequence[int]]) -> None:
        """Count the replicas of partitions in."""
        for replicas in placed:
            self.replicas += len(replicas)
            self.held.update(node for node in replicas if node in self.held)

    def place(self, partitions: int, factor: int) -> list[tuple[int, ...]]:
        """Nodes for new partitions; raises Refused when there are not enough.

        Leaders go round robin over the unfenced nodes, which are ordered rack by rack in turn and the emptiest first;
        a partition's other replicas follow at a distance that grows with every round, so that a node's followers are
        spread over all others, and no rack holds two replicas while another holds none (as Kafka's AdminUtils). Fenced
        nodes only follow, where the others are too few.
        """
        if not self._alive:
            raise Refused(Code.INVALID_REPLICATION_FACTOR, "No node is up that could hold a replica; start one first.")
        if factor > len(self.held):
            raise Refused(
                Code.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot "
                f"be reached because only {len(self.held)} broker(s) are registered.",
            )
        order = self._in_turn()
        spare = sorted(set(self.held) - set(order), key=lambda node: (self.held[node], node))
        led = min(factor, len(order))
        return [(*self._spread(order, index, led), *spare[: factor - led]) for index in range(partitions)]

    def _in_turn(self) -> list[int]:
        """The unfenced nodes, one of each rack in turn; racks and the nodes in each by what they hold."""
        racks: dict[str, list[int]] = {}
        for node in sorted(self._alive, key=lambda node: (self.held[node], node)):
            racks.setdefault(self._racks[node], []).append(node)
        return [node for row in zip_longest(*racks.values()) for node in row if node is not None]

    def _spread(self, order: Sequence[int], index: int, factor: int) -> list[int]:
        """The replicas of the partition `index` of a request, the leader first."""
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
    """Raise Refused, in Kafka's words, unless a new partition can have these replicas; `factor`: how many it needs."""
    if problem := topic_rules.assignment_problem(replicas, state.nodes, factor):
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, problem)
    if all(state.nodes[node].fenced for node in replicas):
        raise Refused(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown.",
        )
