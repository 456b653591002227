"""What holds a run, as `progress` tells it: the node's word while it is heard of, and what the run itself knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from storage_node.model.moves import Outcome, Phase
from workflows.model.calls import MoveRow, ReplicaMove
from workflows.model.move import moves
from workflows.model.move.moves import MovingReplica
from workflows.model.reports import MoveReport

LIVE: dict[str, Any] = {
    "bytes_total": 1000,
    "bytes_copied": 400,
    "rate": 20.0,
    "append_rate": 10.0,
    "state": "throttled",
    "stall": "run_limit",
    "stall_message": "held back 90% of the last 5 s",
}


def copying(live: dict[str, Any] | None = None) -> MovingReplica:
    requested = MovingReplica.requested(ReplicaMove("t", 0, "/d/b"))
    return replace(requested, phase=Phase.COPYING).reported(MoveReport("t", 0, **(live or LIVE)), 100.0)


def test_progress_has_the_nodes_stall_and_an_eta_with_growth() -> None:
    row = moves.progress(copying(), 101.0)
    assert (row.stall, row.stall_message) == ("run_limit", LIVE["stall_message"])
    assert (row.append_rate, row.eta_seconds) == (10.0, 60.0)


@pytest.mark.parametrize("more", [{"append_rate": 20.0}, {"append_rate": 30.0}, {"stall": "growing_source"}])
def test_eta_is_none_if_the_source_grows_faster(more: dict[str, Any]) -> None:
    assert moves.progress(copying(LIVE | more), 101.0).eta_seconds is None


def test_stall_of_an_unavailable_node_has_the_age_of_its_report() -> None:
    row = moves.progress(copying(), 142.0, "node 1")
    assert row.stall == "unavailable" and row.eta_seconds is None
    assert row.stall_message == (
        "node 1 is unavailable, and the controller has not reported why yet; its last report is 42 s old"
    )
    never = moves.progress(replace(copying(), last_report=0.0, live=None), 142.0, "node 1")
    assert never.stall_message.endswith("; it has not reported yet")


def test_stall_of_a_paused_run_is_stopped_only_before_the_swap() -> None:
    assert moves.progress(copying(), 101.0, paused=True).stall_message == "the run is paused"
    assert moves.progress(replace(copying(), phase=Phase.DELETE_DELAY), 101.0, paused=True).stall == ""
    assert moves.progress(replace(copying(), phase=Phase.DONE), 101.0, "node 1", paused=True).stall == ""


def test_run_is_stalled_if_no_replica_advances() -> None:
    held, free = moves.progress(copying(), 101.0), moves.progress(copying(LIVE | {"stall": ""}), 101.0)
    growing = moves.progress(copying(LIVE | {"stall": "growing_source"}), 101.0)
    assert moves.run_stall([held, held]) == held
    assert moves.run_stall([held, free]) is None
    assert moves.run_stall([held, free, growing]) == growing
    assert moves.run_stall([]) is None


def test_seconds_by_reason_add_up_over_steps() -> None:
    first = MoveRow("t", 0, Outcome.CAUGHT_UP, seconds_by_reason={"queued": 2.0, "copying": 1.0}, bytes_written=10)
    then = MoveRow("t", 0, Outcome.SWAPPED, seconds_by_reason={"copying": 3.0, "run_limit": 4.0})
    merged = moves.merge_rows(first, then)
    assert merged.seconds_by_reason == {"queued": 2.0, "copying": 3.0, "run_limit": 4.0}
    assert merged.bytes_written == 10
