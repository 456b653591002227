"""The data source: what it makes of files, its own exporter's or others'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from temporalio.api.export.v1 import WorkflowExecution, WorkflowExecutions

from ops.analytics.source import HistoryReader, attributes_json, event_name, read_events, summary
from tests.support.histories import moved, payloads


def entry(path: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(path), "name": path.name, "bytes": 1, "export_id": "x", "namespace": "default", **more}


def test_a_file_from_elsewhere_names_its_runs_by_their_first_event(tmp_path: Path) -> None:
    run = moved("a")
    path = tmp_path / "cloud.pb"
    path.write_bytes(WorkflowExecutions(items=[WorkflowExecution(history=run.history())]).SerializeToString())
    rows = list(read_events(entry(path)))
    assert len(rows) == len(run.events)
    assert {row[1:3] for row in rows} == {(run.workflow_id, run.run_id)}
    assert [row[3] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0][5] == "WORKFLOW_EXECUTION_STARTED"
    assert json.loads(rows[0][6])["workflowType"]["name"] == "MoveReplica"


def test_an_event_of_a_newer_server_passes_through() -> None:
    event = moved("a").event("MARKER_RECORDED", 1.0)
    event.event_type = 9999  # type: ignore[assignment]
    assert (event_name(event.event_type), attributes_json(event)) == ("9999", "{}")


def test_a_label_is_read_and_anything_else_in_its_place_is_left() -> None:
    event = moved("a").event("TIMER_STARTED", 1.0)
    assert summary(event) is None
    event.user_metadata.summary.CopyFrom(payloads("wait for the delete").payloads[0])
    assert summary(event) == "wait for the delete"
    event.user_metadata.summary.data = b"\xff"
    assert summary(event) is None


def test_garbage_is_no_history(tmp_path: Path) -> None:
    path = tmp_path / "bad.pb"
    path.write_bytes(b"\x0a\xff\xff\xff\xff\x07garbage")
    with pytest.raises(DecodeError):
        list(read_events(entry(path)))


def test_files_are_spread_evenly_by_size() -> None:
    files = [{"name": str(n), "bytes": n} for n in (9, 1, 1, 1, 5, 1)]
    bins = [partition.files for partition in HistoryReader(files, 2).partitions()]
    assert sorted(sum(int(file["bytes"]) for file in one) for one in bins) == [9, 9]
    assert len(HistoryReader(files, 50).partitions()) == 6
