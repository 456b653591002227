"""What was acknowledged just before or after a swap holds when the node is killed right then."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.partitions.partition import Partition
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

TP = TopicPartition("t", 0)


def served(harness: Harness) -> Partition:
    partition = harness.node.partition(TP)
    assert partition is not None
    return partition


def caught_up(harness: Harness) -> tuple[str, int]:
    """Begin a move; answers target and claim once the copy has all there is."""
    harness.controller.hold_moves = True
    engine = harness.node.engine
    target = harness.other_directory("t")
    claim = engine.create(TP, target, owner="run").claim
    engine.start_copy(TP, claim)
    until(lambda: engine.statuses()[0].state == "caught_up")
    return target, claim


def idempotent(sequence: int, count: int = 1) -> bytes:
    return build_batch(
        [b"%d" % (sequence + number) for number in range(count)],
        producer_id=77,
        producer_epoch=0,
        base_sequence=sequence,
    )


@pytest.mark.feature("113-19")
@pytest.mark.parametrize("roll", [False, True], ids=["one segment", "segments deleted"])
def test_records_deleted_in_the_middle_of_a_swap_stay_deleted(tmp_path: Path, roll: bool) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("t", configs={"segment.bytes": "2000"} if roll else {})
        harness.produce("t", [b"%d" % number for number in range(100)], batch_num_messages=10)
        harness.settle()
        target, claim = caught_up(harness)

        def delete() -> None:
            served(harness).delete_records(55)
            if roll:
                served(harness).delete_old_segments(0)

        with failpoints.active({"swap.before_lock": delete}):
            assert harness.node.engine.swap(TP, claim).outcome == "swapped"
        harness.restart(clean=False)
        assert harness.directory_of("t") == target
        assert served(harness).log.log_start_offset == 55
        assert [int(m.value()) for m in harness.consume("t", 45, offset=55)] == list(range(55, 100))


@pytest.mark.parametrize("how", ["swap", "swap and crash", "clean restart", "crash", "swap and clean restart"])
def test_producer_that_resends_its_in_flight_batches_gets_the_same_offsets(tmp_path: Path, how: str) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("t")
        harness.settle()
        client = Client(harness)
        first = [client.produce("t", 0, idempotent(number * 3, 3)).base_offset for number in range(7)]
        assert first == [number * 3 for number in range(7)]
        if "swap" in how:
            _, claim = caught_up(harness)
            assert harness.node.engine.swap(TP, claim).outcome == "swapped"
        if how != "swap":
            client.close()
            harness.restart(clean="clean" in how)
            client = Client(harness)
        again = [client.produce("t", 0, idempotent(number * 3, 3)) for number in range(2, 7)]
        assert [(row.error, row.base_offset) for row in again] == [(0, number * 3) for number in range(2, 7)]
        row = client.produce("t", 0, idempotent(21))
        assert (row.error, row.base_offset) == (0, 21)
        assert client.produce("t", 0, idempotent(30)).error == 45, "a gap is still refused"
        client.close()


def test_producers_whose_records_are_gone_move_along(tmp_path: Path) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("t", configs={"segment.bytes": "200"})
        harness.settle()
        client = Client(harness)
        for number in range(5):
            assert client.produce("t", 0, idempotent(number)).error == 0
        client.produce("t", 0, build_batch([b"x" * 150]))
        served(harness).delete_records(5)
        assert served(harness).delete_old_segments(0)
        _, claim = caught_up(harness)
        assert harness.node.engine.swap(TP, claim).outcome == "swapped"
        harness.restart(clean=False)
        client.close()
        client = Client(harness)
        row = client.produce("t", 0, idempotent(4))
        assert (row.error, row.base_offset) == (0, 4), "the last one is answered as before"
        assert client.produce("t", 0, idempotent(5)).base_offset == 6
        client.close()
