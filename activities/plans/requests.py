"""Requests of moves to the cluster: what is due together goes out in one request to each broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.errors import GONE, AdminError, Answer, NoResponse, answer_of
from activities.kafka_admin.pool import AdminPool
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from workflows.model.move.parameter import ANY
from workflows.model.plans.running.following import MoveOutcome
from workflows.model.plans.values import ClusterView, MoveKind, PlannedMove

#: What a broker responds that notes the directory of a replica that it does not have yet (KIP-113).
NOTED = (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE)

#: How a move ended, or None for one that the cluster has not answered: it may be under way, or is requested again.
Refusal = tuple[MoveOutcome | None, str]


async def request_all(pool: AdminPool, moves: Sequence[PlannedMove]) -> dict[str, Refusal]:
    """Request moves; return, by key, why those that the cluster rejects are not possible, and which got no answer.

    Directories of replicas that a broker is about to get are noted first. Repeating a request is harmless (KIP-113,
    KIP-455). Raises `NoResponse` if a broker does not respond: the caller repeats the whole request.
    """
    refused = await _directories(pool, moves)
    return refused | await _reassignments(pool, [move for move in moves if move.key not in refused])


async def _directories(pool: AdminPool, moves: Iterable[PlannedMove]) -> dict[str, Refusal]:
    wanted: dict[int, dict[TopicPartition, str]] = {}
    keys: dict[tuple[int, TopicPartition], tuple[str, bool]] = {}
    for move in moves:
        noted = move.kind == MoveKind.REPLICAS
        pairs = move.directories.items() if noted else [(move.node, move.target)]
        for node, path in pairs:
            if path != ANY:
                wanted.setdefault(node, {})[move.partition] = path
                keys[node, move.partition] = (move.key, noted)
    refused: dict[str, Refusal] = {}
    for node, paths in sorted(wanted.items()):
        for partition, code in (await _alter_log_dirs(pool, node, paths)).items():
            key, noted = keys[node, partition]
            if code == ErrorCode.NONE or (noted and code in NOTED):
                continue
            refused[key] = _refusal(code, f"to move {partition} to {paths[partition]}", node)
    return refused


async def _alter_log_dirs(
    pool: AdminPool, node: int, paths: Mapping[TopicPartition, str]
) -> dict[TopicPartition, ErrorCode]:
    return await pool.run(lambda admin: admin.alter_log_dirs(node, paths))


async def _reassignments(pool: AdminPool, moves: Iterable[PlannedMove]) -> dict[str, Refusal]:
    wanted = {move.partition: move.after for move in moves if move.kind == MoveKind.REPLICAS}
    if not wanted:
        return {}
    errors = await pool.run(lambda admin: admin.reassign(wanted))
    refused: dict[str, Refusal] = {}
    for partition, error in errors.items():
        target = ", ".join(map(str, wanted[partition]))
        if error in GONE:
            refused[str(partition)] = (MoveOutcome.TOPIC_DELETED, f"{partition} does not exist any more")
        elif error and answer_of(error) is Answer.RETRY:
            why = f"the controller could not say whether it reassigns {partition} to {target}: {error}"
            refused[str(partition)] = (None, why)
        elif error:
            why = f"the controller rejected the reassignment of {partition} to {target}: {error}"
            refused[str(partition)] = (MoveOutcome.FAILED, why)
    return refused


def _refusal(code: ErrorCode, doing: str, node: int) -> Refusal:
    if code.name in GONE:
        return MoveOutcome.TOPIC_DELETED, f"broker {node} knows no such partition any more ({doing})"
    if answer_of(code.name) is not Answer.FINAL:
        # Where the cluster is not as the request assumes, the next read says how.
        return None, f"broker {node} could not say whether it carries out the request {doing}: {code.name}"
    return MoveOutcome.FAILED, f"broker {node} rejected the request {doing}: {code.name}"


async def direct(
    pool: AdminPool, wanted: Mapping[tuple[int, TopicPartition], str]
) -> dict[tuple[int, TopicPartition], Refusal]:
    """Request directories of replicas that exist already; return why brokers reject some, or do not answer. What gets
    no response is neither: it is requested again after the next read.
    """
    by_node: dict[int, dict[TopicPartition, str]] = {}
    for (node, partition), path in wanted.items():
        by_node.setdefault(node, {})[partition] = path
    refused: dict[tuple[int, TopicPartition], Refusal] = {}
    for node, paths in sorted(by_node.items()):
        try:
            codes = await _alter_log_dirs(pool, node, paths)
        except NoResponse:
            continue
        refused |= {
            (node, partition): _refusal(code, f"to move {partition} to {paths[partition]}", node)
            for partition, code in codes.items()
            if code not in NOTED
        }
    return refused


async def cancel_all(pool: AdminPool, moves: Sequence[PlannedMove], view: ClusterView) -> dict[str, str]:
    """Cancel moves that are under way: a copy by a request to the replica's current directory (KIP-113), a
    reassignment through the controller (KIP-455). Return the reasons of rejected ones, by key.

    The current directory is the one of the view, and not where the plan has found the replica: it would be moved there.
    """
    rejected: dict[str, str] = {}
    back: dict[int, dict[TopicPartition, str]] = {}
    for move in moves:
        if move.kind != MoveKind.DIRECTORY:
            continue
        placed = view.replicas.get((move.node, move.partition))
        if placed is None:
            rejected[move.key] = f"broker {move.node} does not report the directory of its replica of {move.partition}"
        else:
            back.setdefault(move.node, {})[move.partition] = placed.path
    for node, paths in sorted(back.items()):
        try:
            codes = await _alter_log_dirs(pool, node, paths)
        except AdminError as error:
            codes = {}
            rejected |= {f"{partition}@{node}": str(error) for partition in paths}
        rejected |= {
            f"{partition}@{node}": f"broker {node} rejected the cancel: {code.name}"
            for partition, code in codes.items()
            if code != ErrorCode.NONE
        }
    partitions = [move.partition for move in moves if move.kind == MoveKind.REPLICAS]
    if partitions:
        errors = await pool.run(_cancel_of(partitions))
        rejected |= {
            str(partition): f"the controller rejected the cancel: {error}"
            for partition, error in errors.items()
            if error and answer_of(error) is not Answer.DRIFT
        }
    return rejected


def _cancel_of(partitions: Sequence[TopicPartition]):  # type: ignore[no-untyped-def]
    def call(admin: KafkaAdmin) -> dict[TopicPartition, str]:
        return admin.reassign(dict.fromkeys(partitions))

    return call
