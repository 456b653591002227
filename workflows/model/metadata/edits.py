"""Changes of many partitions by one command: each topic's row is written once, with one version."""

from __future__ import annotations

from dataclasses import replace

from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage
from workflows.model.metadata.outcome import Change, Reassigned, Refused, Result
from workflows.model.metadata.state import ClusterState


class Edits:
    """The partitions that a command has changed so far; each row of it reads the results of the rows before."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._edited: dict[str, list[PartitionImage]] = {}

    def partition(self, tp: TopicPartition, topic_id: str = "") -> PartitionImage:
        """Return a partition; raises Refused if it does not exist, or if the topic does not have the given id."""
        topic, index = tp.topic, tp.partition
        held = self._state.topics.get(topic)
        if held is None or index >= len(held.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The partition {tp} does not exist.")
        if topic_id and topic_id != held.id:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"The topic {topic} was created again: its id is {held.id} now.")
        return (self._edited.get(topic) or held.partitions)[index]

    def put(self, topic: str, after: PartitionImage) -> None:
        """Set a partition."""
        partitions = self._edited.get(topic) or self._state.topics[topic].partitions
        if partitions[after.index] is after:
            return
        if topic not in self._edited:
            self._edited[topic] = list(partitions)
        self._edited[topic][after.index] = after

    def change(
        self,
        results: list[Result],
        *,
        quiet: bool,
        reassigned: list[Reassigned] | None = None,
        completed: list[Reassigned] | None = None,
    ) -> Change:
        """Return the state with all changes; results without an error, or with a value, name its version."""
        state = self._state
        if self._edited:
            state = state.with_topics(
                *(replace(state.topics[name], partitions=tuple(each)) for name, each in self._edited.items())
            )
        for result in results:
            if not result.get("error") or "value" in result:
                result["version"] = state.version
        return Change(state, results, quiet=quiet, reassigned=reassigned or [], completed=completed or [])
