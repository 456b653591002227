"""Errors of admin requests, each one sentence for operators: what failed, where, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from storage_node.model.error_codes import ErrorCode

NO_RESPONSE = "NO_RESPONSE"
"""In place of the name of Kafka's error: nothing was received about this partition or replica."""


class Answer(StrEnum):
    """What an error means for the one who sent the request."""

    RETRY = "retry"
    """It says nothing about the request, which may be carried out still: read the cluster, and request it again."""
    FINAL = "final"
    """The request is rejected, and would be again."""
    DRIFT = "drift"
    """The cluster is not as the request assumes."""


#: Kafka's codes that storage nodes never send, but other brokers and the client do.
OTHER_CODES: Mapping[int, str] = {
    8: "BROKER_NOT_AVAILABLE",
    13: "NETWORK_EXCEPTION",
    29: "TOPIC_AUTHORIZATION_FAILED",
    30: "GROUP_AUTHORIZATION_FAILED",
    41: "NOT_CONTROLLER",
    65: "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    89: "THROTTLING_QUOTA_EXCEEDED",
}
#: By the name of Kafka's error.
ANSWERS: Mapping[str, Answer] = {
    NO_RESPONSE: Answer.RETRY,
    "BROKER_NOT_AVAILABLE": Answer.RETRY,
    "COORDINATOR_LOAD_IN_PROGRESS": Answer.RETRY,
    "COORDINATOR_NOT_AVAILABLE": Answer.RETRY,
    "LEADER_NOT_AVAILABLE": Answer.RETRY,
    "NETWORK_EXCEPTION": Answer.RETRY,
    "NOT_CONTROLLER": Answer.RETRY,
    "NOT_COORDINATOR": Answer.RETRY,
    "NOT_ENOUGH_REPLICAS": Answer.RETRY,
    "NOT_LEADER_OR_FOLLOWER": Answer.RETRY,
    "REQUEST_TIMED_OUT": Answer.RETRY,
    "STALE_BROKER_EPOCH": Answer.RETRY,
    "THROTTLING_QUOTA_EXCEEDED": Answer.RETRY,
    "NO_REASSIGNMENT_IN_PROGRESS": Answer.DRIFT,
    "REPLICA_NOT_AVAILABLE": Answer.DRIFT,
    "UNKNOWN_TOPIC_ID": Answer.DRIFT,
    "UNKNOWN_TOPIC_OR_PARTITION": Answer.DRIFT,
    "CLUSTER_AUTHORIZATION_FAILED": Answer.FINAL,
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": Answer.FINAL,
    "GROUP_AUTHORIZATION_FAILED": Answer.FINAL,
    "INVALID_REPLICA_ASSIGNMENT": Answer.FINAL,
    "INVALID_REQUEST": Answer.FINAL,
    # A disk that failed: the broker has to be repaired and restarted.
    "KAFKA_STORAGE_ERROR": Answer.FINAL,
    "LOG_DIR_NOT_FOUND": Answer.FINAL,
    "POLICY_VIOLATION": Answer.FINAL,
    "TOPIC_AUTHORIZATION_FAILED": Answer.FINAL,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Answer.FINAL,
}
GONE = frozenset({"UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PARTITION"})
"""The topic or the partition does not exist."""


def answer_of(name: str) -> Answer:
    """Return what the error of a partition or a replica means; one that the table lacks is final."""
    return ANSWERS.get(name, Answer.FINAL)


def code_name(code: int) -> str:
    """Return Kafka's name of an error code, or the number if the name is unknown."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return OTHER_CODES.get(code, f"Kafka's error code {code}")


class AdminError(Exception):
    """The cluster rejected a request."""

    answer: ClassVar[Answer] = Answer.FINAL


class NoResponse(AdminError):
    """No broker responded, or not with a Kafka response: the outcome of the request is unknown, a retry may mend it."""

    answer = Answer.RETRY


class UnknownTopic(AdminError):
    """The topic does not exist in the cluster."""

    answer = Answer.DRIFT


class BadClientConfig(AdminError):
    """The client's settings are not valid; nothing was sent."""


@dataclass(frozen=True, slots=True)
class AdminErrors:
    """The exceptions that a `KafkaAdmin` raises; the two after the first derive from it."""

    rejected: type[Exception] = AdminError
    no_response: type[Exception] = NoResponse
    unknown_topic: type[Exception] = UnknownTopic
    usage: type[Exception] = BadClientConfig
