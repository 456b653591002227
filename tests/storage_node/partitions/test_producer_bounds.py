"""How much a node remembers of idempotent producers: whose logs forget, and what the others still know."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.errors import RequestRefused
from storage_node.log import rejected_first_batches
from storage_node.log.batches.batch import build_batch
from storage_node.log.producers.state import ProducerState
from storage_node.log.rejected_first_batches import ReplicaRejections
from storage_node.model.ids import TopicPartition
from storage_node.partitions import producer_bounds
from storage_node.partitions.producer_bounds import share
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client


@pytest.mark.parametrize(
    ("counts", "most", "kept"),
    [
        ([], 10, None),
        ([10], 10, None),
        ([11], 10, 10),
        ([3, 4, 3], 10, None),
        ([9, 1, 9], 11, 5),
        ([100, 100, 2, 3], 25, 10),
        ([2, 2, 2], 2, 1),
    ],
)
def test_share_is_cut_from_the_largest_counts(counts: list[int], most: int, kept: int | None) -> None:
    assert share(counts, most) == kept


@given(st.lists(st.integers(0, 50)), st.integers(1, 500))
def test_share_uses_the_bound_and_never_more(counts: list[int], most: int) -> None:
    kept = share(counts, most)
    if kept is None:
        assert sum(counts) <= most
        return
    total = sum(min(count, kept) for count in counts)
    assert total <= max(most, sum(1 for count in counts if count))
    assert sum(min(count, kept + 1) for count in counts) > most, "more could be kept"


def batch(producer: int, sequence: int) -> bytes:
    return build_batch([b"x"], producer_id=producer, producer_epoch=0, base_sequence=sequence)


def known(node: Harness) -> dict[int, ProducerState]:
    return {tp.partition: replica.log.producers for tp, replica in node.node.replicas.served.items()}


def test_producers_beyond_the_nodes_bound_are_forgotten_by_the_largest_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_bounds, "MOST_PRODUCERS", 40)
    with running(tmp_path) as node:
        node.create_topic("t", 3)
        node.settle()
        client = Client(node)
        for sequence in range(5):
            assert client.produce("t", 0, batch(1, sequence)).error == 0
        last = 0
        for producer in range(100, 200):
            for partition in (1, 2):
                last = client.produce("t", partition, batch(producer, 0)).base_offset
        until(lambda: sum(map(len, known(node).values())) <= 40, what="the node is within its bound")
        states = known(node)
        assert states[0].get(1) is not None, "a log with fewer than its share forgets none"
        assert all(set(range(181, 200)) <= states[partition].known().keys() for partition in (1, 2))
        # All five batches that Apache Kafka remembers, of every producer that is known.
        for sequence in range(5):
            assert client.produce("t", 0, batch(1, sequence)).base_offset == sequence
        assert client.produce("t", 1, batch(199, 0)).base_offset == last
        assert client.produce("t", 1, batch(199, 5)).error == 45  # OUT_OF_ORDER_SEQUENCE_NUMBER
        # One that was forgotten goes on, with whatever sequence.
        assert client.produce("t", 1, batch(100, 1)).base_offset == last + 1
        client.close()


@pytest.mark.parametrize("clean", [True, False])
def test_start_stays_within_the_bound_however_many_producers_are_in_the_logs(
    clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as node:
        node.create_topic("t", 4)
        node.settle()
        for number in range(4):
            replica = node.node.partition(TopicPartition("t", number))
            assert replica is not None
            for producer in range(30):
                replica.append(batch(producer, 0))
        monkeypatch.setattr(producer_bounds, "MOST_PRODUCERS", 40)
        monkeypatch.setattr("storage_node.lifecycle.housekeeping.PRODUCERS_EVERY", 3600.0)
        node.restart(clean=clean)
        states = known(node)
        assert len(states) == 4 and all(state.get(29) is not None for state in states.values())
        assert sum(map(len, states.values())) <= 40 + 4 * 10


def test_notes_of_rejected_first_batches_are_bounded_for_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_bounds, "MOST_REJECTED", 20)
    with running(tmp_path) as node:
        node.create_topic("t", 2, {"max.message.bytes": "100"})
        node.settle()
        replicas = [node.node.partition(TopicPartition("t", number)) for number in range(2)]
        for producer in range(50):
            for replica in replicas:
                assert replica is not None
                records = build_batch([b"x" * 200], producer_id=producer, producer_epoch=0, base_sequence=0)
                with pytest.raises(RequestRefused):
                    replica.append_for_all(records)
        notes = [replica.rejections for replica in replicas if replica is not None]
        until(lambda: sum(map(len, notes)) <= 20, what="the node is within its bound")
        assert [len(each) for each in notes] == [10, 10]


def test_overtaking_keeps_the_newest_notes() -> None:
    notes = ReplicaRejections()
    for producer in range(9):
        notes.refused_early(rejected_first_batches.Note(producer, 0, 0, time.monotonic()))
    notes.forget(2)
    assert len(notes) == 2
    assert notes.check(batch(8, 0), ProducerState()) and not notes.check(batch(6, 0), ProducerState())
