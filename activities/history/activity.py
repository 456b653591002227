"""The activity `export_histories`: a thin shell that heartbeats and maps errors to their types."""

from __future__ import annotations

import json
import time
from pathlib import Path

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.history.exporter import Exporter
from activities.history.files import ExportBusy
from activities.history.manifest import ExportCorrupt, from_iso
from activities.history.source import TemporalSource
from storage_node.model.error_types import ErrorType
from workflows.model.calls import EXPORT_HISTORIES, ExportCall, ExportResult
from workflows.model.names import cluster_queue, history_queue, plans_queue

_BEAT_SECONDS = 1.0


class HistoryActivities:
    """Exports the histories of one cluster's workflows. Needs `client`'s permission to read `namespace`."""

    def __init__(self, client: Client, namespace: str, cluster: str) -> None:
        """Export with this client; `cluster` limits exports to the runs on its queues, "" means the whole namespace."""
        self._exporter = Exporter(TemporalSource(client, namespace), namespace, scope=cluster_scope(cluster))

    @activity.defn(name=EXPORT_HISTORIES)
    async def export_histories(self, call: ExportCall) -> ExportResult:
        """Write the namespace's new histories below `call.directory`."""
        check(call)
        last = 0.0

        def beat(step: str, done: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _BEAT_SECONDS:
                last = time.monotonic()
                activity.heartbeat({"step": step, "done": done})

        try:
            return await self._exporter.export(call, beat)
        except ExportBusy as error:
            raise ApplicationError(str(error), type=ErrorType.EXPORT_BUSY) from error
        except ExportCorrupt as error:
            raise ApplicationError(str(error), type=ErrorType.EXPORT_CORRUPT, non_retryable=True) from error
        except OSError as error:
            why = error.strerror or str(error)
            sentence = f"cannot write the export to {call.directory} ({why}): make room or choose another folder"
            raise ApplicationError(sentence, type=ErrorType.EXPORT_FAILED) from error


def cluster_scope(cluster: str) -> str:
    """Return the visibility query for the runs of one cluster, plans included; "" for all of a namespace."""
    if not cluster:
        return ""
    queues = (cluster_queue(cluster), history_queue(cluster), plans_queue(cluster))
    return f"TaskQueue IN ({', '.join(json.dumps(queue) for queue in queues)})"


def check(call: ExportCall) -> None:
    """Raise InvalidPlan, with the bad field, for an invalid call, which no retry can mend."""
    if not call.directory or not Path(call.directory).is_absolute():
        raise ApplicationError(
            f"directory: {call.directory!r} is not an absolute path", type=ErrorType.INVALID_PLAN, non_retryable=True
        )
    if call.as_of:
        try:
            from_iso(call.as_of)
        except ValueError as error:
            raise ApplicationError(
                f"as_of: {call.as_of!r} is not a time stamp in ISO 8601",
                type=ErrorType.INVALID_PLAN,
                non_retryable=True,
            ) from error
