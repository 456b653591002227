"""Fetch sessions: which ones are evicted, what they keep, and the low cost of an idle one.

tests/conformance/apis/test_fetch_sessions.py asserts that they equal Kafka's on the wire.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.protocol.fetch import handler, sessions
from storage_node.protocol.fetch.call import FINAL_EPOCH, TURN, FetchCall, Item, Outline
from storage_node.protocol.fetch.changed_items import ChangedItems
from storage_node.protocol.fetch.sessions import (
    EVICTION,
    FORGOTTEN,
    LAST_EPOCH,
    FetchSessions,
    Session,
    Standing,
    next_epoch,
    victims,
)
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client

NOW = 1000.0
OLD = NOW - EVICTION - 1

FOLLOWER, CLIENT = True, False


@pytest.mark.parametrize(
    ("there", "new", "evicted"),
    [
        ({}, (CLIENT, 10), None),
        # A session that was not used for so long is evicted first, whatever its kind and size.
        ({1: (FOLLOWER, 99, OLD, OLD), 2: (CLIENT, 1, OLD, NOW)}, (CLIENT, 5), 1),
        # A consumer's is evicted for a larger one, if it was opened long ago.
        ({1: (CLIENT, 9, OLD, NOW), 2: (CLIENT, 8, OLD, NOW)}, (CLIENT, 10), 2),
        ({1: (CLIENT, 9, NOW, NOW), 2: (CLIENT, 8, NOW, NOW)}, (CLIENT, 10), None),
        ({1: (CLIENT, 10, OLD, NOW)}, (CLIENT, 10), None),
        ({1: (CLIENT, 11, OLD, NOW)}, (CLIENT, 10), None),
        # A follower's evicts any consumer's.
        ({1: (CLIENT, 99, NOW, NOW), 2: (CLIENT, 50, NOW, NOW)}, (FOLLOWER, 1), 2),
        ({1: (FOLLOWER, 99, NOW, NOW), 2: (FOLLOWER, 50, NOW, NOW)}, (FOLLOWER, 100), None),
        ({1: (FOLLOWER, 99, OLD, NOW), 2: (FOLLOWER, 50, NOW, NOW)}, (FOLLOWER, 100), 1),
        # A consumer's never evicts a follower's.
        ({1: (FOLLOWER, 1, OLD, NOW)}, (CLIENT, 100), None),
    ],
)
def test_session_that_is_evicted_first(there: Any, new: tuple[bool, int], evicted: int | None) -> None:
    sessions = {
        number: (Standing(privileged, size, number), opened, used)
        for number, (privileged, size, opened, used) in there.items()
    }
    assert next(iter(victims(sessions, Standing(*new), NOW)), None) == evicted


def test_sessions_are_evicted_in_order() -> None:
    """Unused sessions first, the longest unused at the front; then those that rank below the new one, lowest first."""
    sessions = {
        1: (Standing(CLIENT, 5, 1), NOW, OLD),
        2: (Standing(FOLLOWER, 5, 2), NOW, OLD - 1),
        3: (Standing(CLIENT, 9, 3), NOW, NOW),
        4: (Standing(CLIENT, 8, 4), NOW, NOW),
        5: (Standing(FOLLOWER, 9, 5), OLD, NOW),
        6: (Standing(FOLLOWER, 10, 6), OLD, NOW),
        7: (Standing(FOLLOWER, 1, 7), NOW, NOW),
    }
    assert victims(sessions, Standing(FOLLOWER, 10), NOW) == [2, 1, 4, 3, 5]
    assert victims(sessions, Standing(CLIENT, 10), NOW) == [2, 1]


def test_epochs_wrap_to_one() -> None:
    assert (next_epoch(0), next_epoch(1), next_epoch(LAST_EPOCH)) == (1, 2, 1)


class Fetcher:
    """A consumer with a session of all partitions of a topic."""

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
        """Return the partitions of the response, in its order."""
        self.send(offsets, wait_ms, **more)
        answer = self.receive()
        assert not answer.error_code, answer.error_code
        return [row.partition_index for topic in answer.responses for row in topic.partitions]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Item]]:
    """Record every item that a fetch checks."""
    found, look_up = list[Item](), handler._look_up

    def counted(node: Any, item: Item, names: Any) -> Any:
        found.append(item)
        return look_up(node, item, names)

    monkeypatch.setattr(handler, "_look_up", counted)
    yield found


def test_idle_fetch_checks_no_partition(harness: Harness, looked: list[Item]) -> None:
    harness.create_topic("t", 60)
    harness.settle()  # a newer image would make the fetch check them again
    fetcher = Fetcher(harness, "t")
    assert len(fetcher.fetch(dict.fromkeys(range(60), 0))) == 60
    looked.clear()
    for wait_ms in (0, 50, 0):
        assert fetcher.fetch(wait_ms=wait_ms) == []
    assert looked == []
    with_waiters = harness.node.replicas.served[TopicPartition("t", 7)]
    with_waiters.append(build_batch([b"x"]))
    assert fetcher.fetch() == [7]
    # The client has not advanced its offset: each fetch checks the partition until it has.
    assert {item.partition for item in looked} == {7}
    assert fetcher.fetch({7: 1}) == [] and fetcher.fetch() == []
    assert {item.partition for item in looked} == {7} and len(looked) <= 3


def test_partitions_with_records_take_turns(harness: Harness) -> None:
    harness.create_topic("t", 12)
    served = harness.node.replicas.served
    directory = served[TopicPartition("t", 0)].directory
    # (Directories are read concurrently: the first one is random.)
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


def test_advanced_log_start_is_in_the_response(harness: Harness) -> None:
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


def test_deleted_topic_is_reported_in_its_session(harness: Harness) -> None:
    harness.create_topic("t", 2)
    fetcher = Fetcher(harness, "t")
    fetcher.fetch({0: 0, 1: 0})
    fetcher.send(wait_ms=20_000)
    harness.delete_topic("t")
    answer = fetcher.receive()
    errors = {row.error_code for topic in answer.responses for row in topic.partitions}
    assert errors and errors <= {3, 100}
    harness.create_topic("t", 2)


def test_session_keeps_no_records(harness: Harness) -> None:
    harness.create_topic("t")
    partition = harness.node.replicas.served[TopicPartition("t", 0)]
    partition.append(build_batch([b"x" * 300_000]))
    fetcher = Fetcher(harness, "t")
    for _ in range(2):
        assert fetcher.fetch({0: 0}) == [0]
    (session,) = harness.node.fetch_sessions._sessions.values()
    assert all(len(item.data) == 0 for item in session.items.values())


def test_disconnected_client_misses_no_change_of_its_session(harness: Harness) -> None:
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
        # A client without a session fetches without one.
        fetchers[4].epoch = 0
        assert len(fetchers[4].fetch(everything)) == 8
        # The session of a client that claims to be a node counts as a consumer's.
        claimed = Fetcher(harness, "t")
        claimed.fetch(everything, replica_state={"replica_id": 9, "replica_epoch": -1})
        assert not claimed.session and len(sessions) == 3
        for fetcher in (*fetchers, claimed):
            fetcher.client.close()
    # A session that grows beyond the limit is closed.
    node.fetch_sessions = FetchSessions(most=10)
    one = Fetcher(harness, "t")
    one.fetch(dict.fromkeys(range(6), 0))
    one.fetch(dict.fromkeys(range(100, 110), 0))
    one.send()
    assert one.receive().error_code == 70 and len(node.fetch_sessions) == 0


def test_partitions_of_all_sessions_are_counted(harness: Harness) -> None:
    """The limit uses a count that no fetch recomputes."""
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


def test_invalid_topic_names_are_not_kept(harness: Harness) -> None:
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
    monkeypatch.setattr(sessions, "TURN", 7)
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


async def begun(sessions: FetchSessions, partitions: int, now: float, topic: str = "t") -> tuple[Session, FetchCall]:
    """Return a consumer's full fetch, which opens a session."""
    call = FetchCall(500, 1, 1 << 20, 0, 0, 0, [Item(topic, number, -1, 0, 1) for number in range(partitions)])
    session, _ = sessions.begin(call, by_id=False, now=now)
    assert session is not None
    for item in await session.ask(call):
        item.changed_items = session.changed_items
    return session, call


