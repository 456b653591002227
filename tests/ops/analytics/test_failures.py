"""Directory failures in the tables, on the page and on a terminal: recorded ones, and a pending one."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
from rich.console import Console

from ops.analytics.page import render
from ops.analytics.report import Failure, ReplicaFailure, collect_failures, collect_replica_failures
from ops.analytics.silver.failures import directories, replica_failures, replica_reports
from ops.analytics.silver.histories import latest_histories
from ops.analytics.silver.histories import runs as runs_of
from ops.analytics.table import print_report
from tests.ops.analytics.bronze import bronze
from tests.ops.analytics.conftest import at
from tests.ops.analytics.sample import report
from tests.support.runs.histories import COMPLETED, T0, RunBuilder, export, moved
from tests.workflows.conftest import HISTORIES, read_history

NOTICED = T0.timestamp() + 3.5
MOVE = {"topic": "audit", "partition": 1, "source": "/data/n2/d1", "directory": "/data/n2/d2", "workflow_id": "m"}


def failure(name: str, **more: Any) -> RunBuilder:
    """A run that a node started 3.5 s into the morning."""
    parameter = {
        "node": 2,
        "incarnation": "i",
        "directory": "/data/n2/d2",
        "directory_id": "an-id",
        "reason": "the health check failed on log directory /data/n2/d2: Input/output error",
        "noticed": NOTICED,
        "replicas": [["orders", "topic-id", [[0, 0], [7, 3]]], ["audit", "other-id", [[1, 0]]]],
        "moves": [MOVE],
        **more,
    }
    return RunBuilder(
        f"rehome/directory-failure/2/an-id/{name}",
        f"run-{name}",
        workflow_type="DirectoryFailure",
        parameter=parameter,
        start=4.0,
    )


@pytest.mark.spark
def test_recorded_and_pending_directory_failures_are_rows(spark: Any, tmp_path: Any) -> None:
    evidence = {"verdict": "disk", "operation": "fsync", "path": "/data/n2/d2/t-0", "errno": "EIO", "time": NOTICED}
    signs = [{"text": "smart: 8 sectors", "time": NOTICED - 60}, {"text": "slow: 9 times", "time": NOTICED - 5}]
    recorded = failure("recorded", evidence=evidence, signs=signs)
    result = {
        **recorded_facts(),
        "recorded": NOTICED + 1.25,
        "outcome": "recorded",
        "replicas": [{"topic": "orders", "partitions": [0, 7]}],
        "moves": [MOVE],
        "evidence": evidence,
        "signs": signs,
    }
    recorded.complete(5.0, result)
    hung = {"verdict": "hung", "operation": "the health check", "path": "/data/n2/d3", "errno": "", "time": NOTICED}
    waits = failure("waits", directory="/data/n2/d3", evidence=hung, signs=signs[1:])
    old = failure("old", directory="/data/n2/d4", noticed=NOTICED + 1)
    export(tmp_path, recorded, waits, old, moved("a"), at=100)
    found = directories(runs(spark, tmp_path))
    assert {
        row["directory"]: (row["verdict"], row["operation"], row["errno"], row["file"]) for row in found.collect()
    } == {
        "/data/n2/d2": ("disk", "fsync", "EIO", "/data/n2/d2/t-0"),
        "/data/n2/d3": ("hung", "the health check", "", "/data/n2/d3"),
        "/data/n2/d4": (None, None, None, None),
    }
    assert {
        row["directory"]: (row["signs"], row["early"])
        for row in found.selectExpr("*", "unix_seconds(noticed) - unix_seconds(first_sign) AS early").collect()
    } == {
        "/data/n2/d2": (["smart: 8 sectors", "slow: 9 times"], 60),
        "/data/n2/d3": (["slow: 9 times"], 5),
        "/data/n2/d4": ([], None),
    }
    one, two, _ = collect_failures(found)
    assert (one.node, one.directory, one.outcome, one.seconds) == (2, "/data/n2/d2", "recorded", 1.25)
    assert one.noticed == "2026-11-20T10:00:03.500000Z" and "Input/output error" in one.reason
    assert one.replicas == ["orders-0", "orders-7"] and one.moves == ["audit-1"]
    assert (two.directory, two.outcome, two.recorded, two.seconds) == ("/data/n2/d3", "open", None, None)
    assert two.replicas == ["orders-0", "orders-7", "audit-1"] and two.moves == ["audit-1"]


def runs(spark: Any, folder: Any) -> Any:
    """The runs of an export folder."""
    events, _ = bronze(spark, folder)
    return runs_of(latest_histories(events, at(100)))


def recorded_facts() -> dict[str, Any]:
    """What a result repeats of the notice."""
    return {
        "node": 2,
        "incarnation": "i",
        "directory": "/data/n2/d2",
        "directory_id": "an-id",
        "reason": "the health check failed on log directory /data/n2/d2: Input/output error",
        "noticed": NOTICED,
        "version": 12,
        "broker_epoch": 3,
    }


@pytest.mark.spark
def test_failure_run_written_by_a_server_is_read(spark: Any, tmp_path: Any) -> None:
    history = read_history(HISTORIES / "directory-failure.json.gz")
    run = RunBuilder(history.workflow_id, "a-run")
    run.events[:] = history.events
    run.status = COMPLETED
    export(tmp_path, run, at=100)
    late = history.events[-1].event_time.ToDatetime(tzinfo=UTC)
    events, _ = bronze(spark, tmp_path)
    (one,) = collect_failures(directories(runs_of(latest_histories(events, late))))
    assert (one.node, one.directory, one.directory_id, one.outcome) == (1, "/b", "dir-1-b", "recorded")
    assert one.replicas == ["t-0", "t-1"] and one.moves == ["t-2"]
    assert "Input/output error" in one.reason and one.recorded is not None


@pytest.mark.spark
def test_report_without_failures_has_an_empty_table(spark: Any, tmp_path: Any) -> None:
    export(tmp_path, moved("a"), at=100)
    assert collect_failures(directories(runs(spark, tmp_path))) == ()


def test_page_and_terminal_show_failed_directories() -> None:
    found = Failure(
        "w", 2, "/data/n2/<d2>", "an-id", "it hangs", "2026-11-20T10:00:03.500000Z", None, None, "open",
        [f"orders-{number}" for number in range(12)], ["audit-1"],
    )  # fmt: skip
    assert "Directory failures" not in render(report())
    html = render(replace(report(), failures=(found,)))
    assert "Directory failures" in html and "12: orders-0" in html and "1: audit-1" in html
    assert "/data/n2/&lt;d2&gt;" in html and "it hangs" in html
    out = io.StringIO()
    print_report(replace(report(), failures=(found,)), Console(file=out, width=200))
    assert "node 2: /data/n2/<d2> failed, 12 replicas offline, 1 moves ended: it hangs" in out.getvalue()


def controller(*sent: tuple[float, dict[str, Any]]) -> RunBuilder:
    """A run of the controller, with the commands that it was sent."""
    run = RunBuilder("rehome", "run-cluster", workflow_type="Cluster", parameter={}, start=1.0)
    for at_, command in sent:
        run.update("submit", at_, {"node": command["node"], "incarnation": "i", "commands": [command]})
    return run


def reports(node: int, *rows: tuple[str, int, str]) -> dict[str, Any]:
    """A report about replicas: topic, partition and the reason, "" for one that is online again."""
    listed = [
        [topic, part, "id", "dir", 0, why, f"/d/{topic}-{part}/0.log" if why else ""] for topic, part, why in rows
    ]
    return {"do": "report_replicas", "node": node, "epoch": 3, "replicas": listed}


@pytest.mark.spark
def test_replicas_offline_alone_are_rows_with_their_return(spark: Any, tmp_path: Any) -> None:
    register = {"do": "register", "node": 2, "host": "h", "directories": []}
    named = {**register, "offline": reports(2, ("audit", 0, "still bad"))["replicas"]}
    run = controller(
        (2.0, {"do": "tell_version", "node": 1}),
        (3.0, reports(1, ("orders", 0, "Operation not permitted"), ("orders", 1, "Is a directory"))),
        (4.0, reports(1, ("orders", 1, ""))),
        (5.0, reports(2, ("audit", 0, "bad"), ("audit", 1, "bad"))),
        (6.0, named),
        (7.0, reports(3, ("late", 0, "first"))),
        (8.0, reports(3, ("late", 0, ""))),
        (9.0, reports(3, ("late", 0, "again"))),
    )
    export(tmp_path, run, moved("a"), at=100)
    events, _ = bronze(spark, tmp_path)
    found = collect_replica_failures(replica_failures(replica_reports(latest_histories(events, at(100)))))
    assert [
        (one.node, one.replica, one.reason, one.reported[17:19], one.back and one.back[17:19]) for one in found
    ] == [
        (1, "orders-0", "Operation not permitted", "03", None),
        (1, "orders-1", "Is a directory", "03", "04"),
        (2, "audit-1", "bad", "05", "06"),
        (2, "audit-0", "still bad", "06", None),
        (3, "late-0", "again", "09", None),
    ]
    assert found[0].file == "/d/orders-0/0.log"


def test_page_and_terminal_show_the_failed_file() -> None:
    bad = ReplicaFailure(
        2, "orders", 3, "/d/<1>/orders-3/7.log", "Operation not permitted", "2026-11-20T10:00:03.500000Z", None
    )
    back = replace(bad, partition=4, back="2026-11-20T10:09:03.500000Z")
    assert "Replicas offline alone" not in render(report())
    html = render(replace(report(), replica_failures=(bad, back)))
    assert "/d/&lt;1&gt;/orders-3/7.log" in html and "Operation not permitted" in html and "10:09:03" in html
    out = io.StringIO()
    print_report(replace(report(), replica_failures=(bad, back)), Console(file=out, width=200))
    assert "node 2: orders-3 offline, /d/<1>/orders-3/7.log: Operation not permitted" in out.getvalue()
    assert "orders-4 offline until 10:09:03" in out.getvalue()
