"""The coordinator's pending responses: it sends an assignment only once the membership is on disk."""

from __future__ import annotations

from collections.abc import Sequence

from storage_node.groups.values import Reply, SyncAnswer
from storage_node.model.error_codes import ErrorCode


class PendingReplies:
    """The responses that wait for each group's newest entry to be written. Used on the listener's loop only."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Reply]] = {}

    def begin(self, group: str, replies: Sequence[Reply]) -> list[Reply]:
        """Begin the write of a group's entry; returns its waiting responses, to which `later` adds until `end`."""
        self._waiting[group] = waiting = list(replies)
        return waiting

    def end(self, group: str, waiting: list[Reply]) -> None:
        """End the write for which `begin` returned this list: the entry is on disk, or the write has failed."""
        if self._waiting.get(group) is waiting:
            del self._waiting[group]

    def later(self, group: str, replies: Sequence[Reply]) -> list[Reply]:
        """Return the responses to send now; assignments wait while an entry of the group is being written."""
        waiting = self._waiting.get(group)
        if waiting is None:
            return list(replies)
        waiting += [reply for reply in replies if isinstance(reply[1], SyncAnswer)]
        return [reply for reply in replies if not isinstance(reply[1], SyncAnswer)]


def deliver(replies: Sequence[Reply]) -> None:
    """Send the responses to the requests that still wait."""
    for token, answer in replies:
        if not token.done():
            token.set_result(answer)


def without_assignments(replies: Sequence[Reply]) -> list[Reply]:
    """Replace assignments by an error, on which members retry, after a failed write of the membership."""
    refused = SyncAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return [(token, refused if isinstance(answer, SyncAnswer) else answer) for token, answer in replies]
