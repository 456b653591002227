"""What holds a move: which reason is told for which facts, in words that a person can use, and where the time went."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.move.stall import (
    Ahead,
    CopyFacts,
    DiskFacts,
    MoveFacts,
    Stall,
    StallReason,
    eta,
    judge,
    rate,
    share_out,
)
from storage_node.move.status import MoveStatus
from tests.storage_node.move.harness import TP, SmallNode, eventually


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def disk(now: float, usual: float, waited: float = 4.5, *, reading: bool = False, hanging: float = 0.0) -> DiskFacts:
    return DiskFacts("/d/disk-b", reading, now, usual, usual * 1.5, waited, hanging)


def facts(state: MoveState = MoveState.COPYING, **copy: object) -> MoveFacts:
    return MoveFacts(state, copy=CopyFacts(**({"seconds": 5.0} | copy)))  # type: ignore[arg-type]


RUNNING = (tp(0), "disk-a", "disk-b")
TABLE = [
    ("gets on", facts(), StallReason.COPYING, ""),
    (
        "one thread",
        MoveFacts(MoveState.QUEUED, ahead=Ahead((RUNNING,))),
        StallReason.QUEUED,
        "queued behind t-0 (disk-a -> disk-b), which has the only copying thread",
    ),
    (
        "others come first",
        MoveFacts(MoveState.QUEUED, ahead=Ahead((RUNNING,), (tp(1), tp(2)))),
        StallReason.QUEUED,
        "queued behind t-0 (disk-a -> disk-b), which has the only copying thread; before it come t-1, t-2",
    ),
    (
        "two threads, many before",
        MoveFacts(MoveState.QUEUED, ahead=Ahead((RUNNING, (tp(1), "a", "c")), tuple(map(tp, range(2, 9))), 2)),
        StallReason.QUEUED,
        "queued behind t-0 (disk-a -> disk-b), t-1 (a -> c), which have all 2 copying threads; "
        "before it come t-2, t-3, t-4 and 4 more",
    ),
    ("a thread is free", MoveFacts(MoveState.QUEUED), StallReason.QUEUED, "queued: the next free mover copies it"),
    (
        "its own limit",
        facts(MoveState.THROTTLED, held_by_run=4.7, run_limit=300_000),
        StallReason.RUN_LIMIT,
        "held back 94% of the last 5 s by the move's own limit of 300 kB/s",
    ),
    (
        "the node's limit",
        facts(MoveState.THROTTLED, held_by_run=0.1, held_by_node=4.0, node_limit=20_000_000, sharing=3),
        StallReason.NODE_LIMIT,
        "held back 82% of the last 5 s by the node's limit of 20 MB/s, which 3 moves share",
    ),
    ("hardly held", facts(held_by_run=0.4, run_limit=10), StallReason.COPYING, ""),
    (
        "a slow disk",
        facts(disks=(disk(2e6, 200e6),)),
        StallReason.SLOW_DISK,
        "/d/disk-b writes at 2 MB/s; since the start it did 200 MB/s (median), 300 MB/s at best",
    ),
    (
        "a disk that hangs",
        facts(disks=(disk(0.0, 200e6, hanging=3.2),)),
        StallReason.SLOW_DISK,
        "/d/disk-b has not responded for 3.2 s; since the start it did 200 MB/s (median), 300 MB/s at best",
    ),
    ("as slow as ever", facts(disks=(disk(2e6, 4e6),)), StallReason.COPYING, ""),
    ("nothing to compare with", facts(disks=(disk(2e6, 0.0),)), StallReason.COPYING, ""),
    ("slow, but not what is waited for", facts(disks=(disk(2e6, 200e6, 0.9),)), StallReason.COPYING, ""),
    ("read from memory before", facts(disks=(disk(100e6, 5e9, reading=True),)), StallReason.COPYING, ""),
    (
        "a source that runs away",
        facts(watched=6, append_rate=2e6, copy_rate=1e6, left=50_000_000, held_by_run=4.5, run_limit=1_000_000),
        StallReason.GROWING_SOURCE,
        "the source grows by 2 MB/s and is copied at 1 MB/s (held back 90% of the last 5 s by the move's own limit of "
        "1 MB/s): there is no end in sight",
    ),
    (
        "appended to, and caught up soon",
        facts(watched=6, append_rate=2e6, copy_rate=3e6, left=50_000_000),
        StallReason.COPYING,
        "",
    ),
    ("follows closely", facts(watched=6, append_rate=2e6, copy_rate=2e6, left=1_000_000), StallReason.COPYING, ""),
    ("watched for a moment only", facts(watched=1, append_rate=2e6, left=50_000_000), StallReason.COPYING, ""),
    (
        "a disk that hangs lets every source run away",
        facts(watched=6, append_rate=2e6, copy_rate=0, left=50_000_000, disks=(disk(0.0, 1e8, hanging=5.0),)),
        StallReason.SLOW_DISK,
        None,
    ),
    (
        "stopped",
        MoveFacts(MoveState.STOPPED, "stopped by the operator"),
        StallReason.STOPPED,
        "stopped by the operator",
    ),
    (
        "offline",
        MoveFacts(MoveState.FAILED, "x", offline="/d/disk-b is offline (EIO)"),
        StallReason.OFFLINE,
        "/d/disk-b is offline (EIO)",
    ),
    ("in place", MoveFacts(MoveState.SWAPPED), StallReason.COPYING, ""),
]


@pytest.mark.parametrize(
    ("given_facts", "reason", "message"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_reason(given_facts: MoveFacts, reason: StallReason, message: str | None) -> None:
    found = judge(given_facts)
    assert found.reason is reason
    assert message is None or found == Stall(reason, message)


def test_no_time_to_go_where_there_is_no_end() -> None:
    assert eta(100, 20, 0) == 5
    assert eta(100, 20, 10) == 10
    assert eta(100, 20, 20) is None and eta(100, 20, 30) is None and eta(100, 0, 0) is None
    assert eta(100, 20, 10, "growing_source") is None
    assert eta(0, 0, 30) == 0


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B/s"), (999, "999 B/s"), (20e6, "20 MB/s"), (1.5e6, "1.5 MB/s"), (999.7, "1 kB/s")]
)
def test_rates_for_people(value: float, text: str) -> None:
    assert rate(value) == text


seconds = st.floats(0, 1e4)
STATES = list(MoveState)


@given(seconds, st.sampled_from(STATES), st.sampled_from(StallReason), st.floats(-1, 1e4), st.floats(-1, 1e4))
def test_time_goes_to_reasons_and_none_is_lost_or_made(
    passed: float, state: MoveState, reason: StallReason, run: float, node: float
) -> None:
    spent = share_out(passed, state, reason, run, node)
    assert all(value >= 0 for value in spent.values())
    under_way = state is MoveState.QUEUED or state.copies or state.halted
    assert sum(spent.values()) == pytest.approx(passed if under_way else 0.0)


amounts = st.floats(0, 1e10)


@given(
    st.sampled_from(STATES),
    st.builds(
        CopyFacts,
        seconds=st.floats(0, 10),
        held_by_run=st.floats(0, 10),
        held_by_node=st.floats(0, 10),
        run_limit=st.none() | st.integers(1, 10**9),
        disks=st.tuples(
            st.builds(DiskFacts, st.just("d"), st.booleans(), amounts, amounts, amounts, st.floats(0, 10), seconds)
        ),
        watched=st.floats(0, 10),
        append_rate=amounts,
        copy_rate=amounts,
        left=st.integers(0, 10**12),
    ),
)
def test_stall_reason_has_a_sentence_and_a_move_in_progress_has_none(state: MoveState, copy: CopyFacts) -> None:
    found = judge(MoveFacts(state, copy=copy))
    assert found.reason.stalled == bool(found.message)
    if found.reason is StallReason.GROWING_SOURCE:
        assert eta(copy.left, copy.copy_rate, copy.append_rate) is None


def test_status_can_be_queried_at_any_moment_of_the_copy(tmp_path: Path) -> None:
    """Another thread may run whenever memory is asked for; here it does each time."""
    node = SmallNode(tmp_path)
    node.add()
    node.engine.create(TP, node.path("b"))
    (move,) = node.engine._registry.all()
    done = threading.Event()

    def copy() -> None:
        while not done.is_set():
            move.sample()

    def others_run(phase: str, _: object) -> None:
        time.sleep(0.0001)

    copier = threading.Thread(target=copy)
    copier.start()
    eventually(lambda: len(move._samples) == 256)
    thresholds = gc.get_threshold()
    gc.callbacks.append(others_run)
    gc.set_threshold(1)
    try:
        for _ in range(50):
            move._rate()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(others_run)
        done.set()
        copier.join()
    node.close()


def test_copy_reports_its_time_by_reason_while_it_runs(tmp_path: Path) -> None:
    node = SmallNode(tmp_path, rate=400_000)
    node.add()
    node.fill(800)
    claim = node.engine.create(TP, node.path("b")).claim
    node.engine.start_copy(TP, claim)
    seen: list[MoveStatus] = []

    def held() -> bool:
        """It says so when it has copied a good part; a disk may be what it waits for in between."""
        seen[:] = node.engine.statuses()
        (status,) = seen
        return status.bytes_copied > 300_000 and status.stall == "node_limit"

    eventually(held)
    (status,) = seen
    assert "by the node's limit of 400 kB/s" in status.stall_message
    # A node that is killed now must not lose what it has done: times count while the copier is at it.
    spent = status.seconds_queued + status.seconds_copying + status.seconds_throttled + status.seconds_stalled
    assert spent == pytest.approx(sum(status.seconds_by_reason.values()), abs=0.3) and spent > 0.5
    assert status.seconds_by_reason["node_limit"] > 0.4 and status.seconds_copying > 0
    node.close()

    again = SmallNode(tmp_path)
    again.finish(claim)
    ended = again.engine.status(TP)
    assert ended is not None and ended.bytes_resumed > 0
    assert ended.bytes_written == ended.bytes_copied - ended.bytes_resumed, "what was there before was not written"
    assert ended.stall == ended.stall_message == ""
    again.close()
