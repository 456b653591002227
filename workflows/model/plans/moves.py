"""Compares a plan with the cluster: the moves that are left to do, and why parts of it cannot be done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.move.parameter import ANY
from workflows.model.plans.document import PlanDocument, PlannedPartition
from workflows.model.plans.values import (
    UNKNOWN_SIZE,
    ClusterView,
    Disk,
    MoveKind,
    PartitionState,
    PlannedMove,
)


@dataclass(frozen=True, slots=True)
class Work:
    """The moves of a plan in order of their partitions, and the partitions of the plan that are in place already.

    A partition with a problem has no moves; each problem is a sentence: what, where, why, what to do. `refused` has the
    first one of each such partition.
    """

    moves: tuple[PlannedMove, ...]
    in_place: int
    problems: tuple[str, ...] = ()
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def nothing_to_do(self) -> bool:
        """Return whether every partition of the plan is in place."""
        return not self.moves and not self.problems


def work_of(document: PlanDocument, view: ClusterView) -> Work:
    """Compare a plan with the cluster.

    A partition whose replicas differ, as a set or in their order, gets one `REPLICAS` move; each staying replica in
    another directory than the plan names gets a `DIRECTORY` move. What an earlier run of the plan has begun is a move
    too: repeating its request is harmless (KIP-113, KIP-455).
    """
    topics: dict[str, int] = {}
    for known in view.partitions:
        topics[known.topic] = max(topics.get(known.topic, 0), known.partition)
    moves: list[PlannedMove] = []
    problems: list[str] = []
    refused: dict[TopicPartition, str] = {}
    absent: dict[str, int] = {}
    in_place = 0
    for entry in sorted(document.partitions, key=lambda each: (each.topic, each.partition)):
        tp = TopicPartition(entry.topic, entry.partition)
        state = view.partitions.get(tp)
        if entry.topic not in topics:
            absent[entry.topic] = absent.get(entry.topic, 0) + 1
            refused[tp] = f"{tp} does not exist"
            continue
        if state is None:
            refused[tp] = (
                f"{tp} does not exist: topic {entry.topic} has partitions 0 to {topics[entry.topic]}; "
                "remove it from the plan"
            )
            problems.append(refused[tp])
            continue
        compared = _Compared(entry, tp, state, view)
        found = compared.problems()
        problems += found
        if found:
            refused[tp] = found[0]
        else:
            begun = compared.moves()
            moves += begun
            in_place += not begun
    for topic, count in absent.items():
        problems.append(
            f"topic {topic} does not exist in cluster {view.cluster_id or 'of the plan'}, but {count} "
            f"{'partition' if count == 1 else 'partitions'} of the plan name it; "
            "remove them or check the bootstrap server"
        )
    return Work(tuple(moves), in_place, tuple(problems), refused)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A partition of the plan beside the cluster's."""

    entry: PlannedPartition
    tp: TopicPartition
    state: PartitionState
    view: ClusterView

    @property
    def before(self) -> tuple[int, ...]:
        """Return the replicas before any reassignment in progress."""
        return tuple(node for node in self.state.replicas if node not in self.state.adding)

    @property
    def named(self) -> list[tuple[int, str]]:
        """Return the directories that the plan names, with their nodes."""
        pairs = zip(self.entry.replicas, self.entry.log_dirs, strict=True)
        return [(node, path) for node, path in pairs if path != ANY]

    def problems(self) -> list[str]:
        """Return why the partition cannot be moved as the plan requests."""
        tp, view, target = self.tp, self.view, self.entry.replicas
        unknown = [node for node in target if node not in view.nodes]
        if unknown:
            return [
                f"{tp}: broker {_listed(unknown)} is not registered in the cluster, which has "
                f"{_listed(sorted(view.nodes))}; correct its replicas or start the broker"
            ]
        if (self.state.adding or self.state.removing) and self.state.target != target:
            return [
                f"{tp}: a reassignment to {_listed(self.state.target)} is in progress, but the plan has "
                f"{_listed(target)}; wait until it ends, or cancel it with kafka-reassign-partitions --cancel"
            ]
        if self.state.leader == NO_LEADER and set(target) - set(self.before):
            return [
                f"{tp}: it has no leader, so that there is no replica to copy from; start a broker that has one, or "
                "elect a leader with kafka-leader-election"
            ]
        found: list[str] = []
        silent = [n for n in target if not view.nodes[n].responds and (n not in self.before or n in dict(self.named))]
        if silent:
            found.append(
                f"{tp}: broker {_listed(silent)} did not return its log directories, so that it cannot be a target; "
                "start it or remove it from the plan"
            )
        for node, path in self.named:
            if node not in silent:
                found += self._directory(node, path)
        for node in (each for each in target if each not in silent):
            found += self._foreign(node)
        return found

    def _directory(self, node: int, path: str) -> list[str]:
        disk = Disk(node, path)
        held = self.view.directories.get(disk)
        if held is None:
            paths = [each.path for each in sorted(self.view.directories) if each.node == node]
            return [
                f"{self.tp}: {path!r} is not one of the log.dirs of broker {node}, which are "
                f"{', '.join(paths) or 'unknown'}; correct its log_dirs"
            ]
        placed = self.view.replicas.get((node, self.tp))
        if held.error:
            if placed is not None and placed.path == path:
                return []
            return [
                f"{self.tp}: directory {path} of broker {node} is offline ({held.error}); choose another one, "
                "or repair it and restart the broker"
            ]
        if node not in self.before:
            return []
        if placed is None:
            return [
                f"{self.tp}: broker {node} does not report the directory of its replica, so that it cannot be moved to "
                f"{path}; restart the broker if one of its directories is offline"
            ]
        source = self.view.directories.get(Disk(node, placed.path))
        if source is not None and source.error and placed.path != path:
            return [
                f"{self.tp}: directory {placed.path} of broker {node}, which has the replica, is offline "
                f"({source.error}), so that it cannot be copied to {path}; reassign it to another broker"
            ]
        return []

    def _foreign(self, node: int) -> list[str]:
        """Return whether another client moves the replica to a directory that is not the plan's."""
        future = self.view.futures.get((node, self.tp))
        placed = self.view.replicas.get((node, self.tp))
        requested = dict(self.named).get(node, placed.path if placed is not None else ANY)
        if future is None or future.path == requested:
            return []
        return [
            f"{self.tp}: broker {node} already moves its replica to {future.path}, which the plan does not request; "
            f"wait until it ends, or cancel it by moving the replica to its current directory"
        ]

    def moves(self) -> list[PlannedMove]:
        """Return the moves of the partition, none if it is in place."""
        found: list[PlannedMove] = []
        target, before = self.entry.replicas, self.before
        if target != before or self.state.adding or self.state.removing:
            found.append(self._replicas(before, target))
        for node, path in sorted(self.named):
            placed = self.view.replicas.get((node, self.tp))
            if node not in before or placed is None or placed.path == path:
                continue
            found.append(
                PlannedMove(
                    MoveKind.DIRECTORY,
                    self.tp,
                    placed.size,
                    node=node,
                    source=placed.path,
                    target=path,
                    reads=(Disk(node, placed.path),),
                    writes=(Disk(node, path),),
                )
            )
        return found

    def _replicas(self, before: tuple[int, ...], target: tuple[int, ...]) -> PlannedMove:
        named = dict(self.named)
        added = [node for node in target if node not in before]
        reads: tuple[Disk, ...] = ()
        if added and self.state.leader != NO_LEADER:
            led = self.view.replicas.get((self.state.leader, self.tp))
            reads = (Disk(self.state.leader, led.path if led is not None else ANY),)
        return PlannedMove(
            MoveKind.REPLICAS,
            self.tp,
            self.view.size_of(self.tp),
            before=before,
            after=target,
            directories={node: named[node] for node in added if node in named},
            reads=reads,
            writes=tuple(Disk(node, named.get(node, ANY)) for node in added),
        )


