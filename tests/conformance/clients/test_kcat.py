"""kcat, the program, with librdkafka as Debian packs it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.temporal]

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def test_metadata(kcat: Any, cluster: Any) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2]})
    printed, _ = kcat("-L", "-t", topic)
    lines = [line.strip() for line in printed.splitlines()]
    assert "3 brokers:" in lines
    for node in (1, 2, 3):
        assert any(line.startswith(f"broker {node} at {cluster.address(node)}") for line in lines)
    assert f'topic "{topic}" with 2 partitions:' in lines
    assert "partition 0, leader 1, replicas: 1, isrs: 1" in lines
    assert "partition 1, leader 2, replicas: 2, isrs: 2" in lines
    as_json = json.loads(kcat("-L", "-J", "-t", topic)[0])
    assert [row["leader"] for row in as_json["topics"][0]["partitions"]] == [1, 2]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_produce_and_consume(kcat: Any, cluster: Any, compression: str) -> None:
    topic = cluster.new_topic()
    lines = [f"{compression}-{number}" for number in range(200)]
    _, complaints = kcat("-P", "-t", topic, "-p", "0", "-z", compression, stdin="\n".join(lines))
    assert complaints == ""
    printed, complaints = kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q")
    assert printed.splitlines() == lines
    assert complaints == ""
    last, _ = kcat("-C", "-t", topic, "-p", "0", "-o", "-3", "-e", "-q", "-f", "%o %s\\n")
    assert last.splitlines() == [f"{number} {lines[number]}" for number in (197, 198, 199)]


def test_headers_keys_and_idempotence(kcat: Any, cluster: Any) -> None:
    topic = cluster.new_topic()
    kcat("-P", "-t", topic, "-K", ":", "-H", "colour=red", "-X", "enable.idempotence=true", stdin="k1:v1\nk2:v2\n")
    printed, _ = kcat("-C", "-t", topic, "-e", "-q", "-o", "beginning", "-f", "%k %s %h\\n")
    assert printed.splitlines() == ["k1 v1 colour=red", "k2 v2 colour=red"]


def test_offsets_by_time(kcat: Any, cluster: Any) -> None:
    topic = cluster.new_topic()
    kcat("-P", "-t", topic, "-p", "0", stdin="a\nb\n")
    printed, _ = kcat("-Q", "-t", f"{topic}:0:-1", "-t", f"{topic}:0:-2")
    assert f"{topic} [0] offset 2" in printed or f"{topic} [0] offset 0" in printed
