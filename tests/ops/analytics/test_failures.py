"""Directory failures in the tables, on the page and on a terminal: recorded ones, and one that nobody recorded yet."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
from rich.console import Console

from ops.analytics.failures import directory_failures
from ops.analytics.page import render
from ops.analytics.report import Failure, collect_failures
from ops.analytics.silver import latest_histories, workflow_runs
from ops.analytics.table import print_report
from tests.ops.analytics.bronze import bronze
from tests.ops.analytics.conftest import at
from tests.ops.analytics.sample import report
from tests.support.histories import COMPLETED, T0, RunBuilder, export, moved
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
def test_a_recorded_failure_and_one_that_waits(spark: Any, tmp_path: Any) -> None:
    recorded = failure("recorded")
    result = {
        **recorded_facts(),
        "recorded": NOTICED + 1.25,
        "outcome": "recorded",
        "replicas": [{"topic": "orders", "partitions": [0, 7]}],
        "moves": [MOVE],
    }
    recorded.complete(5.0, result)
    export(tmp_path, recorded, failure("waits", directory="/data/n2/d3"), moved("a"), at=100)
    one, two = collect_failures(directory_failures(runs(spark, tmp_path), at(100)))
    assert (one.node, one.directory, one.outcome, one.seconds) == (2, "/data/n2/d2", "recorded", 1.25)
    assert one.noticed == "2026-11-20T10:00:03.500000Z" and "Input/output error" in one.reason
    assert one.replicas == ["orders-0", "orders-7"] and one.moves == ["audit-1"]
    assert (two.directory, two.outcome, two.recorded, two.seconds) == ("/data/n2/d3", "open", None, None)
    assert two.replicas == ["orders-0", "orders-7", "audit-1"] and two.moves == ["audit-1"]


def runs(spark: Any, folder: Any) -> Any:
    """The runs of an export folder."""
    events, _ = bronze(spark, folder)
    return workflow_runs(latest_histories(events, at(100)))


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
def test_a_run_as_the_server_wrote_it(spark: Any, tmp_path: Any) -> None:
    history = read_history(HISTORIES / "directory-failure.json.gz")
    run = RunBuilder(history.workflow_id, "a-run")
    run.events[:] = history.events
    run.status = COMPLETED
    export(tmp_path, run, at=100)
    late = history.events[-1].event_time.ToDatetime(tzinfo=UTC)
    events, _ = bronze(spark, tmp_path)
    (one,) = collect_failures(directory_failures(workflow_runs(latest_histories(events, late)), late))
    assert (one.node, one.directory, one.directory_id, one.outcome) == (1, "/b", "dir-1-b", "recorded")
    assert one.replicas == ["t-0", "t-1"] and one.moves == ["t-2"]
    assert "Input/output error" in one.reason and one.recorded is not None


@pytest.mark.spark
def test_no_failure_makes_an_empty_table(spark: Any, tmp_path: Any) -> None:
    export(tmp_path, moved("a"), at=100)
    assert collect_failures(directory_failures(runs(spark, tmp_path), at(100))) == ()


def test_the_page_and_the_terminal_say_what_failed() -> None:
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
