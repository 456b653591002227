"""kafka-transactions, as far as it goes without transactions: the producers of a partition."""

from __future__ import annotations

import re
import time

from storage_node.log.batches.batch import build_batch
from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools


def test_describe_producers_shows_who_writes_idempotently(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1, 2]})
    now = int(time.time() * 1000)
    sent = build_batch([b"x"] * 5, producer_id=4711, producer_epoch=3, base_sequence=0, timestamp=now)
    assert cluster.wire(1).produce(topic, 0, sent).error == 0
    for broker in ((), ("--broker-id", "1")):
        out = tools.out("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0", *broker)
        head, row = out.strip().splitlines()
        assert head.split() == [
            *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"),
            "CurrentTransactionStartOffset",
        ]
        assert re.split(r"\s+", row.strip()) == ["4711", "3", "-1", "4", str(now + 4), "None"]
