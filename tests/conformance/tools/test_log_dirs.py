"""kafka-log-dirs --describe: three lines, the last of them JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs.calls import NONE, ask, failed_directory, moves_held, others, where

TOOL = "kafka-log-dirs"


def shown(tools: Tools, *arguments: str) -> tuple[list[str], dict[int, dict[str, dict[str, Any]]]]:
    """The first two lines, and broker -> log directory -> its object."""
    first, second, document = tools.out(TOOL, "--describe", *arguments).splitlines()
    found = json.loads(document)
    assert found["version"] == 1 and found.keys() == {"version", "brokers"}
    brokers = {b["broker"]: {d["logDir"]: d for d in b["logDirs"]} for b in found["brokers"]}
    assert all(len(b["logDirs"]) == len(brokers[b["broker"]]) for b in found["brokers"])
    return [first, second], brokers


@pytest.mark.conformance(198, 199)
@pytest.mark.feature("113-39", "113-31", "113-32", "113-33")
def test_all_brokers_all_directories_and_the_topics_asked_for(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2]})
    cluster.produce(topic, 0, 10)
    words, brokers = shown(tools, "--topic-list", topic)
    assert words == [
        "Querying brokers for log directories information",
        "Received log directory information from brokers 1,2,3",
    ]
    assert {broker: set(dirs) for broker, dirs in brokers.items()} == {n: set(d) for n, d in cluster.log_dirs.items()}
    for dirs in brokers.values():
        for row in dirs.values():
            assert row.keys() == {"logDir", "error", "partitions"} and row["error"] is None
    placed = {(b, p["partition"]): p for b, dirs in brokers.items() for row in dirs.values() for p in row["partitions"]}
    assert placed.keys() == {(1, f"{topic}-0"), (2, f"{topic}-1")}
    full = placed[1, f"{topic}-0"]
    assert full.keys() == {"partition", "size", "offsetLag", "isFuture"}
    assert full["size"] > 1000 and full["offsetLag"] == 0 and full["isFuture"] is False
    assert placed[2, f"{topic}-1"]["size"] == 0
    _, everything = shown(tools)
    seen = {p["partition"] for dirs in everything.values() for row in dirs.values() for p in row["partitions"]}
    assert {f"{topic}-0", f"{topic}-1"} <= seen


@pytest.mark.conformance(198, 199)
@pytest.mark.feature("113-39")
def test_some_brokers_and_unknown_topics(cluster: Cluster, tools: Tools) -> None:
    words, brokers = shown(tools, "--broker-list", "2", "--topic-list", "no-such-topic")
    assert words[1] == "Received log directory information from brokers 2"
    assert brokers.keys() == {2} and brokers[2].keys() == set(cluster.log_dirs[2])
    assert all(row["error"] is None and row["partitions"] == [] for row in brokers[2].values())
    assert shown(tools, "--broker-list", "3,1,3")[1].keys() == {1, 3}
    code, out, err = tools.run(TOOL, "--describe", "--broker-list", "0,2,7")
    assert code == 1
    assert "ERROR: The given brokers do not exist from --broker-list: 0,7. Current existent brokers: 1,2,3" in err
    assert "{" not in out


@pytest.mark.conformance(199)
@pytest.mark.feature("113-34", "113-41")
def test_both_copies_of_a_moving_replica(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    cluster.produce(topic, 0, 400, size=1000, per_batch=20)
    source, target = where(cluster, 1, topic), others(cluster, 1, topic)[0]
    with moves_held(cluster, 1):
        assert ask(cluster, 1, topic, target) == NONE
        dirs = shown(tools, "--topic-list", topic, "--broker-list", "1")[1][1]
        (current,), (copy,) = dirs[str(source)]["partitions"], dirs[target]["partitions"]
        assert (current["isFuture"], current["offsetLag"]) == (False, 0)
        assert copy["isFuture"] is True and copy["offsetLag"] > 0 and copy["partition"] == f"{topic}-0"
        assert ask(cluster, 1, topic, str(source)) == NONE


@pytest.mark.slow_conformance
@pytest.mark.conformance(30, 198)
@pytest.mark.feature("113-35", "113-41")
def test_offline_directory_has_the_name_of_an_error(cluster: Cluster, tools: Tools) -> None:
    bad = cluster.log_dirs[3][2]
    with failed_directory(cluster, 3, bad):
        dirs = shown(tools)[1][3]
        assert dirs[bad] == {
            "logDir": bad,
            "error": "org.apache.kafka.common.errors.KafkaStorageException",
            "partitions": [],
        }
        assert all(row["error"] is None for path, row in dirs.items() if path != bad)
