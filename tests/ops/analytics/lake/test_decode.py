"""A file of an export as records: events, what cannot be read and why, and the account of the file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.export.v1 import WorkflowExecution, WorkflowExecutions

from activities.history.manifest import CLOSED, PENDING
from ops.analytics.lake.decode import FILE, QUARANTINE, attributes_json, event_name, read_file, summary
from tests.support.runs.histories import RunBuilder, moved, payloads


def entry(path: Path, **more: Any) -> dict[str, Any]:
    """A file as its manifest has it."""
    data = path.read_bytes() if path.exists() else b""
    return {
        "path": str(path), "name": path.name, "kind": CLOSED, "bytes": len(data), "events": 0,
        "sha256": hashlib.sha256(data).hexdigest(), "sequence": 3, "export_id": "x", "taken_at": 0,
        "namespace": "default", "runs": [], **more,
    }  # fmt: skip


def written(path: Path, *runs: RunBuilder) -> Path:
    """A file without labels, such as Temporal Cloud's."""
    items = [WorkflowExecution(history=run.history()) for run in runs]
    path.write_bytes(WorkflowExecutions(items=items).SerializeToString())
    return path


def of(kind: str, file: dict[str, Any]) -> list[Any]:
    """The records of one kind; those that are not events as their JSON."""
    found = [record for record in read_file(file) if record[0] == kind]
    return found if kind == CLOSED else [json.loads(record[10]) for record in found]


def test_file_without_labels_takes_its_runs_from_their_first_events(tmp_path: Path) -> None:
    run = moved("a")
    file = entry(written(tmp_path / "cloud.pb", run))
    rows = of(CLOSED, file)
    assert {row[5:7] for row in rows} == {(run.workflow_id, run.run_id)}
    assert [row[7] for row in rows] == list(range(1, len(run.events) + 1))
    assert rows[0][9] == "WORKFLOW_EXECUTION_STARTED"
    assert json.loads(rows[0][10])["workflowType"]["name"] == "MoveReplica"
    assert of(FILE, file) == [{"file_kind": CLOSED, "bytes": file["bytes"], "expected": len(rows), "read": len(rows)}]


def test_event_of_a_newer_server_is_kept() -> None:
    event = moved("a").event("MARKER_RECORDED", 1.0)
    event.event_type = 9999  # type: ignore[assignment]
    assert (event_name(event.event_type), attributes_json(event)) == ("9999", "{}")


def test_label_is_read_and_other_values_are_ignored() -> None:
    event = moved("a").event("TIMER_STARTED", 1.0)
    assert summary(event) is None
    event.user_metadata.summary.CopyFrom(payloads("wait for the delete").payloads[0])
    assert summary(event) == "wait for the delete"
    event.user_metadata.summary.data = b"\xff"
    assert summary(event) is None


@pytest.mark.parametrize(
    ("damage", "reason"), [("missing", "missing"), ("cut", "truncated"), ("longer", "altered"), ("flipped", "altered")]
)
def test_file_that_differs_from_its_manifest_is_quarantined_whole(tmp_path: Path, damage: str, reason: str) -> None:
    path = written(tmp_path / "part.pb", moved("a"))
    file, data = entry(path, events=13), path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        changed = {"cut": data[:-1], "longer": data + b"?", "flipped": data[:100] + b"?" + data[101:]}
        path.write_bytes(changed[damage])
    assert of(CLOSED, file) == []
    (bad,) = of(QUARANTINE, file)
    assert (bad["reason"], bad["offset"], bad["events"]) == (reason, 0, 13) and "part.pb" in bad["message"]
    assert of(FILE, file)[0] | {"bytes": 0} == {"file_kind": CLOSED, "bytes": 0, "expected": 13, "read": 0}


def test_malformed_history_costs_only_itself(tmp_path: Path) -> None:
    first, last = moved("a"), moved("b")
    path = tmp_path / "part.pb"
    begin = WorkflowExecutions(items=[WorkflowExecution(history=first.history())]).SerializeToString()
    end = WorkflowExecutions(items=[WorkflowExecution(history=last.history())]).SerializeToString()
    path.write_bytes(begin + b"\x0a\x03\xff\xff\xff" + b"\x0a\x00" + end)
    named = [["f", "1", len(first.events)], ["bad", "2", 7], ["empty", "3", 0], ["l", "4", len(last.events)]]
    events = len(first.events) + 7 + len(last.events)
    file = entry(path, runs=named, events=events)
    assert {row[5:7] for row in of(CLOSED, file)} == {("f", "1"), ("l", "4")}
    bad, empty = of(QUARANTINE, file)
    assert (bad["reason"], bad["offset"], bad["events"]) == ("malformed", len(begin), 7)
    assert (empty["reason"], empty["offset"]) == ("empty", len(begin) + 5)
    assert of(FILE, file)[0] | {"bytes": 0} == {
        "file_kind": CLOSED, "bytes": 0, "expected": events, "read": events - 7,
    }  # fmt: skip


@pytest.mark.parametrize("data", [b"PK\x03\x04", b"\x0a\xff\xff\xff\xff\x07x", b"\x0a\xff", b"\x12\x00"])
def test_file_that_is_no_export_is_quarantined(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "part.pb"
    path.write_bytes(data)
    (bad,) = of(QUARANTINE, entry(path))
    assert (bad["reason"], bad["offset"]) == ("malformed", 0)


def test_descriptions_that_are_no_json_are_quarantined(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    path.write_bytes(b"{}")
    assert [bad["reason"] for bad in of(QUARANTINE, entry(path, kind=PENDING))] == ["malformed"]
