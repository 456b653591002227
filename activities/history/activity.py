"""The activity `export_histories`: a thin shell that heartbeats and names the errors."""

from __future__ import annotations

import time
from pathlib import Path

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.history.exporter import Exporter
from activities.history.files import ExportBusy
from activities.history.manifest import ExportCorrupt, from_iso
from activities.history.source import TemporalSource
from workflows.errors import INVALID_PLAN
from workflows.model.calls import EXPORT_HISTORIES, ExportCall, ExportResult
from workflows.model.names import cluster_queue, history_queue

#: Error types of this activity, beside InvalidPlan.
EXPORT_BUSY = "ExportBusy"  # another export writes to the folder: tried again
EXPORT_CORRUPT = "ExportCorrupt"  # the folder contradicts its manifests: no retry can mend it
EXPORT_FAILED = "ExportFailed"  # the folder cannot be written: tried again

_BEAT_SECONDS = 1.0


class HistoryActivities:
    """Exports the histories of one cluster's workflows. Needs `client`'s permission to read `namespace`."""

    def __init__(self, client: Client, namespace: str, cluster: str) -> None:
        """`cluster` limits exports to the runs on its queues; "" takes the whole namespace."""
        self._exporter = Exporter(TemporalSource(client, namespace), namespace, scope=cluster_scope(cluster))

    @activity.defn(name=EXPORT_HISTORIES)
    async def export_histories(self, call: ExportCall) -> ExportResult:
        """Write what is new of the namespace's histories below `call.directory`."""
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
            raise ApplicationError(str(error), type=EXPORT_BUSY) from error
        except ExportCorrupt as error:
            raise ApplicationError(str(error), type=EXPORT_CORRUPT, non_retryable=True) from error
        except OSError as error:
            why = error.strerror or str(error)
            sentence = f"cannot write the export to {call.directory} ({why}): make room or choose another folder"
            raise ApplicationError(sentence, type=EXPORT_FAILED) from error


def cluster_scope(cluster: str) -> str:
    """The visibility query that finds the runs of one cluster, "" for all of a namespace."""
    if not cluster:
        return ""
    return f'TaskQueue IN ("{cluster_queue(cluster)}", "{history_queue(cluster)}")'


def check(call: ExportCall) -> None:
    """Refuse a call that no retry can mend: InvalidPlan with the path of the bad field."""
    if not call.directory or not Path(call.directory).is_absolute():
        raise ApplicationError(
            f"directory: {call.directory!r} is not an absolute path", type=INVALID_PLAN, non_retryable=True
        )
    if call.as_of:
        try:
            from_iso(call.as_of)
        except ValueError as error:
            raise ApplicationError(
                f"as_of: {call.as_of!r} is not a time stamp in ISO 8601", type=INVALID_PLAN, non_retryable=True
            ) from error
