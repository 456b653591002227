"""Which runs see which reassignments through, so that they hear of a cancel or a later target at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workflows.model.outcome import Reassigned
from workflows.model.reassignment_runs import Key, Standing
from workflows.model.state import ClusterState, Partition

Run = tuple[str, str]
"""Workflow id and run id; "" is whichever run of that id is open."""


@dataclass(frozen=True, slots=True)
class _Watched:
    topic_id: str
    target: tuple[int, ...]
    runs: tuple[Run, ...]


class Watchers:
    """The reassignments under way that a run sees through. What is complete, cancelled or changed goes from here."""

    def __init__(self) -> None:
        self._watched: dict[Key, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def has(self, change: Reassigned) -> bool:
        """Whether a run sees exactly this through already."""
        known = self._watched.get((change.topic, change.partition))
        return known is not None and (known.topic_id, known.target) == (change.topic_id, change.target)

    def watch(self, changes: Iterable[Reassigned], run: Run) -> None:
        """A run sees these through from now on, beside others with the same target."""
        for change in changes:
            key = (change.topic, change.partition)
            if self.has(change):
                known = self._watched[key]
                self._watched[key] = replace(known, runs=tuple(dict.fromkeys((*known.runs, run))))
            else:
                self._watched[key] = _Watched(change.topic_id, change.target, (run,))

    def changed(self, state: ClusterState | None) -> dict[Run, list[list[Any]]]:
        """What the runs are to be told now: rows of partitions that are gone, were cancelled or have a later target.

        Who is done is told by its nodes.
        """
        told: dict[Run, list[list[Any]]] = {}
        for key, known in list(self._watched.items()) if state is not None else []:
            assert state is not None
            now = standing(state, key)
            there = now is not None and now.topic_id == known.topic_id
            if now is not None and there and now.target == known.target and now.reassigning:
                continue
            del self._watched[key]
            if now is not None and there and now.replicas == known.target:
                continue
            for run in known.runs:
                told.setdefault(run, []).append(now.row() if now is not None and there else list(key))
        return told

    def rows(self) -> list[list[Any]]:
        """For a continue-as-new: a row per run."""
        by_run: dict[Run, list[list[Any]]] = {}
        for (topic, partition), each in self._watched.items():
            for run in each.runs:
                by_run.setdefault(run, []).append([topic, partition, each.topic_id, list(each.target)])
        return [[*run, partitions] for run, partitions in by_run.items()]

    @staticmethod
    def of(rows: Sequence[Sequence[Any]]) -> Watchers:
        """What such rows say."""
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


def standing(state: ClusterState, key: Key) -> Standing | None:
    """A partition as the controller has it."""
    topic = state.topics.get(key[0])
    if topic is None or not 0 <= key[1] < len(topic.partitions):
        return None
    return _standing(topic.name, topic.id, topic.partitions[key[1]])


def _standing(topic: str, topic_id: str, partition: Partition) -> Standing:
    held = partition.assignment
    return Standing(
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
