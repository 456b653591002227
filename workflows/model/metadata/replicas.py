"""Nodes' reports of their replicas: the generation that a move will give, and the directory (KIP-858)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from storage_node.model.commands import AssignDirectories, RaiseGenerations, ReplicaDirectory
from storage_node.model.error_codes import ErrorCode
from storage_node.model.metadata import PartitionImage
from workflows.model.metadata.edits import Edits
from workflows.model.metadata.election import decide, unclean_allowed
from workflows.model.metadata.outcome import Change, Refused, Result
from workflows.model.metadata.state import ClusterState

Step = Callable[[PartitionImage, int, ReplicaDirectory], tuple[PartitionImage, Result]]


def _raise_generation(partition: PartitionImage, place: int, held: ReplicaDirectory) -> tuple[PartitionImage, Result]:
    known = partition.generations[place]
    if known > held.generation + 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"The replica of {held.partition} has generation {held.generation}, but the metadata has {known}: "
            "it is a stale copy and is not moved.",
        )
    raised = held.generation + 1
    # The node's report of the directory may still be in flight; after this change it is rejected as a stale copy's.
    reports = (held.directory_id, partition.directories[place])
    first, second = reports if known <= held.generation else reports[::-1]
    return placed(partition, place, first or second, raised), {"value": raised}


def _assign_directory(partition: PartitionImage, place: int, held: ReplicaDirectory) -> tuple[PartitionImage, Result]:
    known = partition.generations[place]
    if known > held.generation:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"The replica of {held.partition} has generation {held.generation}, but the metadata has {known}: "
            "the directory of a stale copy is not recorded.",
        )
    return placed(partition, place, held.directory_id, held.generation), {"value": held.generation}


def placed(partition: PartitionImage, place: int, directory: str, generation: int) -> PartitionImage:
    """Return the partition with one replica's directory and generation; its epoch increases if either is new."""
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


def _change(state: ClusterState, node: int, wanted: Iterable[ReplicaDirectory], step: Step) -> Change:
    edits, results, quiet = Edits(state), [], True
    for held in wanted:
        try:
            before = edits.partition(held.partition, held.topic_id)
            if node not in before.replicas:
                raise Refused(ErrorCode.REPLICA_NOT_AVAILABLE, f"Node {node} holds no replica of {held.partition}.")
            after, result = step(before, before.replicas.index(node), held)
            if after is not before:
                unclean = unclean_allowed(state, state.topics[held.partition.topic])
                after = decide(after, state.nodes, unclean=unclean)
                quiet = quiet and after.leader == before.leader
                edits.put(held.partition.topic, after)
            results.append(result)
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=quiet)


def raise_generations(state: ClusterState, command: RaiseGenerations, _new_id: Callable[[], str]) -> Change:
    """Record the generation that a move will give.

    Each row holds the generation that the replica has now, the result's `value` the next one. A repeated request gets
    the same result; a generation more than one below the known one is that of a stale copy and is rejected.
    """
    return _change(state, command.node, command.replicas, _raise_generation)


def assign_directories(state: ClusterState, command: AssignDirectories, _new_id: Callable[[], str]) -> Change:
    """Record the directories and generations of replicas (AssignReplicasToDirs, KIP-858).

    A row is rejected if a higher generation is known. A replica that returns to an online directory may lead again.
    """
    return assign(state, command.node, command.replicas)


def place(state: ClusterState, node: int, replicas: Iterable[ReplicaDirectory]) -> ClusterState:
    """Return the state with the directories of these replicas of a node; no leader is elected yet.

    Rows that `assign_directories` would reject are skipped.
    """
    edits = Edits(state)
    for held in replicas:
        try:
            before = edits.partition(held.partition, held.topic_id)
            if node in before.replicas:
                after, _ = _assign_directory(before, before.replicas.index(node), held)
                edits.put(held.partition.topic, after)
        except Refused:
            continue
    return edits.change([], quiet=True).state


def assign(state: ClusterState, node: int, replicas: Iterable[ReplicaDirectory]) -> Change:
    """Record the directories of these replicas of a node, see `assign_directories`."""
    return _change(state, node, replicas, _assign_directory)
