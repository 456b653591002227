"""What a node reports of its replicas, as the controller takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from storage_node.ports import ReplicaReport


def report_rows(reports: Sequence[ReplicaReport]) -> list[list[Any]]:
    """The rows of `report_replicas`, and of a registration's `offline`."""
    return [
        [
            one.partition.topic,
            one.partition.partition,
            one.topic_id,
            one.directory_id,
            one.generation,
            one.reason,
            one.file,
        ]
        for one in reports
    ]
