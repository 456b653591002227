"""Spark's Kafka source and sink: batches, streams that go on from a checkpoint, and both while replicas move."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.clients.conftest import Ask

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.temporal]

#: The first record's time stamp, milliseconds: young enough for retention, older than the test.
T0 = int(time.time() * 1000) - 3_600_000
MISSING = {"failOnDataLoss": "true"}


class SparkAndKafka:
    """Reads and writes of one Spark session at one cluster; every read fails where records are missing."""

    def __init__(self, spark: Any, bootstrap: str) -> None:
        self.spark = spark
        self._options = {"kafka.bootstrap.servers": bootstrap, **MISSING}

    def batch(self, topic: str, **options: str) -> list[str]:
        """The values of a batch read, sorted."""
        source = self.spark.read.format("kafka").options(**self._options, subscribe=topic, **options)
        return sorted(row[0] for row in source.load().selectExpr("CAST(value AS STRING)").collect())

    def write(self, topic: str, values: list[str]) -> None:
        frame = self.spark.createDataFrame([(f"key-{value}", value) for value in values], "key string, value string")
        frame.write.format("kafka").options(**self._options, topic=topic).save()

    def stream(self, topic: str, folder: Path, **options: str) -> list[str]:
        """One run with availableNow on the checkpoint in `folder`; what it read."""
        found: list[str] = []
        source = self.spark.readStream.format("kafka").options(
            **self._options, subscribe=topic, startingOffsets="earliest", **options
        )
        query = (
            source.load()
            .selectExpr("CAST(value AS STRING)")
            .writeStream.foreachBatch(lambda frame, _: found.extend(row[0] for row in frame.collect()))
            .option("checkpointLocation", str(folder))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60), "the stream did not end"
        return sorted(found)


@pytest.fixture
def kafka(spark_kafka: Any, cluster: Any) -> SparkAndKafka:
    return SparkAndKafka(spark_kafka, cluster.bootstrap)


def named(prefix: str, count: int) -> list[str]:
    return sorted(f"{prefix}-{number}" for number in range(count))


def test_frame_is_written_and_read_back(kafka: SparkAndKafka, cluster: Any) -> None:
    topic = cluster.new_topic(partitions=3)
    kafka.write(topic, named("row", 200))
    assert kafka.batch(topic) == named("row", 200)


def test_batch_between_offsets_and_from_a_time(kafka: SparkAndKafka, cluster: Any, ask: Ask) -> None:
    topic = cluster.new_topic()
    ask("produce", topic=topic, partition=0, prefix="r", count=20, timestamp=T0)
    offsets = {"startingOffsets": f'{{"{topic}":{{"0":5}}}}', "endingOffsets": f'{{"{topic}":{{"0":-1}}}}'}
    assert kafka.batch(topic, **offsets) == sorted(f"r-{number}" for number in range(5, 20))
    times = {"startingTimestamp": str(T0 + 12), "endingTimestamp": str(T0 + 15)}
    assert kafka.batch(topic, **times) == ["r-12", "r-13", "r-14"]


def test_stream_goes_on_from_its_checkpoint(kafka: SparkAndKafka, cluster: Any, tmp_path: Path) -> None:
    topic = cluster.new_topic(partitions=2)
    kafka.write(topic, named("first", 50))
    assert kafka.stream(topic, tmp_path) == named("first", 50)
    kafka.write(topic, named("second", 10))
    assert kafka.stream(topic, tmp_path) == named("second", 10)
    assert kafka.stream(topic, tmp_path) == []
