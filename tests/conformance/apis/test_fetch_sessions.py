"""Fetch sessions (KIP-227), by the same bytes to our nodes and to Apache Kafka's brokers."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from tests.conformance.apis.calls import NODE, code
from tests.conformance.clusters import Cluster
from tests.support.wire import Client

UNKNOWN, UNKNOWN_ID, NO_SESSION, BAD_EPOCH, TOPIC_ID_ERROR = 3, 100, 70, 71, 106
VERSIONS = (7, 12, 13, 17)


@dataclass
class Fetcher:
    """A client that fetches in a session, and may say anything."""

    client: Client
    topic: str
    version: int = 17
    session: int = 0
    epoch: int = 0
    answers: list[Any] = field(default_factory=list)

    def __call__(
        self, offsets: dict[int, int] | None = None, *, forget: tuple[int, ...] = (), topic_id: Any = None, **more: Any
    ) -> tuple[int, dict[int, tuple[int, int, int]]]:
        """(error, partition -> (its error, high watermark, offset after the records or -1)) of one fetch."""
        rows = [
            {"partition": number, "fetch_offset": offset, "partition_max_bytes": more.pop("most", 1 << 20)}
            for number, offset in (offsets or {}).items()
        ]
        named = self.client._topic("topic", self.topic, self.version)
        if topic_id is not None:
            named = {"topic_id": topic_id}
        values: dict[str, Any] = {
            "max_bytes": 1 << 20, "min_bytes": 1, "max_wait": timedelta(0),
            "session_id": self.session, "session_epoch": self.epoch,
            "topics": [named | {"partitions": rows}] if rows else [],
            "forgotten_topics_data": [named | {"partitions": list(forget)}] if forget else [],
        }  # fmt: skip
        answer = self.client.call("Fetch", self.version, **{**values, **more})
        self.answers.append(answer)
        if not code(answer):
            self.session, self.epoch = answer.session_id, self.epoch + 1
        found = [row for topic in answer.responses for row in topic.partitions]
        return code(answer), {
            row.partition_index: (code(row), row.high_watermark, len(row.records or b"")) for row in found
        }


@pytest.fixture
def produced(client: Client, topic: str) -> Callable[[], None]:
    def produce() -> None:
        assert client.produce(topic, 0, build_batch([b"x"])).error == 0

    return produce


@pytest.mark.parametrize("version", VERSIONS)
def test_incremental_fetch_has_only_what_is_news(
    client: Client, topic: str, produced: Callable[[], None], version: int
) -> None:
    client.topic_id(topic)
    fetch = Fetcher(client, topic, version)
    assert fetch({0: 0}) == (0, {0: (0, 0, 0)})
    assert fetch.session > 0
    assert fetch() == (0, {}), "nothing has changed"
    produced()
    error, rows = fetch()
    assert error == 0 and rows[0][:2] == (0, 1) and rows[0][2] > 0
    # The offset has not been moved on: the records come again, with a later response where the directory is late.
    for _ in range(20):
        error, rows = fetch()
        assert (error, rows.get(0, (0, 1))[:2]) == (0, (0, 1)), rows
        if rows and rows[0][2] > 0:
            break
    assert rows[0][2] > 0
    # Where the directory was late, the row comes once more; then the high watermark is known.
    assert fetch({0: 1}) in [(0, {}), (0, {0: (0, 1, 0)})]
    assert fetch({0: 1}) == (0, {})
    assert fetch({0: 9})[1][0][0] == 1, "out of range"
    assert fetch()[1][0][0] == 1, "errors come each time"
    assert fetch({0: 1}) == (0, {0: (0, 1, 0)}), "after an error the partition is told of"
    assert fetch() == (0, {})


@pytest.mark.parametrize("version", VERSIONS)
def test_epochs_and_ids_of_sessions(client: Client, topic: str, version: int) -> None:
    client.topic_id(topic)
    fetch = Fetcher(client, topic, version)
    assert fetch({0: 0})[0] == 0
    session = fetch.session
    for wrong in (0x7FFFFFFF, 2, 5):
        fetch.epoch = wrong
        assert fetch() == (BAD_EPOCH, {})
    fetch.epoch = 1
    assert fetch() == (0, {}), "an error changes nothing"
    fetch.epoch = 1
    assert fetch()[0] == BAD_EPOCH, "each epoch is good once"
    fetch.session = session ^ 1
    assert fetch()[0] == NO_SESSION
    # A full fetch closes the session that it names.
    fetch.session, fetch.epoch = session, 0
    assert fetch({0: 0})[0] == 0
    assert fetch.session not in (0, session)
    fetch.session, fetch.epoch = session, 2
    assert fetch()[0] == NO_SESSION
    fetch.session, fetch.epoch = fetch.answers[-3].session_id, 1
    # ... as does one that wants none.
    last = fetch.session
    fetch.epoch = -1
    assert fetch({0: 0}) == (0, {0: (0, 0, 0)}) and fetch.session == 0
    fetch.session, fetch.epoch = last, 1
    assert fetch()[0] == NO_SESSION


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_come_and_go(client: Client, topic: str, produced: Callable[[], None], version: int) -> None:
    client.topic_id(topic)
    fetch = Fetcher(client, topic, version)
    assert fetch({0: 0})[0] == 0
    error, rows = fetch({77: 0})
    assert (error, rows[77][0]) == (0, UNKNOWN)
    assert fetch(forget=(77,)) == (0, {})
    assert fetch(forget=(55,)) == (0, {}), "what is not there is forgotten as well"
    # A session that has nothing left is closed, and told so by its id.
    assert fetch(forget=(0,)) == (0, {}) and fetch.session == 0
    fetch.session, fetch.epoch = fetch.answers[0].session_id, 5
    assert fetch()[0] == NO_SESSION


def test_topic_ids_in_sessions(client: Client, topic: str) -> None:
    client.topic_id(topic)
    fetch = Fetcher(client, topic, 17)
    assert fetch({0: 0})[0] == 0
    fetch.version = 12
    assert fetch({0: 0}) == (TOPIC_ID_ERROR, {})
    assert fetch() == (TOPIC_ID_ERROR, {})
    fetch.version = 17
    assert fetch() == (0, {})
    error, rows = fetch({0: 0}, topic_id=uuid.uuid4())
    assert (error, rows[0][0]) == (0, UNKNOWN_ID)
    by_name = Fetcher(client, topic, 12)
    assert by_name({0: 0})[0] == 0
    by_name.version = 13
    assert by_name({0: 0})[0] == TOPIC_ID_ERROR


def test_fetch_of_a_session_waits_for_records(client: Client, cluster: Cluster, topic: str) -> None:
    client.topic_id(topic)
    fetch = Fetcher(client, topic)
    assert fetch({0: 0})[0] == 0
    with contextlib.closing(Client(cluster.address(NODE))) as producer:
        values = {
            "max_bytes": 1 << 20, "min_bytes": 1, "max_wait": timedelta(seconds=20),
            "session_id": fetch.session, "session_epoch": 1, "topics": [],
        }  # fmt: skip
        client.send(1, 17, values)
        assert producer.produce(topic, 0, build_batch([b"x"])).error == 0
        _, answer = client.receive()
        assert [len(row.records) > 0 for found in answer.responses for row in found.partitions] == [True]


def test_next_request_of_a_session_ends_the_one_that_waits(client: Client, cluster: Cluster, topic: str) -> None:
    client.topic_id(topic)
    fetch = Fetcher(client, topic)
    assert fetch({0: 0})[0] == 0
    values = {"max_bytes": 1 << 20, "min_bytes": 1, "session_id": fetch.session, "topics": []}
    client.send(1, 17, values | {"session_epoch": 1, "max_wait": timedelta(seconds=3)})
    cluster.eventually(lambda: _asks_again(cluster, values), "the first request has come")
    _, answer = client.receive()
    assert (code(answer), answer.responses) == (BAD_EPOCH, ())


def _asks_again(cluster: Cluster, values: dict[str, Any]) -> bool:
    with contextlib.closing(Client(cluster.address(NODE))) as other:
        return code(other.call("Fetch", 17, **values, session_epoch=2, max_wait=timedelta(0))) == 0
