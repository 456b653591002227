"""What a crash must not undo: the limit of a run, and a cancel that somebody else than the run asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node.errors import StaleClaim
from storage_node.failpoints import active
from storage_node.move import marker as markers
from storage_node.move.status import BEHIND, MoveState
from tests.storage_node.move.harness import TP, SmallNode, eventually

LIMIT = 300_000  # bytes per second


def copying(root: Path, throttle: int | None = LIMIT) -> tuple[SmallNode, int]:
    """A node with a copy under way that a run owns; answers the claim too."""
    node = SmallNode(root)
    node.add()
    node.fill(600)
    status = node.engine.create(TP, node.path("b"), owner="run", run_id="r", throttle=throttle)
    node.engine.start_copy(TP, status.claim, throttle)
    return node, status.claim


def limit_on_disk(root: Path) -> int:
    found = markers.read(root / "b" / "t-0.move")
    assert found is not None
    return found.throttle


def test_a_copy_that_goes_on_by_itself_keeps_its_limit(tmp_path: Path) -> None:
    node, _ = copying(tmp_path)
    node.close()
    again = SmallNode(tmp_path)
    (status,) = again.engine.statuses()
    assert status.throttle == LIMIT
    eventually(lambda: again.engine.statuses()[0].state is MoveState.THROTTLED)
    again.close()


def test_the_newest_limit_is_kept(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    assert limit_on_disk(tmp_path) == LIMIT
    node.engine.set_throttle(TP, claim, 2 * LIMIT)
    assert limit_on_disk(tmp_path) == 2 * LIMIT
    node.engine.start_copy(TP, claim, None)
    assert limit_on_disk(tmp_path) == 0
    node.finish(claim)
    settled = markers.read(tmp_path / "b" / "t-0")
    assert settled is not None and settled.throttle == 0
    node.close()


def test_a_full_disk_takes_a_limit_for_as_long_as_the_node_runs(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    node.engine.pause_copy(TP, claim)
    with active({"atomic.written": "raise:ENOSPC"}):
        node.engine.set_throttle(TP, claim, 5)
    assert node.dir("b").online and node.engine.statuses()[0].throttle == 5
    node.close()


@pytest.mark.feature("113-05")
def test_a_cancel_of_somebody_else_stands_against_what_the_run_asks_for_late(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    cancelled = node.engine.cancel(TP, None, "any")
    assert cancelled is not None and (cancelled.state, cancelled.claim) == (MoveState.CANCELLED, claim)
    refused(node, claim)
    node.close()
    again = SmallNode(tmp_path)  # nothing is remembered but what the disk says
    refused(again, claim)
    again.close()


def refused(node: SmallNode, claim: int) -> None:
    with pytest.raises(StaleClaim):
        node.engine.create(TP, node.path("b"), claim=claim, owner="run", run_id="r")
    assert not (Path(node.path("b")) / "t-0.move").exists()


def test_a_crash_between_the_new_claim_and_the_cancel_ends_in_the_cancel(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    node.engine.pause_copy(TP, claim)
    node.engine._registry.issue(node.partitions[TP])  # as the cancel does first
    node.close()
    again = SmallNode(tmp_path)
    assert again.engine.statuses() == [] and not (tmp_path / "b" / "t-0.move").exists()
    again.close()


def test_a_run_may_cancel_its_move_and_ask_for_it_again(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    node.engine.cancel(TP, claim, "its own word")
    status = node.engine.create(TP, node.path("b"), claim=claim, owner="run", run_id="r")
    assert status.claim == claim
    node.close()


def late(node: SmallNode, run_id: str) -> None:
    """An attempt at a run's first request, which knows no claim, comes after the run has ended."""
    before = [(status.claim, status.run_id) for status in node.engine.statuses()]
    with pytest.raises(StaleClaim, match=f"by run {run_id} is over"):
        node.engine.create(TP, node.path("b"), owner="run", run_id=run_id)
    assert [(status.claim, status.run_id) for status in node.engine.statuses()] == before


def test_a_late_first_request_of_a_run_that_swapped_before_the_last_makes_nothing(tmp_path: Path) -> None:
    node = SmallNode(tmp_path)
    node.add()
    node.move("b", owner="run", run_id="first")
    node.move("a", owner="run", run_id="second")
    late(node, "first")
    late(node, "second")
    node.move("b", owner="run", run_id="third")
    node.close()


def test_a_late_first_request_of_a_run_that_was_cancelled_makes_nothing(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    node.engine.cancel(TP, claim, "the run was cancelled", "r")
    late(node, "r")
    node.engine.cancel(TP, None, "the run was cancelled before anything was made", "s")
    late(node, "s")
    assert node.engine.create(TP, node.path("b"), owner="run", run_id="u").run_id == "u"
    late(node, "s")
    node.close()


def test_a_swap_that_does_not_catch_up_in_time_is_behind(tmp_path: Path) -> None:
    node, claim = copying(tmp_path, throttle=None)
    eventually(lambda: node.engine.statuses()[0].state is MoveState.CAUGHT_UP)
    node.engine.swapper._seconds = 0.0
    assert node.engine.swap(TP, claim).outcome == BEHIND
    node.engine.swapper._seconds = 2.0
    node.finish(claim)
    node.close()
