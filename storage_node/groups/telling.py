"""Whom a coordinator tells what, and when: an assignment only once the membership it is of is on disk."""

from __future__ import annotations

from collections.abc import Sequence

from storage_node.errors import ErrorCode
from storage_node.groups.values import Reply, SyncAnswer


class Untold:
    """What waits for the newest entry of each group that is being written. Used on the listener's loop only."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Reply]] = {}

    def begin(self, group: str, replies: Sequence[Reply]) -> list[Reply]:
        """An entry of the group is written from now on; the list that is answered grows until `end`."""
        self._waiting[group] = waiting = list(replies)
        return waiting

    def end(self, group: str, waiting: list[Reply]) -> None:
        """The entry that `begin` gave this list for is on disk, or cannot be."""
        if self._waiting.get(group) is waiting:
            del self._waiting[group]

    def later(self, group: str, replies: Sequence[Reply]) -> list[Reply]:
        """What of these can be told now; assignments wait while an entry of the group is being written."""
        waiting = self._waiting.get(group)
        if waiting is None:
            return list(replies)
        waiting += [reply for reply in replies if isinstance(reply[1], SyncAnswer)]
        return [reply for reply in replies if not isinstance(reply[1], SyncAnswer)]


def deliver(replies: Sequence[Reply]) -> None:
    """Tell everybody who still waits."""
    for token, answer in replies:
        if not token.done():
            token.set_result(answer)


def without_assignments(replies: Sequence[Reply]) -> list[Reply]:
    """What is told when the membership cannot be kept: whoever was to get an assignment is to ask again."""
    refused = SyncAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return [(token, refused if isinstance(answer, SyncAnswer) else answer) for token, answer in replies]
