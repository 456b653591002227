"""Batches as no proper client writes them: what is refused, with which error, and what is corrected."""

from __future__ import annotations

import pytest

from storage_node.log.batches.batch import parse
from tests.conformance.apis.calls import NODE
from tests.conformance.clusters import Cluster
from tests.support.batches import GZIP, LOG_APPEND_TIME, REFUSED, REFUSED_HERE, TAKEN, Batch, packed, records_of
from tests.support.wire import Client

ZSTANDARD_FROM = 7
UNSUPPORTED_COMPRESSION, TIMESTAMP, TOO_LARGE, INVALID = 76, 32, 10, 87


@pytest.fixture
def topic(cluster: Cluster) -> str:
    return cluster.new_topic(assignment={number: [NODE] for number in range(len(TAKEN) + len(REFUSED_HERE) + 1)})


def test_what_is_refused(client: Client, topic: str) -> None:
    found = {name: client.produce(topic, 0, batch.encode()).error for name, (batch, _) in REFUSED.items()}
    assert found == {name: code for name, (_, code) in REFUSED.items()}
    assert client.produce(topic, 0, Batch().encode()).base_offset == 0, "nothing was appended"


def test_what_is_taken_says_its_newest_timestamp(client: Client, topic: str) -> None:
    for partition, (name, (batch, after)) in enumerate(TAKEN.items()):
        assert client.produce(topic, partition, batch.encode()).error == 0, name
        (row,) = client.fetch(topic, partition, 0)
        header = parse(row.records)
        assert (row.high_watermark, header.max_timestamp - header.base_timestamp) == (batch.count, after), name
        assert not header.is_log_append_time


def test_what_not_all_clients_could_read(client: Client, cluster: Cluster, topic: str) -> None:
    strict = cluster.differs("records-all-clients-read") and cluster.differs("whole-batches-only")
    for partition, (name, (batch, code)) in enumerate(REFUSED_HERE.items()):
        assert client.produce(topic, partition, batch.encode()).error == (code if strict else 0), name


def test_batch_of_more_than_a_million_records(client: Client, cluster: Cluster, topic: str) -> None:
    batch = Batch(packed(records_of(3), GZIP), 2**31 - 1, attributes=GZIP)
    expected = TOO_LARGE if cluster.differs("batches-of-a-million") else INVALID
    assert client.produce(topic, 0, batch.encode()).error == expected


def test_producer_does_not_set_the_append_time(client: Client, cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]}, configs={"message.timestamp.type": "LogAppendTime"})
    assert client.produce(topic, 0, Batch(attributes=LOG_APPEND_TIME).encode()).error == TIMESTAMP


def test_one_batch_in_every_version_and_zstandard_in_the_newer_ones(client: Client, topic: str) -> None:
    two, zstandard = Batch(after=Batch().encode()).encode(), TAKEN["zstd"][0].encode()
    for version in range(3, 14):
        assert client.produce(topic, 0, two, version=version).error == INVALID
        found = client.produce(topic, 0, zstandard, version=version).error
        assert found == (UNSUPPORTED_COMPRESSION if version < ZSTANDARD_FROM else 0)
