"""Fetch sessions: whom they make room for, what they keep, and how little an idle one does.

That they are Kafka's on the wire, tests/conformance/apis/test_fetch_sessions.py asserts on both kinds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from storage_node.log.batch import build_batch
from storage_node.protocol import fetch, fetch_sessions
from storage_node.protocol.fetch_call import Item
from storage_node.protocol.fetch_sessions import EVICTION, LAST_EPOCH, FetchSessions, Standing, next_epoch, victim
from storage_node.types import TopicPartition
from tests.support.node_harness import Harness, until
from tests.support.wire import Client

NOW = 1000.0
OLD = NOW - EVICTION - 1

FOLLOWER, CLIENT = True, False


@pytest.mark.parametrize(
    ("there", "new", "goes"),
    [
        ({}, (CLIENT, 10), None),
        # Who was not used for so long goes, whatever it is.
        ({1: (FOLLOWER, 99, OLD, OLD), 2: (CLIENT, 1, OLD, NOW)}, (CLIENT, 5), 1),
        # A client's makes room for a larger one, if it was opened long ago.
        ({1: (CLIENT, 9, OLD, NOW), 2: (CLIENT, 8, OLD, NOW)}, (CLIENT, 10), 2),
        ({1: (CLIENT, 9, NOW, NOW), 2: (CLIENT, 8, NOW, NOW)}, (CLIENT, 10), None),
        ({1: (CLIENT, 10, OLD, NOW)}, (CLIENT, 10), None),
        ({1: (CLIENT, 11, OLD, NOW)}, (CLIENT, 10), None),
        # A follower's takes the place of any client's.
        ({1: (CLIENT, 99, NOW, NOW), 2: (CLIENT, 50, NOW, NOW)}, (FOLLOWER, 1), 2),
        ({1: (FOLLOWER, 99, NOW, NOW), 2: (FOLLOWER, 50, NOW, NOW)}, (FOLLOWER, 100), None),
        ({1: (FOLLOWER, 99, OLD, NOW), 2: (FOLLOWER, 50, NOW, NOW)}, (FOLLOWER, 100), 1),
        # A client's never takes a follower's.
        ({1: (FOLLOWER, 1, OLD, NOW)}, (CLIENT, 100), None),
    ],
)
def test_who_makes_room_for_a_session(there: Any, new: tuple[bool, int], goes: int | None) -> None:
    sessions = {
        number: (Standing(privileged, size, number), opened, used)
        for number, (privileged, size, opened, used) in there.items()
    }
    assert victim(sessions, Standing(*new), NOW) == goes


def test_epochs_wrap_to_one() -> None:
    assert (next_epoch(0), next_epoch(1), next_epoch(LAST_EPOCH)) == (1, 2, 1)


class Fetcher:
    """A consumer with a session, of all partitions of a topic."""

    def __init__(self, harness: Harness, topic: str) -> None:
        self.client = Client(harness)
        self.topic = {"topic_id": self.client.topic_id(topic)}
        self.session = self.epoch = 0

    def send(self, offsets: dict[int, int] | None = None, wait_ms: int = 0, **more: Any) -> None:
        rows = [
            {"partition": n, "fetch_offset": at, "partition_max_bytes": 1 << 20} for n, at in (offsets or {}).items()
        ]
        values: dict[str, Any] = {
            "max_bytes": 1 << 20, "min_bytes": 1, "max_wait": timedelta(milliseconds=wait_ms),
            "session_id": self.session, "session_epoch": self.epoch,
            "topics": [self.topic | {"partitions": rows}] if rows else [],
        }  # fmt: skip
        self.client.send(1, 17, {**values, **more})
        self.epoch += 1

    def receive(self) -> Any:
        _, answer = self.client.receive()
        self.session = answer.session_id or self.session
        return answer

    def fetch(self, offsets: dict[int, int] | None = None, wait_ms: int = 0, **more: Any) -> list[int]:
        """The partitions of the response, in its order."""
        self.send(offsets, wait_ms, **more)
        answer = self.receive()
        assert not answer.error_code, answer.error_code
        return [row.partition_index for topic in answer.responses for row in topic.partitions]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Item]]:
    """Every item that a fetch looks up."""
    found, look_up = list[Item](), fetch._look_up

    def counted(node: Any, item: Item, names: Any) -> Any:
        found.append(item)
        return look_up(node, item, names)

    monkeypatch.setattr(fetch, "_look_up", counted)
    yield found


def test_an_idle_fetch_looks_at_no_partition(harness: Harness, looked: list[Item]) -> None:
    harness.create_topic("t", 60)
    harness.settle()  # a newer image would have them looked at again
    fetcher = Fetcher(harness, "t")
    assert len(fetcher.fetch(dict.fromkeys(range(60), 0))) == 60
    looked.clear()
    for wait_ms in (0, 50, 0):
        assert fetcher.fetch(wait_ms=wait_ms) == []
    assert looked == []
    with_waiters = harness.node.replicas.served[TopicPartition("t", 7)]
    with_waiters.append(build_batch([b"x"]))
    assert fetcher.fetch() == [7]
    # The client has not moved on: it is looked at until it has.
    assert {item.partition for item in looked} == {7}
    assert fetcher.fetch({7: 1}) == [] and fetcher.fetch() == []
    assert {item.partition for item in looked} == {7} and len(looked) <= 3


def test_partitions_with_records_take_turns(harness: Harness) -> None:
    harness.create_topic("t", 12)
    served = harness.node.replicas.served
    directory = served[TopicPartition("t", 0)].directory
    # (Directories are read at the same time: which is first is chance.)
    own = [number for number in range(12) if served[TopicPartition("t", number)].directory is directory][:4]
    for number in own:
        served[TopicPartition("t", number)].append(build_batch([b"x" * 1000]))
    fetcher = Fetcher(harness, "t")
    fetcher.fetch(dict.fromkeys(own, 0), max_bytes=500)
    with_records = []
    for _ in range(8):
        fetcher.send(max_bytes=500)
        (topic,) = fetcher.receive().responses
        with_records.append([row.partition_index for row in topic.partitions if row.records])
    assert with_records == [[number] for number in (*own[1:], own[0])] * 2


def test_a_log_start_that_moves_is_news(harness: Harness) -> None:
    harness.create_topic("t", 2)
    partition = harness.node.replicas.served[TopicPartition("t", 1)]
    for _ in range(3):
        partition.append(build_batch([b"x"]))
    fetcher = Fetcher(harness, "t")
    fetcher.fetch({0: 0, 1: 3})
    assert fetcher.fetch() == []
    partition.delete_records(2)
    assert fetcher.fetch() == [1]
    assert fetcher.fetch() == []


def test_a_topic_that_is_deleted_is_told_in_its_session(harness: Harness) -> None:
    harness.create_topic("t", 2)
    fetcher = Fetcher(harness, "t")
    fetcher.fetch({0: 0, 1: 0})
    fetcher.send(wait_ms=20_000)
    harness.delete_topic("t")
    answer = fetcher.receive()
    errors = {row.error_code for topic in answer.responses for row in topic.partitions}
    assert errors and errors <= {3, 100}
    harness.create_topic("t", 2)


def test_a_session_keeps_nothing_that_it_read(harness: Harness) -> None:
    harness.create_topic("t")
    partition = harness.node.replicas.served[TopicPartition("t", 0)]
    partition.append(build_batch([b"x" * 300_000]))
    fetcher = Fetcher(harness, "t")
    for _ in range(2):
        assert fetcher.fetch({0: 0}) == [0]
    (session,) = harness.node.fetch_sessions._sessions.values()
    assert all(len(item.data) == 0 for item in session.items.values())


def test_a_client_that_goes_while_it_waits_misses_nothing(harness: Harness) -> None:
    harness.create_topic("t", 2)
    fetcher = Fetcher(harness, "t")
    fetcher.fetch({0: 0, 1: 0})
    fetcher.send(wait_ms=20_000)
    fetcher.client.close()
    harness.node.replicas.served[TopicPartition("t", 1)].append(build_batch([b"x"]))
    fetcher.client = Client(harness)
    assert fetcher.fetch() == [1]


def test_sessions_are_bounded_in_number_and_in_partitions(harness: Harness) -> None:
    harness.create_topic("t", 8)
    node = harness.node
    everything = dict.fromkeys(range(8), 0)
    for bounds in ({"slots": 3}, {"most": 24}):
        sessions = node.fetch_sessions = FetchSessions(**bounds)
        fetchers = [Fetcher(harness, "t") for _ in range(5)]
        for fetcher in fetchers:
            assert len(fetcher.fetch(everything)) == 8
        assert [bool(fetcher.session) for fetcher in fetchers] == [True] * 3 + [False] * 2
        assert (len(sessions), sessions.partitions) == (3, 24)
        # Whoever has none goes on without.
        fetchers[4].epoch = 0
        assert len(fetchers[4].fetch(everything)) == 8
        # A client's session makes room for a follower's.
        follower = Fetcher(harness, "t")
        follower.fetch(everything, replica_state={"replica_id": 9, "replica_epoch": -1})
        assert follower.session or "most" in bounds
        for fetcher in (*fetchers, follower):
            fetcher.client.close()
    # A session that grows beyond what there is room for ends.
    node.fetch_sessions = FetchSessions(most=10)
    one = Fetcher(harness, "t")
    one.fetch(dict.fromkeys(range(6), 0))
    one.fetch(dict.fromkeys(range(100, 110), 0))
    one.send()
    assert one.receive().error_code == 70 and len(node.fetch_sessions) == 0


def test_partitions_of_all_sessions_are_counted_as_they_come_and_go(harness: Harness) -> None:
    """The bound holds by a count, which no fetch recomputes."""
    harness.create_topic("t", 20)
    sessions, rng = harness.node.fetch_sessions, random.Random(5)
    fetchers = [Fetcher(harness, "t") for _ in range(6)]
    client = Client(harness)
    for _ in range(200):
        fetcher = rng.choice(fetchers)
        some = dict.fromkeys(rng.sample(range(20), rng.randint(1, 20)), 0)
        gone = {"forgotten_topics_data": [fetcher.topic | {"partitions": rng.sample(range(20), 5)}]}
        match rng.randrange(6) if fetcher.epoch else 0:
            case 0:
                fetcher.epoch = 0
                fetcher.fetch(some)
            case 1:
                fetcher.fetch(some)
            case 2:
                client.fetch_many([("t", number, 0) for number in some], max_wait_ms=1)
            case 3:
                fetcher.session, fetcher.epoch = 0, 0
            case _:
                fetcher.send(**gone)
                fetcher.session = fetcher.session if fetcher.receive().session_id else 0
                fetcher.epoch = fetcher.epoch if fetcher.session else 0
        kept = [*sessions._sessions.values(), *sessions._repeated.values()]
        assert sessions._held == {True: 0, False: sum(len(session.items) for session in kept)}


def test_names_that_no_topic_has_are_not_remembered(harness: Harness) -> None:
    harness.create_topic("t", 2)
    client = Client(harness)

    def ask(session: int, epoch: int, name: str, wait_ms: int = 0) -> Any:
        rows = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 100} for number in range(20)]
        topics = [{"topic": name, "partitions": rows}] if name else []
        values = {"session_id": session, "session_epoch": epoch, "max_wait": timedelta(milliseconds=wait_ms)}
        return client.ask(1, 12, values | {"max_bytes": 100, "min_bytes": 1, "topics": topics})

    assert ask(0, 0, "x" * 249).session_id > 0
    assert ask(0, 0, "x" * 250).session_id == 0
    session = ask(0, 0, "t").session_id
    assert not ask(session, 1, "x" * 32_000).error_code
    assert ask(session, 2, "").error_code == 70
    ask(0, -1, "x" * 3_000, wait_ms=10)
    assert not harness.node.fetch_sessions._repeated
    client.close()


def test_partitions_of_closed_sessions_are_not_watched(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "TURN", 7)
    harness.create_topic("t", 30)
    everything = dict.fromkeys(range(30), 0)

    def watched() -> int:
        served = harness.node.replicas.served.values()
        return sum(len(partition._waiters) + len(partition._follower_waiters) for partition in served)

    fetcher = Fetcher(harness, "t")
    fetcher.fetch(everything)
    assert watched() == 30
    fetcher.epoch = 0
    fetcher.fetch(everything)  # another session in its place
    until(lambda: watched() == 30)
    fetcher.epoch = -1
    fetcher.fetch(everything)
    until(lambda: watched() == 0)


def fetch_all(client: Client, partitions: int, offset: int = 0, wait_ms: int = 20) -> dict[int, tuple[int, bool]]:
    """Of each partition the high watermark and whether there are records, without a session."""
    rows = client.fetch_many([("t", number, offset) for number in range(partitions)], max_wait_ms=wait_ms)
    assert not any(row.error for row in rows)
    return {row.partition: (row.high_watermark, bool(row.records)) for row in rows}


def test_a_client_without_sessions_that_repeats_itself_is_recognised(harness: Harness, looked: list[Item]) -> None:
    harness.create_topic("t", 40)
    harness.settle()  # a newer image would have them looked at again
    client = Client(harness)
    nothing = dict.fromkeys(range(40), (0, False))
    assert fetch_all(client, 40) == nothing
    looked.clear()
    for _ in range(3):
        assert fetch_all(client, 40) == nothing, "all partitions, each time"
    assert looked == []
    partition = harness.node.replicas.served[TopicPartition("t", 7)]
    partition.append(build_batch([b"x"]))
    for _ in range(2):
        assert fetch_all(client, 40) == {**nothing, 7: (1, True)}
    assert {item.partition for item in looked} == {7}
    # Another client's, and bytes of another offset.
    other = Client(harness)
    looked.clear()
    for _ in range(3):
        for each in (client, other):
            assert fetch_all(each, 40)[7] == (1, True)
    assert len([item for item in looked if item.partition == 8]) == 1
    for _ in range(3):
        rows = client.fetch_many([("t", n, 0 if n != 7 else 1) for n in range(40)], max_wait_ms=20)
        assert {row.partition: row.high_watermark for row in rows} == {**dict.fromkeys(range(40), 0), 7: 1}
        assert not any(row.records for row in rows)
    client.close()
    other.close()


def test_a_repeated_fetch_is_woken_and_told_errors(harness: Harness) -> None:
    harness.create_topic("t", 10)
    client, wanted = Client(harness), [("t", number, 0) for number in range(10)]
    for _ in range(2):
        client.fetch_many(wanted, max_wait_ms=20_000 if _ else 19)
        if not _:
            harness.node.replicas.served[TopicPartition("t", 3)].append(build_batch([b"x"]))
    rows = client.fetch_many(wanted, max_wait_ms=20_000)
    assert [row.partition for row in rows if row.records] == [3]
    harness.delete_topic("t")
    rows = client.fetch_many(wanted, max_wait_ms=20_000)
    assert {row.error for row in rows} == {3}
    harness.create_topic("t", 10)
    rows = client.fetch_many(wanted, max_wait_ms=20)
    assert [(row.error, row.high_watermark) for row in rows] == [(0, 0)] * 10
    client.close()
