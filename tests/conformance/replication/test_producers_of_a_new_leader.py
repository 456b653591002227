"""A producer whose first batches meet a change of the leader."""

from __future__ import annotations

import contextlib

from storage_node.log import build_batch
from tests.conformance.clusters import Cluster
from tests.conformance.replication.between import NONE, ask, wait_until_done
from tests.support.wire import Client, Row

OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID = 45, 59


def sent(client: Client, topic: str, sequence: int, epoch: int = 0) -> Row:
    batch = build_batch([b"value"], producer_id=2**40 + 7, producer_epoch=epoch, base_sequence=sequence)
    return client.produce(topic, 0, batch)


def test_later_batch_does_not_become_the_first_one(cluster: Cluster) -> None:
    """The previous leader has rejected the batch with sequence 0, and the producer has not sent it again yet."""
    ours = cluster.differs("first-batches-at-a-new-leader")
    topic = cluster.new_topic(assignment={0: [1]})
    assert ask(cluster, topic, [2])[0] == NONE
    wait_until_done(cluster, topic, [2])
    with contextlib.closing(Client(cluster.address(2))) as client:
        assert sent(client, topic, 1).error == (OUT_OF_ORDER_SEQUENCE_NUMBER if ours else NONE)
        assert sent(client, topic, 0).error == (NONE if ours else OUT_OF_ORDER_SEQUENCE_NUMBER)
        assert sent(client, topic, 1).base_offset == (1 if ours else 0)


def test_producer_whose_records_were_deleted_continues_under_a_new_epoch(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    cluster.produce(topic, 0, 3)
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}]
    assert int(cluster.call("DeleteRecords", 2, node=1, topics=rows).topics[0].partitions[0].error_code) == NONE
    assert ask(cluster, topic, [2])[0] == NONE
    wait_until_done(cluster, topic, [2])
    with contextlib.closing(Client(cluster.address(2))) as client:
        first = sent(client, topic, 5)
        assert first.error == (UNKNOWN_PRODUCER_ID if cluster.differs("first-batches-at-a-new-leader") else NONE)
        assert first.log_start == 3
        assert sent(client, topic, 0, epoch=1).error == NONE
