"""What nodes say of their replicas: the generation a move will give them, and the directory they are in (KIP-858)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workflows.model import fields
from workflows.model.edits import Edits
from workflows.model.election import decide, unclean_allowed
from workflows.model.outcome import Change, Code, Refused, Result
from workflows.model.state import ClusterState, Partition


@dataclass(frozen=True, slots=True)
class Held:
    """A replica as its node knows it."""

    topic: str
    partition: int
    topic_id: str
    directory: str
    generation: int

    @staticmethod
    def of(row: Any, path: str) -> Held:
        """Read [topic, partition, topic id, directory id, generation]."""
        if isinstance(row, list) and len(row) == 5:  # as nodes send it, thousands at once
            topic, index, topic_id, directory, generation = row
            texts = isinstance(topic, str) and isinstance(topic_id, str) and isinstance(directory, str)
            if texts and topic and (topic + topic_id + directory).isascii() and fields.are_numbers((index, generation)):
                return Held(topic, index, topic_id, directory, generation)
        if len(fields.a_list(row, path)) != 5:
            raise fields.BadField(path, "must have a topic, a partition, a topic id, a directory id and a generation")
        return Held(
            fields.a_string(row[0], f"{path}[0]"),
            fields.a_number(row[1], f"{path}[1]"),
            fields.a_string(row[2], f"{path}[2]", empty=True),
            fields.a_string(row[3], f"{path}[3]", empty=True),
            fields.a_number(row[4], f"{path}[4]"),
        )


Step = Callable[[Partition, int, Held], tuple[Partition, Result]]


def _raise_generation(partition: Partition, place: int, held: Held) -> tuple[Partition, Result]:
    known = partition.generations[place]
    if known > held.generation + 1:
        raise Refused(
            Code.INVALID_REQUEST,
            f"The replica of {held.topic}-{held.partition} has generation {held.generation}, but {known} is known: "
            "it is a stale copy and is not moved.",
        )
    raised = held.generation + 1
    # The node's word for where it is may still be on its way; after this it would pass for a stale copy's.
    words = (held.directory, partition.directories[place])
    first, second = words if known <= held.generation else words[::-1]
    return placed(partition, place, first or second, raised), {"value": raised}


def _assign_directory(partition: Partition, place: int, held: Held) -> tuple[Partition, Result]:
    known = partition.generations[place]
    if known > held.generation:
        raise Refused(
            Code.INVALID_REQUEST,
            f"The replica of {held.topic}-{held.partition} has generation {held.generation}, but {known} is known: "
            "where a stale copy lies is not recorded.",
        )
    return placed(partition, place, held.directory, held.generation), {"value": held.generation}


def placed(partition: Partition, place: int, directory: str, generation: int) -> Partition:
    """The partition with one replica's directory and generation, its epoch raised when either is new."""
    if (partition.directories[place], partition.generations[place]) == (directory, generation):
        return partition
    directories, generations = list(partition.directories), list(partition.generations)
    directories[place], generations[place] = directory, generation
    return replace(
        partition,
        directories=tuple(directories),
        generations=tuple(generations),
        partition_epoch=partition.partition_epoch + 1,
    )


def _change(state: ClusterState, command: Mapping[str, Any], step: Step) -> Change:
    node = fields.a_number(fields.need(command, "node", "$"), "$.node")
    rows = fields.a_list(fields.need(command, "replicas", "$"), "$.replicas")
    wanted = [Held.of(row, f"$.replicas[{place}]") for place, row in enumerate(rows)]
    edits, results, quiet = Edits(state), [], True
    for held in wanted:
        try:
            before = edits.partition(held.topic, held.partition, held.topic_id)
            if node not in before.replicas:
                raise Refused(
                    Code.REPLICA_NOT_AVAILABLE, f"Node {node} holds no replica of {held.topic}-{held.partition}."
                )
            after, result = step(before, before.replicas.index(node), held)
            if after is not before:
                unclean = unclean_allowed(state, state.topics[held.topic])
                after = decide(after, state.nodes, unclean=unclean)
                quiet = quiet and after.leader == before.leader
                edits.put(held.topic, after)
            results.append(result)
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=quiet)


def raise_generations(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Record the generation that a move will give: {"node", "replicas": [[topic, partition, topic_id, directory_id,
    generation]]}.

    Each row holds the generation that the replica has now, the result's `value` the next one. Asked again with the same
    generation the answer is the same; a generation more than one below the known one is that of a stale copy and is
    refused.
    """
    return _change(state, command, _raise_generation)


def assign_directories(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Record where replicas are (AssignReplicasToDirs, KIP-858): rows as above, with the directory and generation they
    have now.

    Refused when a higher generation is known. A replica that comes back to a good directory may lead again.
    """
    return _change(state, command, _assign_directory)
