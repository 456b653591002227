"""The Kafka admin API for the commands: its failures are errors that the commands print."""

from __future__ import annotations

from activities.kafka_admin import admin
from activities.kafka_admin.admin import (
    LogDirectoryView,
    NodeAddress,
    PlacedReplica,
    Reassignment,
    error_code,
    sizes_of,
)
from activities.kafka_admin.errors import AdminErrors, code_name
from ops.stack.errors import ExitCode, Refused, UsageError

__all__ = [
    "KafkaAdmin",
    "LogDirectoryView",
    "NoResponse",
    "NodeAddress",
    "PlacedReplica",
    "Reassignment",
    "UnknownTopic",
    "code_name",
    "error_code",
    "sizes_of",
]


class NoResponse(Refused):
    """No node responded, or not with a Kafka response, so that the outcome of the request is unknown."""

    exit_code = ExitCode.TIMEOUT


class UnknownTopic(Refused):
    """The topic does not exist in the cluster."""

    exit_code = ExitCode.FAILED


class KafkaAdmin(admin.KafkaAdmin):
    """Blocking admin calls. Use as a context manager.

    Every failure raises a `Refused`: `NoResponse` if no node responds within `timeout` seconds.
    """

    errors = AdminErrors(Refused, NoResponse, UnknownTopic, UsageError)