def changed_replicas(work: Work) -> list[str]:
    """Return a sentence for each partition whose replicas, or their order, a plan of directories alone would change."""
    return [
        f"{move.partition}: the plan has the replicas {_listed(move.after)}, the cluster {_listed(move.before)}, and "
        "this plan changes directories alone (its option directories_only): correct the replicas, or submit it without "
        "the option (rehome reassign FILE, rehome plan submit FILE)"
        for move in work.moves
        if move.kind == MoveKind.REPLICAS
    ]


def rollback_of(moves: Iterable[PlannedMove], view: ClusterView) -> PlanDocument:
    """Return the plan that takes every partition of the moves back to its replicas and directories.

    `view` is the cluster before the first move. A directory that it does not have is "any".
    """
    by_partition: dict[TopicPartition, list[PlannedMove]] = {}
    for move in moves:
        by_partition.setdefault(move.partition, []).append(move)
    return PlanDocument(tuple(_back(tp, held, view) for tp, held in sorted(by_partition.items())))


def _back(tp: TopicPartition, moves: Sequence[PlannedMove], view: ClusterView) -> PlannedPartition:
    changed = [move.before for move in moves if move.kind == MoveKind.REPLICAS]
    state = view.partitions.get(tp)
    held = state.target if state is not None else tuple(move.node for move in moves)
    replicas = changed[0] if changed else held
    paths = {move.node: move.source for move in moves if move.kind == MoveKind.DIRECTORY}
    for node in replicas:
        placed = view.replicas.get((node, tp))
        if placed is not None:
            paths.setdefault(node, placed.path)
    return PlannedPartition(tp.topic, tp.partition, replicas, tuple(paths.get(node, ANY) for node in replicas))


def total_bytes(moves: Iterable[PlannedMove]) -> int:
    """Return the bytes that the moves copy, as far as they are known."""
    return sum(move.size * len(move.writes) for move in moves if move.size != UNKNOWN_SIZE)


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
