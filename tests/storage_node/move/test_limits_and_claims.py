"""What a crash must not undo: the limit of a run, and a cancel that somebody else than the run asked for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage_node.errors import StaleClaim
from storage_node.failpoints import active
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState, Outcome
from storage_node.replicas import marker as markers
from tests.storage_node.move.harness import TP, SmallNode, batch, eventually

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


def test_copy_that_resumes_by_itself_keeps_its_limit(tmp_path: Path) -> None:
    node, _ = copying(tmp_path)
    node.close()
    again = SmallNode(tmp_path)
    (status,) = again.engine.statuses()
    assert status.throttle == LIMIT
    eventually(lambda: again.engine.statuses()[0].state is MoveState.THROTTLED)
    again.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_all_replicas_of_a_run_share_its_limit(tmp_path: Path, restarted: bool) -> None:
    """Two movers copy two replicas of a lane: together at the run's rate, not each of them at it."""
    tps, size = (TP, TopicPartition("u", 0)), 0
    node = SmallNode(tmp_path)
    for tp in tps:
        node.add(tp).append(batch(b"x" * LIMIT))
        size += node.partitions[tp].log.size
    claims = {tp: node.engine.create(tp, node.path("b"), owner="run", run_id="r", throttle=LIMIT).claim for tp in tps}
    began = time.monotonic()
    if restarted:
        node.close()
        node = SmallNode(tmp_path)
    for tp, claim in claims.items():
        node.engine.start_copy(tp, claim, LIMIT)
    for tp, claim in claims.items():
        assert node.engine.wait(tp, claim, 30).state is MoveState.CAUGHT_UP
    # (A start copies the first bytes before anything is measured.)
    assert time.monotonic() - began > 0.9 * size / LIMIT
    node.engine.start_copy(TP, claims[TP], None)
    assert {each.throttle for each in node.engine.statuses()} == {None}
    node.close()


def test_replicas_of_other_runs_have_limits_of_their_own(tmp_path: Path) -> None:
    other = TopicPartition("u", 0)
    node, claim = copying(tmp_path)
    node.add(other)
    node.engine.create(other, node.path("b"), owner="another", run_id="r", throttle=7)
    node.engine.set_throttle(TP, claim, 5)
    assert {each.tp: each.throttle for each in node.engine.statuses()} == {TP: 5, other: 7}
    node.close()


def test_newest_limit_is_kept(tmp_path: Path) -> None:
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


def test_full_disk_takes_a_limit_for_as_long_as_the_node_runs(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    node.engine.pause_copy(TP, claim)
    with active({"atomic.written": "raise:ENOSPC"}):
        node.engine.set_throttle(TP, claim, 5)
    assert node.dir("b").online and node.engine.statuses()[0].throttle == 5
    node.close()


@pytest.mark.feature("113-05")
def test_cancel_by_another_client_prevails_over_late_requests_of_the_run(tmp_path: Path) -> None:
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


def test_crash_between_the_new_claim_and_the_cancel_ends_in_the_cancel(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    node.engine.pause_copy(TP, claim)
    node.engine._registry.issue(node.partitions[TP])  # as the cancel does first
    node.close()
    again = SmallNode(tmp_path)
    assert again.engine.statuses() == [] and not (tmp_path / "b" / "t-0.move").exists()
    again.close()


def test_run_may_cancel_its_move_and_request_it_again(tmp_path: Path) -> None:
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


def test_late_first_request_of_a_run_that_swapped_before_the_last_makes_nothing(tmp_path: Path) -> None:
    node = SmallNode(tmp_path)
    node.add()
    node.move("b", owner="run", run_id="first")
    node.move("a", owner="run", run_id="second")
    late(node, "first")
    late(node, "second")
    node.move("b", owner="run", run_id="third")
    node.close()


def test_late_first_request_of_a_run_that_was_cancelled_makes_nothing(tmp_path: Path) -> None:
    node, claim = copying(tmp_path)
    node.engine.cancel(TP, claim, "the run was cancelled", "r")
    late(node, "r")
    node.engine.cancel(TP, None, "the run was cancelled before anything was made", "s")
    late(node, "s")
    assert node.engine.create(TP, node.path("b"), owner="run", run_id="u").run_id == "u"
    late(node, "s")
    node.close()


def test_swap_that_does_not_catch_up_in_time_is_behind(tmp_path: Path) -> None:
    node, claim = copying(tmp_path, throttle=None)
    eventually(lambda: node.engine.statuses()[0].state is MoveState.CAUGHT_UP)
    node.engine.swapper._seconds = 0.0
    assert node.engine.swap(TP, claim).outcome == Outcome.BEHIND
    node.engine.swapper._seconds = 2.0
    node.finish(claim)
    node.close()


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("crashes", [False, True], ids=["claimed", "killed between the two markers"])
def test_orphan_whose_run_is_about_to_begin_outlives_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    """No run has its new claim yet: Temporal is unavailable, for example."""
    node = SmallNode(tmp_path)
    node.add()
    node.fill(600)
    status = node.engine.create(TP, node.path("b"), throttle=LIMIT)
    node.engine.start_copy(TP, status.claim, LIMIT)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 0)
    if crashes:
        monkeypatch.setattr("storage_node.move.engine.write_source", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            node.engine.claim_orphan(TP, status.claim)
    else:
        assert node.engine.claim_orphan(TP, status.claim) == status.claim + 1
        assert node.engine.claim_orphan(TP, status.claim) == 0, "it is another's by now"
        copied = node.engine.statuses()[0].bytes_copied
        eventually(lambda: node.engine.statuses()[0].bytes_copied > copied)
    monkeypatch.undo()
    for _ in range(2):
        node.close()
        node = SmallNode(tmp_path)
    (found,) = node.engine.statuses()
    assert (found.claim, found.directory) == (status.claim + 1, str(node.path("b"))) and found.state.open
    claim = node.engine.claim_orphan(TP, found.claim)
    node.engine.create(TP, node.path("b"), claim=claim, owner="run", run_id="r")
    node.engine.start_copy(TP, claim, None)
    assert node.engine.wait(TP, claim, 30).state is MoveState.CAUGHT_UP
    assert node.engine.swap(TP, claim).outcome == Outcome.SWAPPED
    node.close()


def test_claims_of_a_topic_that_is_created_again_are_newer(tmp_path: Path) -> None:
    """A run of the former topic, paused meanwhile, must not drive a move of this one."""
    node, claim = copying(tmp_path)
    former = node.partitions.pop(TP)
    node.engine.discard(TP, partition=former)
    node.add()
    node.fill(20)
    later = node.engine.create(TP, node.path("b"), owner="another run", run_id="s").claim
    assert later > claim
    for late in (
        lambda: node.engine.start_copy(TP, claim),
        lambda: node.engine.swap(TP, claim),
        lambda: node.engine.cancel(TP, claim),
        lambda: node.engine.create(TP, node.path("b"), claim=claim, owner="run", run_id="r"),
    ):
        with pytest.raises(StaleClaim):
            late()
    node.close()


def test_nothing_is_kept_of_replicas_that_left(tmp_path: Path) -> None:
    node = SmallNode(tmp_path)
    registry = node.engine._registry
    for number in range(20):
        tp = TopicPartition("t", number)
        node.add(tp)
        node.engine.discard(tp, partition=node.partitions.pop(tp))
    assert (len(registry._guards), len(registry._claims), len(registry._past_claims)) == (0, 0, 0)
    node.close()
