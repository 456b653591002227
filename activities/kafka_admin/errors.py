"""Errors of admin requests, each one sentence for operators: what failed, where, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

NO_RESPONSE = "NO_RESPONSE"
"""In place of the name of Kafka's error: nothing was received about this partition or replica."""


class AdminError(Exception):
    """The cluster rejected a request."""


class NoResponse(AdminError):
    """No broker responded, or not with a Kafka response: the outcome of the request is unknown, a retry may mend it."""


class UnknownTopic(AdminError):
    """The topic does not exist in the cluster."""


class BadClientConfig(AdminError):
    """The client's settings are not valid; nothing was sent."""


@dataclass(frozen=True, slots=True)
class AdminErrors:
    """The exceptions that a `KafkaAdmin` raises; the two after the first derive from it."""

    rejected: type[Exception] = AdminError
    no_response: type[Exception] = NoResponse
    unknown_topic: type[Exception] = UnknownTopic
    usage: type[Exception] = BadClientConfig
