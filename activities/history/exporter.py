"""One export: it finds new runs, writes their histories into files, and publishes them with a manifest.

It is incremental: it lists only runs closed since the newest exported close time, less an overlap for the visibility
store's lag, and fetches only those that no manifest names yet. It writes open runs again only if they have changed. An
export without changes writes nothing, or once an hour a manifest without files while runs are open: their deadlines
pass meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History

from activities.history.files import PartWriter, digest, locked, make_folder, sync_folder, write_whole
from activities.history.lateness import late_export
from activities.history.manifest import (
    CLOSED,
    FOLDER,
    OPEN,
    PENDING,
    FileEntry,
    Manifest,
    RunEntry,
    from_iso,
    manifest_name,
    read_manifests,
    to_iso,
)
from activities.history.pruning import prune, remove_orphans
from activities.history.source import HistorySource, Run, instant
from workflows.model.calls import ExportCall, ExportResult
from workflows.model.names import EXPORT_HISTORY

log = logging.getLogger(__name__)

#: The maximum lag of the visibility store: closed runs of this time are listed again.
OVERLAP = timedelta(minutes=10)
#: The time after which an export without changes states that open runs are still open.
QUIET = timedelta(hours=1)
#: Histories fetched at the same time.
FETCHES = 8
#: The size of a file of histories, in bytes, above which the next one begins.
PART_BYTES = 32 * 1024 * 1024

#: Types of the exporter's own runs, which are exported with others but do not cause an export.
OWN_TYPES = frozenset({EXPORT_HISTORY})

_CLOSING = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)

Beat = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class _News:
    """The runs to export: closed ones, and open ones with the server's description of each. `running`: any is open."""

    closed: tuple[Run, ...]
    open: tuple[tuple[Run, dict[str, Any]], ...]
    running: bool = False


