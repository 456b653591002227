"""Many partitions changed by one command: each topic's row is written once, with one version."""

from __future__ import annotations

from dataclasses import replace

from workflows.model.outcome import Change, Code, Reassigned, Refused, Result
from workflows.model.state import ClusterState, Partition


class Edits:
    """What a command has changed so far; a partition is read as the rows before have left it."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._edited: dict[str, list[Partition]] = {}

    def partition(self, topic: str, index: int, topic_id: str = "") -> Partition:
        """A partition; raises Refused when there is none, or when the topic has another id than the one given."""
        held = self._state.topics.get(topic)
        if held is None or index >= len(held.partitions):
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}.")
        if topic_id and topic_id != held.id:
            raise Refused(Code.UNKNOWN_TOPIC_ID, f"The topic {topic} is another one now (id {held.id}).")
        return (self._edited.get(topic) or held.partitions)[index]

    def put(self, topic: str, after: Partition) -> None:
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
        settled: list[Reassigned] | None = None,
    ) -> Change:
        """The state with all that was put; results without an error, or with a value, name its version."""
        state = self._state
        if self._edited:
            state = state.with_topics(
                *(replace(state.topics[name], partitions=tuple(each)) for name, each in self._edited.items())
            )
        for result in results:
            if not result.get("error") or "value" in result:
                result["version"] = state.version
        return Change(state, results, quiet=quiet, reassigned=reassigned or [], settled=settled or [])
