"""The console producer and consumer, the verifiable ones, and offsets by kafka-get-offsets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools


def test_keys_values_and_partitions_go_through(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2], 2: [3]})
    lines = [f"key-{number}:value-{number}" for number in range(60)]
    produce = ("kafka-console-producer", "--topic", topic)
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    code, _, err = tools.run(*produce, *keys, stdin="".join(f"{line}\n" for line in lines))
    assert (code, err) == (0, "")
    read: list[str] = []
    for partition in range(3):
        end = cluster.end_offset(topic, partition)
        assert end > 0
        shown = ("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:")
        asked = ("--partition", str(partition), "--offset", "earliest", "--max-messages", str(end))
        read += tools.out("kafka-console-consumer", "--topic", topic, *asked, *shown).splitlines()
    assert sorted(read) == sorted(lines)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression_goes_through(cluster: Cluster, tools: Tools, codec: str) -> None:
    topic = cluster.new_topic()
    text = [f"{codec} {number} " + "x" * 200 for number in range(40)]
    produce = ("kafka-console-producer", "--topic", topic, "--compression-codec", codec)
    assert tools.run(*produce, stdin="\n".join(text)).code == 0
    asked = ("--partition", "0", "--offset", "earliest", "--max-messages", "40")
    assert tools.out("kafka-console-consumer", "--topic", topic, *asked).splitlines() == text


def test_offsets_of_all_partitions(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2]})
    cluster.produce(topic, 1, 7)
    for time, second in (("latest", 7), ("earliest", 0), ("-3", 6), ("9999999999999", None)):
        out = tools.out("kafka-get-offsets", "--topic", topic, "--time", time).splitlines()
        if second is None:
            assert out in ([], [f"{topic}:0:", f"{topic}:1:"])  # nothing is as late
            continue
        # A partition without records has none with the largest timestamp.
        assert out == ([] if time == "-3" else [f"{topic}:0:0"]) + [f"{topic}:1:{second}"]


def test_records_are_deleted_by_the_tool(cluster: Cluster, tools: Tools, tmp_path: Path) -> None:
    topic = cluster.new_topic(assignment={0: [2]})
    cluster.produce(topic, 0, 10)
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}))
    out = tools.out("kafka-delete-records", "--offset-json-file", str(file))
    assert f"partition: {topic}-0\tlow_watermark: 4" in out
    assert tools.out("kafka-get-offsets", "--topic", topic, "--time", "earliest").split() == [f"{topic}:0:4"]


@pytest.mark.slow_conformance
def test_verifiable_producer_acknowledges_all_it_sends(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2]})
    count = ("--max-messages", "2000", "--throughput", "-1", "--acks", "-1")
    code, out, err = tools.run("kafka-verifiable-producer", "--topic", topic, *count, own_process=True)
    assert code == 0, err
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    sent = [event for event in events if event["name"] == "producer_send_success"]
    (summary,) = [event for event in events if event["name"] == "tool_data"]
    assert len(sent) == summary["sent"] == summary["acked"] == 2000
    assert cluster.end_offset(topic, 0) + cluster.end_offset(topic, 1) == 2000