async def opened(sessions: FetchSessions, partitions: int, now: float, topic: str = "t") -> bool:
    """Return whether there is room for a session."""
    return sessions.keep(*await begun(sessions, partitions, now, topic), now)


@pytest.mark.parametrize("fits", [True, False])
def test_eviction_among_a_thousand_sessions_takes_one_pass_and_yields(
    monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    dropped, turns = [0], list[int]()
    monkeypatch.setattr(ChangedItems, "drop", lambda watch, item: dropped.__setitem__(0, dropped[0] + 1))

    async def make_room() -> float:
        sessions, later = FetchSessions(), NOW + EVICTION + 1
        for number in range(1000):
            assert await opened(sessions, 40, NOW, f"t{number}")
        if not fits:
            # All other sessions together do not suffice.
            last = next(reversed(sessions._sessions.values()))
            last.opened = last.used = later
        new, call = await begun(sessions, 40_000, later)
        began = time.thread_time()
        assert sessions.keep(new, call, later) is fits
        took = time.thread_time() - began
        assert (len(sessions), sessions.partitions) == ((1, 40_000) if fits else (1000, 40_000))
        while not turns or dropped[0]:
            turns.append(dropped[0])
            dropped[0] = 0
            await asyncio.sleep(0)
        return took

    assert min(asyncio.run(make_room()) for _ in range(2)) < 0.05
    assert sum(turns) == (2 * 40_000 if fits else 0) and max(turns) <= TURN


def test_requests_that_were_not_repeated_for_long_are_dropped() -> None:
    async def make_room() -> None:
        sessions = FetchSessions(most=10)
        items = [Item("t", number, -1, 0, 1) for number in range(10)]
        call = FetchCall(500, 1, 1 << 20, 0, 0, FINAL_EPOCH, items)
        session, _ = sessions.begin(call, by_id=False, now=NOW)
        assert session is not None
        await session.ask(call)
        request: Any = SimpleNamespace(connection=1)
        sessions.remember(request, Outline(12, b"", frozenset(), 10), session, call)
        assert not await opened(sessions, 10, NOW + FORGOTTEN)
        assert await opened(sessions, 10, NOW + FORGOTTEN + 1)
        assert session.closed

    asyncio.run(make_room())


def waits(session: Session) -> bool:
    return session.changed_items._future is not None


@pytest.mark.parametrize("when", ["between fetches", "while it waits"])
def test_repeated_request_is_dropped_with_its_connection(harness: Harness, when: str) -> None:
    harness.create_topic("t", 10)
    harness.settle()
    sessions, served = harness.node.fetch_sessions, harness.node.replicas.served
    served[TopicPartition("t", 0)].append(build_batch([b"x"]))
    for _ in range(3):
        client = Client(harness)
        fetch_all(client, 10, wait_ms=20_000)
        (session,) = sessions._repeated.values()
        if when == "while it waits":
            client._send_fetch([("t", number, int(number == 0)) for number in range(10)], max_wait_ms=20_000)
            until(partial(waits, session), what="the fetch waits")
        assert sum(len(partition._waiters) for partition in served.values()) == 10
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        until(lambda: not sessions._repeated, what="it is dropped")
        until(lambda: not any(partition._waiters for partition in served.values()), what="no partition is watched")
        assert sessions._held == {True: 0, False: 0} and session.closed


def fetch_all(client: Client, partitions: int, offset: int = 0, wait_ms: int = 20) -> dict[int, tuple[int, bool]]:
    """Fetch without a session; returns each partition's high watermark and whether it has records."""
    rows = client.fetch_many([("t", number, offset) for number in range(partitions)], max_wait_ms=wait_ms)
    assert not any(row.error for row in rows)
    return {row.partition: (row.high_watermark, bool(row.records)) for row in rows}


def test_repeated_request_without_a_session_is_recognised(harness: Harness, looked: list[Item]) -> None:
    harness.create_topic("t", 40)
    harness.settle()  # a newer image would make the fetch check them again
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


def test_repeated_fetch_is_woken_and_reports_errors(harness: Harness) -> None:
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
