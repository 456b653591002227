"""ListOffsets by timestamp: a search does not block producers and consumers."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from storage_node.log import Log
from storage_node.log.batches.batch import build_batch
from tests.support.nodes.node_harness import Harness
from tests.support.wire import Client


def test_long_search_does_not_delay_appends(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    searching, finish = threading.Event(), threading.Event()
    genuine = Log.offset_for_timestamp

    def slow(self: Log, ms: int) -> tuple[int, int] | None:
        searching.set()
        assert finish.wait(20)
        return genuine(self, ms)

    monkeypatch.setattr(Log, "offset_for_timestamp", slow)
    searchers = [Client(harness) for _ in range(8)]
    client = Client(harness)
    try:
        assert client.produce("t", 0, build_batch([b"a"], timestamp=1_000)).error == 0
        row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 500}
        topics = [{"name": "t", "partitions": [row]}]
        values = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": timedelta(seconds=20)}
        for each in searchers:
            each.send(2, 10, values)
        assert searching.wait(10)
        client.socket.settimeout(10)
        assert client.produce("t", 0, build_batch([b"b"])).error == 0
        assert client.fetch("t", 0, 0)[0].records.count(b"a") == 1
        latest = {"replica_id": -1, "isolation_level": 0, "timeout": timedelta(seconds=10)}
        latest["topics"] = [{"name": "t", "partitions": [row | {"timestamp": -1}]}]
        assert client.ask(2, 10, latest).topics[0].partitions[0].offset == 2
        finish.set()
        for each in searchers:
            found = each.receive()[1].topics[0].partitions[0]
            assert (found.error_code, found.offset) == (0, 0)
    finally:
        finish.set()
        for each in (*searchers, client):
            each.close()
