"""What a command answers: the state after it and one result per item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    STALE_BROKER_EPOCH = 77
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_CLUSTER_ID = 104


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one command.

    `results` has one entry per item, in order: `error` and `message` when it was refused, else `version` (the image
    version that holds the change) and where it applies `topic_id` and `value`. `quiet` marks a change that only its own
    node needs soon (generations and directories of replicas): the others get it with the next push.
    """

    state: ClusterState
    results: list[Result] = field(default_factory=list)
    quiet: bool = False


class Refused(Exception):
    """An item is refused with one of Kafka's error codes and one sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def result(self) -> Result:
        """The item's result."""
        return {"error": self.code, "message": self.message}
