"""Log directories through the Java AdminClient: each replica and each node has a future of its own (KIP-113)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance.clients.conftest import Ask
from tests.conformance.clients.java import ok
from tests.conformance.clusters import WIDE
from tests.conformance.log_dirs.calls import failed_directory
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.kafka, pytest.mark.temporal]

THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
#: More than Kafka's mover takes in its first fetch, which no throttle holds back.
LARGE = 4_000_000
NOBODY = 99


class Replica:
    """Partition 0 of a topic of its own on node 1, and where it stands."""

    def __init__(self, ask: Ask, cluster: Any, size: int = 20_000) -> None:
        self.topic = cluster.new_topic(assignment={0: [1]})
        self.row = [self.topic, 0, 1]
        self.key = f"{self.topic}-0-1"
        self.size = size
        self._ask = ask
        sent = ask(
            "produce",
            topic=self.topic,
            partition=0,
            prefix="x" * 10_000,
            count=size // 10_000,
            config={"linger.ms": "20"},
        )
        assert not sent["failures"]
        self.source = str(self.where()["current"])
        (self.target,) = [str(path) for path in cluster.log_dirs[1] if str(path) != self.source]

    def where(self) -> Any:
        return ok(self._ask("describeReplicaLogDirs", replicas=[self.row])[self.key])

    def to(self, directory: str) -> list[Any]:
        """What alterReplicaLogDirs wants."""
        return [*self.row, directory]

    def arrived(self) -> bool:
        where = self.where()
        return where["current"] == self.target and where["future"] is None


@pytest.fixture
def throttled(ask: Ask) -> Iterator[Callable[[str | None], None]]:
    """Sets the throttle of node 1, and takes it away at the end."""

    def set_throttle(rate: str | None) -> None:
        change = ["BROKER", "1", "DELETE" if rate is None else "SET", THROTTLE, rate]
        ok(ask("alterConfigs", changes=[change])["BROKER 1"])

    yield set_throttle
    set_throttle(None)


@pytest.mark.feature("113-43")
@pytest.mark.conformance(29, 35)
def test_every_node_describes_its_directories(ask: Ask, cluster: Any) -> None:
    replica = Replica(ask, cluster)
    found = {int(node): ok(row) for node, row in ask("describeLogDirs", brokers=[1, 2, 3]).items()}
    assert {node: sorted(rows) for node, rows in found.items()} == {
        node: sorted(map(str, paths)) for node, paths in cluster.log_dirs.items()
    }
    for rows in found.values():
        for directory in rows.values():
            assert directory["error"] is None
            assert directory["cordoned"] is False
            assert 0 < directory["usable"] <= directory["total"]
    holders = [
        (node, path, row["replicas"][f"{replica.topic}-0"])
        for node, rows in found.items()
        for path, row in rows.items()
        if f"{replica.topic}-0" in row["replicas"]
    ]
    ((node, path, row),) = holders
    assert (node, path, row["lag"], row["future"]) == (1, replica.source, 0, False)
    assert replica.size < row["size"] < 2 * replica.size


@pytest.mark.feature("113-43")
@pytest.mark.conformance(33)
def test_node_that_does_not_answer_fails_only_its_own_description(ask: Ask) -> None:
    def described() -> bool:
        found = ask("describeLogDirs", brokers=[1, NOBODY], timeoutMs=1000)
        assert found[str(NOBODY)]["error"] == "TimeoutException"
        return bool(found["1"].get("ok"))  # unless the machine stalls for so long

    until(described, 60, "the other one is described")


@pytest.mark.feature("113-44")
@pytest.mark.conformance(31, 32)
def test_replicas_and_what_is_none(ask: Ask, cluster: Any) -> None:
    replica = Replica(ask, cluster)
    nowhere = {"current": None, "lag": -1, "future": None, "futureLag": -1}
    topic = replica.topic
    asked = [replica.row, [topic, 0, 2], [topic, 7, 1], ["no-such-topic", 0, 1]]
    found = {key: ok(row) for key, row in ask("describeReplicaLogDirs", replicas=asked).items()}
    assert found == {
        replica.key: {"current": replica.source, "lag": 0, "future": None, "futureLag": -1},
        f"{topic}-0-2": nowhere,
        f"{topic}-7-1": nowhere,
        "no-such-topic-0-1": nowhere,
    }


@pytest.mark.feature("113-45")
@pytest.mark.conformance(13, 14)
def test_each_replica_has_its_own_result(ask: Ask, cluster: Any) -> None:
    good, bad, other = (Replica(ask, cluster) for _ in range(3))
    second = str(cluster.log_dirs[2][0])
    wanted = [
        good.to(good.target),
        bad.to("/no/such/directory"),
        [other.topic, 0, 2, second],  # the topic is there, but not on this node
        [other.topic, 5, 1, other.target],
        ["no-such-topic", 0, 1, good.target],
        [good.topic, 0, NOBODY, good.target],
    ]
    done: dict[str, Any] = {}
    results: dict[str, str] = {}

    def answered() -> bool:
        done.update(ask("alterReplicaLogDirs", wanted=wanted, timeoutMs=1500))
        results.update({key: row.get("error", "ok") for key, row in done["values"].items()})
        return list(results.values()).count("TimeoutException") == 1  # unless the machine stalls for so long

    until(answered, 60, "only who is not there does not answer in time")
    assert results == {
        good.key: "ok",
        bad.key: "LogDirNotFoundException",
        f"{other.topic}-0-2": "ReplicaNotAvailableException",
        f"{other.topic}-5-1": "UnknownTopicOrPartitionException",
        "no-such-topic-0-1": "UnknownTopicOrPartitionException",
        f"{good.topic}-0-{NOBODY}": "TimeoutException",
    }
    assert done["all"]["error"] in set(results.values())
    until(good.arrived, 60, "the replica is in the directory asked for")
    assert bad.where() == {"current": bad.source, "lag": 0, "future": None, "futureLag": -1}
    again = ask("alterReplicaLogDirs", wanted=[good.to(good.target), other.to(other.source)])
    assert [*again["values"].values(), again["all"]] == [{"ok": None}] * 3


@pytest.mark.feature("113-44", "113-45")
@pytest.mark.conformance(29, 31)
def test_move_is_seen_cancelled_and_asked_for_again(
    ask: Ask, cluster: Any, throttled: Callable[[str | None], None]
) -> None:
    replica = Replica(ask, cluster, LARGE)
    throttled("1000")
    ok(ask("alterReplicaLogDirs", wanted=[replica.to(replica.target)])["all"])
    moving = replica.where()
    assert (moving["current"], moving["lag"], moving["future"]) == (replica.source, 0, replica.target)
    assert moving["futureLag"] > 0
    directories = ok(ask("describeLogDirs", brokers=[1])["1"])
    rows = [directories[path]["replicas"][f"{replica.topic}-0"] for path in (replica.source, replica.target)]
    assert [row["future"] for row in rows] == [False, True]
    assert rows[1]["size"] < rows[0]["size"]

    ok(ask("alterReplicaLogDirs", wanted=[replica.to(replica.source)])["all"])
    until(lambda: replica.where()["future"] is None, 60, "the copy is gone")
    assert replica.where()["current"] == replica.source

    ok(ask("alterReplicaLogDirs", wanted=[replica.to(replica.target)])["all"])
    assert replica.where()["future"] == replica.target
    throttled("100000000")
    until(replica.arrived, 60, "the replica is in the directory asked for")
    count = replica.size // 10_000
    read = ask("consume", assign=[[replica.topic, 0]], count=count, seconds=20)
    assert [row[1] for row in read["records"]] == list(range(count))


@pytest.mark.slow_conformance
@pytest.mark.feature("113-43", "113-44")
@pytest.mark.conformance(30, 31, 34)
def test_directory_that_is_offline(ask: Ask, cluster: Any) -> None:
    first, second, bad = (str(path) for path in cluster.log_dirs[WIDE])
    topic = cluster.new_topic(assignment={0: [WIDE]})
    replica, key = [topic, 0, WIDE], f"{topic}-0-{WIDE}"
    ok(ask("alterReplicaLogDirs", wanted=[[*replica, bad]])["all"])

    def where() -> Any:
        return ok(ask("describeReplicaLogDirs", replicas=[replica])[key])

    until(lambda: where()["current"] == bad, 30, "the replica is in the directory that will fail")
    with failed_directory(cluster, WIDE, bad):
        rows = ok(ask("describeLogDirs", brokers=[WIDE])[str(WIDE)])
        assert {path: row["error"] for path, row in rows.items()} == {
            first: None,
            second: None,
            bad: "KafkaStorageException",
        }
        assert (rows[bad]["total"], rows[bad]["usable"], rows[bad]["replicas"]) == (None, None, {})
        assert where() == {"current": None, "lag": -1, "future": None, "futureLag": -1}
        done = ask("alterReplicaLogDirs", wanted=[[*replica, bad], [*replica[:2], 1, "/no/such/directory"]])
        assert done["values"][key]["error"] == "KafkaStorageException"
    until(lambda: where()["current"] == bad, 30, "the directory is back after a restart")
    cluster.delete_topic(topic)
