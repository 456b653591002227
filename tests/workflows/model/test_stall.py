"""What holds a run, as `progress` tells it: the node's word while it is heard of, and what the run itself knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from workflows.model import calls, moves
from workflows.model.calls import MoveRow, ReplicaMove
from workflows.model.moves import Replica

LIVE: dict[str, Any] = {
    "bytes_total": 1000,
    "bytes_copied": 400,
    "rate": 20.0,
    "append_rate": 10.0,
    "state": "throttled",
    "stall": "run_limit",
    "stall_message": "held back 90% of the last 5 s",
}


def copying(live: dict[str, Any] | None = None) -> Replica:
    asked = Replica.asked(ReplicaMove("t", 0, "/d/b"))
    return replace(asked, phase=moves.COPYING).reported(live or LIVE, 100.0)


def test_the_nodes_word_and_a_time_to_go_that_knows_of_growth() -> None:
    row = moves.progress(copying(), 101.0)
    assert (row["stall"], row["stall_message"]) == ("run_limit", LIVE["stall_message"])
    assert (row["append_rate"], row["eta_seconds"]) == (10.0, 60.0)


@pytest.mark.parametrize("more", [{"append_rate": 20.0}, {"append_rate": 30.0}, {"stall": "growing_source"}])
def test_no_time_to_go_when_the_source_grows_faster(more: dict[str, Any]) -> None:
    assert moves.progress(copying(LIVE | more), 101.0)["eta_seconds"] is None


def test_a_node_that_is_away_is_the_reason_and_how_long_it_is_known() -> None:
    row = moves.progress(copying(), 142.0, "node 1")
    assert row["stall"] == "away" and row["eta_seconds"] is None
    assert row["stall_message"] == (
        "node 1 is unavailable, and the controller has not reported why yet; it was last heard of 42 s ago"
    )
    never = moves.progress(replace(copying(), heard=0.0, live=None), 142.0, "node 1")
    assert never["stall_message"].endswith("; it was never heard of")


def test_a_paused_run_says_so_before_its_swap_only() -> None:
    assert moves.progress(copying(), 101.0, paused=True)["stall_message"] == "the run is paused"
    assert moves.progress(copying().to(moves.WAITING), 101.0, paused=True)["stall"] == ""
    assert moves.progress(copying().to(moves.DONE), 101.0, "node 1", paused=True)["stall"] == ""


def test_a_run_is_held_when_none_of_its_replicas_gets_on() -> None:
    held, free = moves.progress(copying(), 101.0), moves.progress(copying(LIVE | {"stall": ""}), 101.0)
    growing = moves.progress(copying(LIVE | {"stall": "growing_source"}), 101.0)
    assert moves.held_by([held, held]) == held
    assert moves.held_by([held, free]) is None
    assert moves.held_by([held, free, growing]) == growing
    assert moves.held_by([]) is None


def test_seconds_by_reason_add_up_over_steps_and_nothing_is_lost() -> None:
    first = MoveRow("t", 0, calls.CAUGHT_UP, seconds_by_reason={"queued": 2.0, "copying": 1.0}, bytes_written=10)
    then = MoveRow("t", 0, calls.SWAPPED, seconds_by_reason={"copying": 3.0, "run_limit": 4.0})
    merged = moves.merge_rows(first, then)
    assert merged.seconds_by_reason == {"queued": 2.0, "copying": 3.0, "run_limit": 4.0}
    assert merged.bytes_written == 10
