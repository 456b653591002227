"""A follower's fetch session at its leader: an idle session counts as a fetch of its unchanged partitions."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from storage_node.protocol.fetch.sessions import EVICTION, FetchSessions
from storage_node.replication.leading import LeaderState
from tests.storage_node.replication.conftest import Led
from tests.support.nodes.hand_follower import HandFollower
from tests.support.nodes.node_harness import until
from tests.support.wire import Client

pytestmark = pytest.mark.parametrize("led", [2_000], indirect=True)


class Session:
    """A follower driven by the test that fetches in a session."""

    def __init__(self, follower: HandFollower, topic: str = "t") -> None:
        self.follower = follower
        self.topic = {"topic_id": follower.client.topic_id(topic)}
        self.id = self.epoch = 0

    def send(self, offsets: dict[int, int] | None = None, wait_ms: int = 0, broker_epoch: int | None = None) -> None:
        rows = [
            {"partition": number, "fetch_offset": at, "partition_max_bytes": 1 << 20, "log_start_offset": 0}
            for number, at in (offsets or {}).items()
        ]
        epoch = self.follower.epoch if broker_epoch is None else broker_epoch
        values = {
            "replica_state": {"replica_id": self.follower.number, "replica_epoch": epoch},
            "max_wait": timedelta(milliseconds=wait_ms), "min_bytes": 1, "max_bytes": 1 << 20,
            "session_id": self.id, "session_epoch": self.epoch,
            "topics": [self.topic | {"partitions": rows}] if rows else [],
        }  # fmt: skip
        self.follower.client.send(1, 17, values)
        self.epoch += 1

    def receive(self) -> dict[int, Any]:
        _, answer = self.follower.client.receive()
        assert not answer.error_code, answer.error_code
        self.id = answer.session_id
        return {row.partition_index: row for topic in answer.responses for row in topic.partitions}

    def fetch(self, offsets: dict[int, int] | None = None, **more: Any) -> dict[int, Any]:
        self.send(offsets, **more)
        return self.receive()


def state_of(led: Led) -> LeaderState:
    state = led.partition().leading
    assert state is not None
    return state


def idle(sessions: list[Session], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for session in sessions:
            assert session.fetch(wait_ms=50) == {}


def test_followers_that_fetch_nothing_for_long_are_in_sync_with_the_next_record(led: Led) -> None:
    led.create()
    sessions = [Session(follower) for follower in led.followers]
    for session in sessions:
        session.fetch({0: 0})
        session.fetch()
    idle(sessions, 2.5)
    led.append()
    now = time.monotonic()
    assert all(now - known.caught_up < 1 for known in state_of(led).followers.values())
    assert led.asks_for() == {1, 2, 3}


def test_follower_that_fetches_no_more_leaves_the_isr_after_the_next_record(led: Led) -> None:
    led.create()
    alive, gone = (Session(follower) for follower in led.followers)
    for session in (alive, gone):
        session.fetch({0: 0})
        session.fetch()
    idle([alive], 2.5)
    led.append()
    alive.fetch({0: 1})
    led.until_isr(1, 2)


@pytest.mark.parametrize("when", ["between fetches", "while it waits"])
def test_newer_row_makes_the_next_fetch_count(led: Led, when: str) -> None:
    """The controller removes 2 from the ISR (its directory failed), and 2 keeps fetching without a change."""
    led.create()
    sessions = [Session(follower) for follower in led.followers]
    for session in sessions:
        session.fetch({0: 0})
        session.fetch()
    partition, state = led.partition(), state_of(led)
    assert partition.row is not None
    row = replace(partition.row, isr=(1, 3), partition_epoch=partition.row.partition_epoch + 1)
    if when == "while it waits":
        sessions[0].send(wait_ms=500)
        until(lambda: led.cluster.nodes[1].fetch_sessions._sessions[sessions[0].id].changed_items._future is not None)
    partition.assign(row, partition.topic_id, 1, led.cluster.nodes[1].alter_partition_manager.brokers)
    if when == "while it waits":
        sessions[0].receive()
    else:
        assert state.followers[2].end == -1, "until it fetches again"
    sessions[0].fetch()
    assert state.followers[2].end == 0
    assert led.asks_for() == {1, 2, 3} or set(state.isr) == {1, 2, 3}


def session_of(led: Led, number: int, partitions: int, offset: int = 0) -> int:
    """Open a session as node `number` (-1: as a client), with partitions from `offset` on; return the session id."""
    client = Client(f"127.0.0.1:{led.cluster.nodes[1].port}")
    rows = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 100}
        for index in range(offset, offset + partitions)
    ]
    values: dict[str, Any] = {
        "max_wait": timedelta(0), "min_bytes": 1, "max_bytes": 100, "session_id": 0, "session_epoch": 0,
        "topics": [{"topic_id": client.topic_id("t"), "partitions": rows}],
    }  # fmt: skip
    if number >= 0:
        values["replica_state"] = {"replica_id": number, "replica_epoch": -1}
    found = client.ask(1, 17, values).session_id
    client.close()
    return int(found)


@pytest.mark.parametrize("claimed", [1, 3, 99])
def test_claimed_replica_id_evicts_no_follower(led: Led, claimed: int) -> None:
    """The node has no replicas of these partitions: 99 does not exist, and 3 has others."""
    led.create(partitions=8)
    sessions = led.cluster.nodes[1].fetch_sessions = FetchSessions(most=10)
    follower = Session(led.followers[0])
    follower.fetch(dict.fromkeys(range(8), 0))
    (kept,) = sessions._sessions.values()
    assert kept.privileged
    kept.opened -= 2 * EVICTION
    assert session_of(led, claimed, 10, 100) and len(sessions) == 2, "as a client's"
    assert follower.fetch() == {}
    # Nor does a session with one of the node's partitions and many others.
    assert not session_of(led, 3, 10, 7)
    assert follower.fetch() == {}


def test_session_of_a_client_makes_room_for_that_of_a_follower(led: Led) -> None:
    led.create(partitions=8)
    sessions = led.cluster.nodes[1].fetch_sessions = FetchSessions(slots=2)
    assert [bool(session_of(led, -1, 8)) for _ in range(3)] == [True, True, False]
    followers = [Session(follower) for follower in led.followers]
    for session in followers:
        session.fetch(dict.fromkeys(range(8), 0))
    assert all(session.id for session in followers) and sessions._held == {True: 16, False: 0}
    assert not session_of(led, -1, 8)


def test_session_is_a_followers_while_its_node_replicates_most_of_the_partitions(led: Led) -> None:
    led.create(partitions=4)
    sessions = led.cluster.nodes[1].fetch_sessions
    session = Session(led.followers[0])
    session.fetch(dict.fromkeys([0, 1, 100], 0))
    assert sessions._held == {True: 3, False: 0}
    session.fetch({101: 0})
    assert sessions._held == {True: 0, False: 4}
    session.fetch({2: 0})
    assert sessions._held == {True: 5, False: 0}


def test_session_of_an_earlier_broker_epoch_vouches_for_nothing(led: Led) -> None:
    led.create()
    session = Session(led.followers[0])
    session.fetch({0: 0})
    session.fetch()
    epoch = session.follower.epoch
    led.followers[0].register()
    rows = session.fetch(broker_epoch=epoch)
    assert rows[0].error_code, "each partition is refused, though none is named"
    known = state_of(led).followers[2]
    time.sleep(0.05)
    session.fetch(broker_epoch=epoch)
    assert state_of(led).followers[2] == known


def test_session_receives_a_new_high_watermark_unrequested(led: Led) -> None:
    led.create(partitions=2)
    two, three = (Session(follower) for follower in led.followers)
    for session in (two, three):
        session.fetch({0: 0, 1: 0})
    led.append()
    assert set(two.fetch()) == {0} and set(three.fetch()) == {0}
    assert two.fetch({0: 1}) == {}
    three.fetch({0: 1})
    assert {number: row.high_watermark for number, row in two.fetch().items()} == {0: 1}
    assert two.fetch() == {}