class Exporter:
    """Exports the histories of one namespace, restricted by `scope`, a visibility query ("" for all of it)."""

    def __init__(
        self,
        source: HistorySource,
        namespace: str,
        *,
        scope: str = "",
        part_bytes: int = PART_BYTES,
        fetches: int = FETCHES,
        overlap: timedelta = OVERLAP,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source, self._namespace, self._scope = source, namespace, scope
        self._part_bytes, self._fetches, self._overlap, self._now = part_bytes, fetches, overlap, now

    async def export(self, call: ExportCall, beat: Beat = lambda step, done: None) -> ExportResult:
        """Write new histories below `call.directory`, and return the counts; zeros with the newest manifest's path if
        there are none.

        `beat` is called once per run with the progress. Raises ExportBusy, ExportCorrupt, RPCError, OSError, and
        ValueError for an `as_of` that is not a time stamp.
        """
        directory = Path(call.directory)
        make_folder(directory)
        with locked(directory):
            manifests = read_manifests(directory)
            remove_orphans(directory, manifests)
            limit = from_iso(call.as_of) if call.as_of else None
            scope = " AND ".join(f"({part})" for part in (self._scope, call.query) if part)
            if call.keep_days:
                manifests = prune(directory, manifests, self._now() - timedelta(days=call.keep_days), self._overlap)
            news = await self._news(manifests, scope, limit, beat)
            if not news.open and not any(run.workflow_type not in OWN_TYPES for run in news.closed):
                if not (news.running and manifests and limit is None and self._quiet_since(manifests[-1])):
                    return _nothing(directory, manifests)
                news = _News((), ())
            manifest = await self._write(directory, manifests, scope, limit, news, beat)
        return _result(directory, manifest) if manifest else _nothing(directory, manifests)

    def _quiet_since(self, last: Manifest) -> bool:
        return self._now() - from_iso(last.taken_at) >= QUIET

    async def _news(self, manifests: Sequence[Manifest], scope: str, limit: datetime | None, beat: Beat) -> _News:
        """Return the runs that no manifest has. Open runs are listed first: one that closes in between is then listed
        as closed.
        """
        known = {(run.workflow_id, run.run_id): run for file in _files(manifests, CLOSED) for run in file.runs}
        seen = {(run.workflow_id, run.run_id): run.digest for file in _files(manifests, OPEN) for run in file.runs}
        open_runs = await self._list(scope, "CloseTime IS NULL")
        watermark = newest_watermark(manifests, self._namespace, scope)
        # A bound alone is not enough: SQL visibility stores have a maximum date as the close time of open runs.
        bounds = ["CloseTime IS NOT NULL"]
        if watermark:
            bounds.append(f'CloseTime >= "{to_iso(watermark - self._overlap)}"')
        if limit:
            bounds.append(f'CloseTime <= "{to_iso(limit)}"')
        closed_runs = await self._list(scope, *bounds)
        beat("listed", len(open_runs) + len(closed_runs))
        closed = tuple(
            run
            for key, run in sorted(closed_runs.items(), key=lambda item: (item[1].closed_at or run_epoch, item[0]))
            if key not in known or known[key].history_length != run.history_length
        )
        candidates = [
            run
            for key, run in sorted(open_runs.items())
            if key not in closed_runs and run.workflow_type not in OWN_TYPES and (not limit or run.started_at <= limit)
        ]
        described = [pair async for pair in self._gather(candidates, self._source.pending)]
        fresh = tuple(
            (run, pending)
            for run, pending in described
            if pending is not None and seen.get(run.key) != open_digest(run, pending)
        )
        return _News(closed, fresh, bool(candidates))

    async def _list(self, *conditions: str) -> dict[tuple[str, str], Run]:
        query = " AND ".join(condition for condition in conditions if condition)
        return {run.key: run async for run in self._source.list_runs(query)}

    async def _gather(self, runs: Sequence[Run], fetch: Callable[[Run], Any]) -> AsyncIterator[tuple[Run, Any]]:
        """Fetch something of each run, at most `fetches` at a time, and yield the results in the runs' order."""
        waiting: deque[tuple[Run, asyncio.Task[Any]]] = deque()
        rest = iter(runs)
        try:
            while True:
                while len(waiting) < self._fetches and (run := next(rest, None)) is not None:
                    waiting.append((run, asyncio.ensure_future(fetch(run))))
                if not waiting:
                    return
                run, task = waiting[0]
                result = await task
                waiting.popleft()
                yield run, result
        finally:
            for _, task in waiting:
                task.cancel()

    async def _write(
        self,
        directory: Path,
        manifests: Sequence[Manifest],
        scope: str,
        limit: datetime | None,
        news: _News,
        beat: Beat,
    ) -> Manifest | None:
        """Write the files and their manifest; None if the server has removed every history in the meantime. Without
        news the manifest has no files.
        """
        begun = self._now()
        export_id = f"{begun:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
        folder = directory / f"dt={begun:%Y-%m-%d}" / f"run={export_id}"
        make_folder(folder)
        last_event = begun
        parts = PartWriter(directory, folder, CLOSED, "part", self._part_bytes)
        done = 0
        async for run, history in self._gather(news.closed, self._source.history):
            if history is not None and history.events:
                last_event = max(last_event, instant(history.events[-1].event_time))
                await asyncio.to_thread(parts.add, _entry(run, history), history)
            beat("closed", done := done + 1)
        opened = PartWriter(directory, folder, OPEN, "open", self._part_bytes)
        facts = dict(news.open)
        snapshots: list[dict[str, Any]] = []
        async for run, history in self._gather(list(facts), self._source.history):
            if history is not None and history.events:
                last = history.events[-1]
                last_event = max(last_event, instant(last.event_time))
                if last.event_type in _CLOSING:  # It has closed since it was listed: this is its whole history.
                    await asyncio.to_thread(parts.add, _entry(run, history), history)
                else:
                    entry = _entry(run, history, open_digest(run, facts[run]))
                    await asyncio.to_thread(opened.add, entry, history)
                    snapshots.append(_snapshot(run, facts[run], self._now()))
            beat("open", done := done + 1)
        taken_at = to_iso(limit or max(self._now(), last_event))
        files = [*await asyncio.to_thread(parts.finish), *await asyncio.to_thread(opened.finish)]
        if snapshots:
            files.append(await asyncio.to_thread(_write_snapshots, directory, folder, snapshots))
        if not files and (news.closed or news.open):
            remove_orphans(directory, manifests)
            return None
        # Only up to here were closed runs listed: one that has closed since may not be the only one.
        listed = max((run.closed_at for run in news.closed if run.closed_at), default=None)
        manifest = self._manifest(manifests, scope, export_id, taken_at, listed, files)
        # Its own runs cause no export, so that they may be old.
        oldest = min(
            (run.closed_at for run in news.closed if run.closed_at and run.workflow_type not in OWN_TYPES), default=None
        )
        kept = await self._source.retention()
        manifest = replace(
            manifest,
            oldest_closed=to_iso(oldest) if oldest else "",
            retention_seconds=int(kept.total_seconds()) if kept else 0,
        )
        if late := late_export(oldest, kept, from_iso(taken_at)):
            log.warning("%s", late)
        await asyncio.to_thread(publish, directory, folder, manifest)
        return manifest

    def _manifest(
        self,
        manifests: Sequence[Manifest],
        scope: str,
        export_id: str,
        taken_at: str,
        listed: datetime | None,
        files: list[FileEntry],
    ) -> Manifest:
        before = newest_watermark(manifests, self._namespace, scope)
        newest = max((to_iso(at) for at in (before, listed) if at), default="")
        return Manifest(
            sequence=manifests[-1].sequence + 1 if manifests else 1,
            export_id=export_id,
            parent=manifests[-1].name if manifests else "",
            namespace=self._namespace,
            query=scope,
            taken_at=taken_at,
            watermark=newest,
            exporter=f"rehome {exporter_version()}",
            files=tuple(files),
        )


run_epoch = datetime.fromtimestamp(0, UTC)


def publish(directory: Path, folder: Path, manifest: Manifest) -> None:
    """Publish an export: flush its folders' names, then create the manifest by one rename. Raises OSError."""
    for parent in (folder, folder.parent, directory):
        sync_folder(parent)
    make_folder(directory / FOLDER)
    sync_folder(directory)
    write_whole(directory / FOLDER / manifest.name, manifest.encode())


def newest_watermark(manifests: Sequence[Manifest], namespace: str, scope: str) -> datetime | None:
    """Return the newest close time exported by the same query of the same namespace, None before the first export."""
    marks = [entry.watermark for entry in manifests if (entry.namespace, entry.query) == (namespace, scope)]
    newest = max(marks, default="")
    return from_iso(newest) if newest else None


def open_digest(run: Run, pending: dict[str, Any]) -> str:
    """Return a digest of an open run's history, attempts, heartbeat details and failures, which changes with them.

    The time of the last heartbeat is left out, since a lease heartbeats twice a second without a change.
    """
    reported = [
        {key: value for key, value in activity.items() if key not in _NO_NEWS} for activity in pending["activities"]
    ]
    return digest(json.dumps([run.history_length, run.status, reported], sort_keys=True).encode())[:16]


_NO_NEWS = frozenset({"lastHeartbeatTime", "lastStartedTime", "lastWorkerIdentity", "lastDeploymentVersion"})


def exporter_version() -> str:
    """Return the installed version of this program, "0" if it runs from a source tree."""
    try:
        return version("rehome")
    except PackageNotFoundError:
        return "0"


def _files(manifests: Sequence[Manifest], kind: str) -> list[FileEntry]:
    return [file for manifest in manifests for file in manifest.files if file.kind == kind]


def _entry(run: Run, history: History, mark: str = "") -> RunEntry:
    last = history.events[-1]
    closed = run.closed_at or (instant(last.event_time) if last.event_type in _CLOSING else None)
    length = run.history_length if run.closed_at else len(history.events)
    return RunEntry(run.workflow_id, run.run_id, run.workflow_type, length, to_iso(closed) if closed else "", mark)


def _snapshot(run: Run, pending: dict[str, Any], at: datetime) -> dict[str, Any]:
    return {
        "workflow_id": run.workflow_id,
        "run_id": run.run_id,
        "workflow_type": run.workflow_type,
        "status": run.status,
        "started_at": to_iso(run.started_at),
        "history_length": run.history_length,
        "taken_at": to_iso(at),
        **pending,
    }


def _write_snapshots(directory: Path, folder: Path, snapshots: list[dict[str, Any]]) -> FileEntry:
    path = folder / "open-00000.json"
    data = json.dumps({"format": 1, "runs": snapshots}, sort_keys=True).encode() + b"\n"
    write_whole(path, data)
    return FileEntry(str(path.relative_to(directory)), PENDING, len(data), digest(data))


def _nothing(directory: Path, manifests: Sequence[Manifest]) -> ExportResult:
    newest = str(directory / FOLDER / manifests[-1].name) if manifests else ""
    return ExportResult(newest, 0, 0, 0, 0)


def _result(directory: Path, manifest: Manifest) -> ExportResult:
    def count(kind: str) -> int:
        return sum(len(file.runs) for file in manifest.files if file.kind == kind)

    return ExportResult(
        manifest=str(directory / FOLDER / manifest_name(manifest.sequence)),
        closed=count(CLOSED),
        open=count(OPEN),
        events=sum(file.events for file in manifest.files),
        bytes=sum(file.bytes for file in manifest.files),
        oldest_closed=manifest.oldest_closed,
        retention_seconds=manifest.retention_seconds,
    )
