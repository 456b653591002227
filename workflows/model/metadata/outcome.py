"""The outcome of a command: the state after it and one result per item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from storage_node.model import fields
from workflows.model.metadata.state import ClusterState

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reassigned:
    """A partition whose reassignment a command has begun or changed; `by` is the requester, "" if unknown."""

    topic: str
    topic_id: str
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    by: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """The outcome of one command.

    `results` has one entry per item, in order: `error` and `message` if it was rejected, else `version` (the image
    version that holds the change) and, if they apply, `topic_id` and `value`. `quiet` marks a change that only the
    requesting node needs soon (generations and directories of replicas, the ISR): the others get it with the next push.
    `reassigned` are the reassignments in progress that the command has begun or changed, `completed` those that it has
    completed at once: another order, or fewer replicas.
    """

    state: ClusterState
    results: list[Result] = field(default_factory=list)
    quiet: bool = False
    reassigned: list[Reassigned] = field(default_factory=list)
    completed: list[Reassigned] = field(default_factory=list)


class Refused(Exception):
    """An item is rejected, with one of Kafka's error codes and one sentence, made safe to send whatever it quotes."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = fields.shown(message)
        super().__init__(self.message)

    def result(self) -> Result:
        """Return the item's result."""
        return {"error": self.code, "message": self.message}
