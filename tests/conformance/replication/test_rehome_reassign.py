"""rehome reassign through Kafka's own protocol alone, as against any Apache Kafka: no run sees it through there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.reassign import throttling as throttles
from tests.conformance.clusters import Cluster
from tests.conformance.replication.between import everywhere
from tests.support.no_cluster import no_cluster_around


@pytest.fixture
def rehome(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """Run a command with --json on the cluster's bootstrap servers, Temporal unknown; its value."""
    no_cluster_around(monkeypatch, tmp_path)

    def run(*arguments: str) -> Any:
        capsys.readouterr()
        code = cli.run([*arguments, "--bootstrap-server", cluster.bootstrap, "--json"])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return json.loads(shown.out)

    return run


def plan(folder: Path, topic: str, replicas: list[int], log_dirs: list[str] | None = None) -> str:
    file = folder / "plan.json"
    entry = {"topic": topic, "partition": 0, "replicas": replicas, **({"log_dirs": log_dirs} if log_dirs else {})}
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return str(file)


def test_partition_moves_under_a_throttle_that_is_taken_back(cluster: Cluster, rehome: Any, tmp_path: Path) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    cluster.produce(topic, 0, n=300, size=1000)
    file = plan(tmp_path, topic, [2])
    (row,) = rehome("reassign", file, "--wait", "--throttle", "50MB")
    assert (row["outcome"], row["from"], row["to"]) == ("done", [1], [2])
    # Whichever node is asked next: they hear of it with their next image.
    cluster.eventually(lambda: {row.replicas for row in everywhere(cluster, topic)} == {(2,)}, "all nodes know of it")
    found = rehome("topic", "describe", topic)["partitions"][0]
    assert (found["replicas"], found["isr"], found["adding"], found["removing"]) == ([2], [2], [], [])
    with KafkaAdmin(cluster.bootstrap) as admin:

        def taken_back() -> bool:
            held = admin.configs("topic", [topic])[topic]
            return not held.get(throttles.LEADERS) and not held.get(throttles.FOLLOWERS)

        cluster.eventually(taken_back, "the lists are taken back")
        assert not any(
            key in values for values in admin.configs("broker", ["1", "2"]).values() for key in throttles.RATES
        )
    assert rehome("reassign", file)[0]["outcome"] == "in_place"
    assert rehome("reassign", file, "--cancel")[0]["outcome"] == "nothing_under_way"


@pytest.mark.feature("455-17")
def test_what_is_under_way_is_shown_and_cancelled(cluster: Cluster, rehome: Any, tmp_path: Path) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    cluster.produce(topic, 0, n=300, size=1000)
    cluster.set_topic_config(topic, **{throttles.LEADERS: "0:1", throttles.FOLLOWERS: "0:3"})
    for node in (1, 3):
        cluster.set_broker_config(node, **{key: "1000" for key in throttles.RATES})
    try:
        file = plan(tmp_path, topic, [3])
        assert rehome("reassign", file)[0]["outcome"] == "started"
        cluster.eventually(
            lambda: {row.replicas for row in everywhere(cluster, topic)} == {(3, 1)}, "all nodes know of it"
        )
        lines = [each for each in rehome("reassignments")["reassignments"] if each["topic"] == topic]
        assert [(each["source"], each["target"], each["in_sync"]) for each in lines] == [([1], [3], [])]
        found = rehome("topic", "describe", topic)["partitions"][0]
        assert (found["adding"], found["removing"]) == ([3], [1])
        assert rehome("reassign", file, "--cancel")[0]["outcome"] == "cancelled"
        # The node that is asked hears of it with its next image.
        cluster.eventually(lambda: rehome("topic", "describe", topic)["partitions"][0]["replicas"] == [1])
        # Throttles of others are left alone.
        with KafkaAdmin(cluster.bootstrap) as admin:
            assert admin.configs("topic", [topic])[topic][throttles.LEADERS] == "0:1"
            assert admin.configs("broker", ["3"])["3"][throttles.RATES[1]] == "1000"
    finally:
        for node in (1, 3):
            cluster.set_broker_config(node, **dict.fromkeys(throttles.RATES))


def test_directory_on_another_node_is_reached(cluster: Cluster, rehome: Any, tmp_path: Path) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    cluster.produce(topic, 0, n=300, size=1000)
    with KafkaAdmin(cluster.bootstrap) as admin:
        wanted = [view.path for view in admin.log_dirs([2])]
    for directory in wanted:
        (row,) = rehome("reassign", plan(tmp_path, topic, [2], [directory]), "--wait")
        assert row["outcome"] == "done"
        cluster.eventually(lambda: {row.replicas for row in everywhere(cluster, topic)} == {(2,)}, "all nodes know it")
        rows = rehome("topic", "describe", topic)["partitions"][0]["log_dirs"]
        assert [each["directory"] for each in rows if each["node"] == 2 and not each["future"]] == [directory]
