"""The runs that follow each reassignment, to which the controller signals a cancel or a later target. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage_node.model.metadata import PartitionImage
from workflows.model.metadata.outcome import Reassigned
from workflows.model.metadata.state import ClusterState
from workflows.model.reassignment.runs import Key, PartitionView

Run = tuple[str, str]
"""Workflow id and run id; a run id "" means the open run of that id."""


@dataclass(frozen=True, slots=True)
class _Watched:
    topic_id: str
    target: tuple[int, ...]
    runs: tuple[Run, ...]


class Watchers:
    """The reassignments in progress that runs follow; completed, cancelled and changed ones are removed."""

    def __init__(self) -> None:
        self._watched: dict[Key, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def has(self, change: Reassigned) -> bool:
        """Return whether a run follows exactly this change already."""
        known = self._watched.get((change.topic, change.partition))
        return known is not None and (known.topic_id, known.target) == (change.topic_id, change.target)

    def watch(self, changes: Iterable[Reassigned], run: Run) -> None:
        """Add a run that follows these changes, beside others with the same targets."""
        for change in changes:
            key = (change.topic, change.partition)
            if self.has(change):
                known = self._watched[key]
                self._watched[key] = replace(known, runs=tuple(dict.fromkeys((*known.runs, run))))
            else:
                self._watched[key] = _Watched(change.topic_id, change.target, (run,))

    def changed(self, state: ClusterState | None) -> dict[Run, list[list[Any]]]:
        """Return what to signal to each run: rows of partitions that were deleted, cancelled or have a later target.

        Completed ones are not signalled, since their nodes report that.
        """
        changed: dict[Run, list[list[Any]]] = {}
        for key, known in list(self._watched.items()) if state is not None else []:
            assert state is not None
            now = partition_view(state, key)
            exists = now is not None and now.topic_id == known.topic_id
            if now is not None and exists and now.target == known.target and now.reassigning:
                continue
            del self._watched[key]
            if now is not None and exists and now.replicas == known.target:
                continue
            for run in known.runs:
                changed.setdefault(run, []).append(now.row() if now is not None and exists else list(key))
        return changed

    def rows(self) -> list[list[Any]]:
        """Return the rows for a continue-as-new, one per run."""
        by_run: dict[Run, list[list[Any]]] = {}
        for (topic, partition), each in self._watched.items():
            for run in each.runs:
                by_run.setdefault(run, []).append([topic, partition, each.topic_id, list(each.target)])
        return [[*run, partitions] for run, partitions in by_run.items()]

    @staticmethod
    def of(rows: Sequence[Sequence[Any]]) -> Watchers:
        """Return the watchers of such rows."""
        it = Watchers()
        for workflow_id, run_id, partitions in rows:
            it.watch(
                (
                    Reassigned(topic, topic_id, partition, (), tuple(target), (), ())
                    for topic, partition, topic_id, target in partitions
                ),
                (workflow_id, run_id),
            )
        return it


def partition_view(state: ClusterState, key: Key) -> PartitionView | None:
    """Return a partition in the controller's state, None if it does not exist."""
    topic = state.topics.get(key[0])
    if topic is None or not 0 <= key[1] < len(topic.partitions):
        return None
    return _view(topic.name, topic.id, topic.partitions[key[1]])


def _view(topic: str, topic_id: str, partition: PartitionImage) -> PartitionView:
    held = partition.assignment
    return PartitionView(
        topic,
        partition.index,
        topic_id,
        held.replicas,
        held.adding,
        held.removing,
        held.original,
        partition.isr,
        partition.leader,
    )
