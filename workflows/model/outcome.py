"""What a command answers: the state after it and one result per item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workflows.model import fields
from workflows.model.state import ClusterState

Result = dict[str, Any]


class Code:
    """Kafka's error codes that the controller answers with."""

    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    STALE_BROKER_EPOCH = 77
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_CLUSTER_ID = 104
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108


@dataclass(frozen=True, slots=True)
class Reassigned:
    """A partition whose reassignment a command has begun, or given another target; `by`: who asked, "" if not known."""

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
    """What became of one command.

    `results` has one entry per item, in order: `error` and `message` when it was refused, else `version` (the image
    version that holds the change) and where it applies `topic_id` and `value`. `quiet` marks a change that only its own
    node needs soon (generations and directories of replicas, the ISR): the others get it with the next push.
    `reassigned` are the reassignments under way that the command has begun or changed, `settled` those that it has
    done at once: another order, or fewer replicas.
    """

    state: ClusterState
    results: list[Result] = field(default_factory=list)
    quiet: bool = False
    reassigned: list[Reassigned] = field(default_factory=list)
    settled: list[Reassigned] = field(default_factory=list)


class Refused(Exception):
    """An item is refused with one of Kafka's error codes and one sentence, fit to be sent whatever it repeats."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = fields.shown(message)
        super().__init__(self.message)

    def result(self) -> Result:
        """The item's result."""
        return {"error": self.code, "message": self.message}
