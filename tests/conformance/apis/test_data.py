"""Every API in every version that both kinds speak: what is answered for what is there, and for what is not."""

from __future__ import annotations

import time
import uuid
from typing import Any

from storage_node.log.batches.batch import build_batch
from tests.conformance.apis.calls import (
    BAD_ACKS,
    CLIENTS,
    ILLEGAL_SASL_STATE,
    INVALID,
    INVALID_TOPIC,
    NO_ENDPOINT,
    NODE,
    NOT_AUTHORIZED,
    NOT_LEADER,
    OUT_OF_RANGE,
    SOON,
    UNKNOWN,
    UNKNOWN_EPOCH,
    UNKNOWN_ID,
    UNSUPPORTED,
    WRONG_ENDPOINT,
    batch,
    code,
    versions,
)
from tests.conformance.clusters import Cluster
from tests.support.wire import Client, key_of


def test_both_ends_meet_in_the_versions_of_a_4x_client(client: Client) -> None:
    for version in versions("ApiVersions"):
        answer = client.call("ApiVersions", version)
        assert code(answer) == 0
        offered = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        for name, (low, high) in CLIENTS.items():
            from_, to = offered[key_of(name)]
            assert from_ <= low and high <= to, f"{name}: {from_}-{to}, not {low}-{high}"


def test_who_has_no_proper_name_is_refused(client: Client) -> None:
    for version in (3, 4):
        for software in ("-x", "", "a b", "x-"):
            answer = client.call("ApiVersions", version, client_software_name=software, client_software_version="1")
            assert (code(answer), answer.api_keys) == (INVALID, ())


def test_sasl_on_a_listener_without_it_is_rejected_at_once(client: Client) -> None:
    for version in versions("SaslHandshake"):
        answer = client.call("SaslHandshake", version, mechanism="PLAIN")
        assert (code(answer), answer.mechanisms) == (ILLEGAL_SASL_STATE, ())
    for version in versions("SaslAuthenticate"):
        answer = client.call("SaslAuthenticate", version, auth_bytes=b"\0alice\0secret")
        assert (code(answer), answer.auth_bytes) == (ILLEGAL_SASL_STATE, b"")
        assert answer.error_message
    assert code(client.call("ApiVersions", 4, client_software_name="c", client_software_version="1")) == 0


def test_metadata_in_every_version(client: Client, cluster: Cluster, topic: str) -> None:
    for version in versions("Metadata"):
        names = [{"name": name} for name in (topic, "no-such-topic", "no@name")]
        answer = client.call("Metadata", version, topics=names, allow_auto_topic_creation=False)
        rows = {row.name: row for row in answer.topics}
        assert {name: code(row) for name, row in rows.items()} == {topic: 0, "no-such-topic": UNKNOWN, "no@name": 17}
        parts = sorted(rows[topic].partitions, key=lambda row: row.partition_index)
        assert [(row.leader_id, tuple(row.replica_nodes), tuple(row.isr_nodes)) for row in parts] == [
            (1, (1,), (1,)),
            (1, (1,), (1,)),
            (2, (2,), (2,)),
        ]
        assert {getattr(row, "offline_replicas", ()) for row in parts} == {()}
        assert sorted(row.node_id for row in answer.brokers) == [1, 2, 3]
        assert topic in {
            row.name for row in client.call("Metadata", version, topics=() if version == 0 else None).topics
        }
        if version > 0:
            assert client.call("Metadata", version, topics=()).topics == ()
        if version >= 10:
            known = rows[topic].topic_id
            asked = client.call("Metadata", version, topics=[{"name": topic, "topic_id": known}]).topics
            assert [code(row) for row in asked] == [INVALID if version < 12 else 0]
        if version >= 12:
            asked = client.call("Metadata", version, topics=[{"name": None, "topic_id": known}]).topics
            assert [(row.name, code(row)) for row in asked] == [(topic, 0)]
            asked = client.call("Metadata", version, topics=[{"name": None, "topic_id": uuid.uuid4()}]).topics
            assert [(row.name, code(row)) for row in asked] == [(None, UNKNOWN_ID)]


def test_what_may_be_done_where_nobody_is_kept_out(client: Client, topic: str) -> None:
    for version in range(8, 14):
        values = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        answer = client.call("Metadata", version, topics=[{"name": topic}], **values)
        assert answer.topics[0].topic_authorized_operations == 3576
        assert getattr(answer, "cluster_authorized_operations", 8096) == 8096
    for version in versions("DescribeCluster"):
        answer = client.call("DescribeCluster", version, endpoint_type=1, include_cluster_authorized_operations=True)
        assert answer.cluster_authorized_operations == 8096


def test_cluster_is_described_to_who_asks_for_brokers(client: Client, cluster: Cluster) -> None:
    for version in versions("DescribeCluster"):
        answer = client.call("DescribeCluster", version, endpoint_type=1)
        found = {row.broker_id: f"{row.host}:{row.port}" for row in answer.brokers}
        assert found == cluster.addresses and answer.cluster_id
        if version >= 1:
            answer = client.call("DescribeCluster", version, endpoint_type=2)
            assert (code(answer), answer.error_message) == (
                WRONG_ENDPOINT,
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
            )
            answer = client.call("DescribeCluster", version, endpoint_type=7)
            assert (code(answer), answer.error_message) == (NO_ENDPOINT, "Unsupported endpoint type 7")


def test_topics_are_described_page_by_page(client: Client, cluster: Cluster, topic: str) -> None:
    def ask(names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
        begin = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        topics = [{"name": name} for name in names]
        return client.call("DescribeTopicPartitions", 0, topics=topics, response_partition_limit=limit, cursor=begin)

    def rows(answer: Any) -> list[tuple[str, int, list[int]]]:
        return [(t.name, code(t), [p.partition_index for p in t.partitions]) for t in answer.topics]

    last = f"{topic}z"
    assert rows(ask([last, topic, "no@name"])) == [
        ("no@name", INVALID_TOPIC, []),
        (topic, 0, [0, 1, 2]),
        (last, UNKNOWN, []),
    ]
    answer = ask([topic], 2)
    assert rows(answer) == [(topic, 0, [0, 1])]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == (topic, 2)
    answer = ask([topic, last], 3)
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == (last, 0)
    assert rows(ask([topic], 0)) == [(topic, 0, [0])]
    answer = ask([topic, last], 2000, (topic, 1))
    assert rows(answer)[0] == (topic, 0, [1, 2]) and answer.next_cursor is None
    assert rows(ask([topic], 2000, (topic, 99))) == [(topic, 0, [])]
    for cursor in (("zzz", 0), (topic, -1)):
        assert rows(ask([topic], 2000, cursor)) == [(topic, INVALID, [])]
    everything = [name for name, _, _ in rows(ask([]))]
    assert topic in everything and everything == sorted(everything)
    part = ask([topic]).topics[0].partitions[0]
    assert (part.leader_id, part.eligible_leader_replicas, part.last_known_elr) == (1, (), ())


def test_produce_and_fetch_in_every_version(client: Client, cluster: Cluster, topic: str) -> None:
    records, end = batch(b"abc"), 0
    for version in versions("Produce"):
        row = client.produce(topic, 0, records, version=version)
        assert (row.error, row.base_offset) == (0, end)
        end += 1
        assert client.produce(topic, 9, records, version=version).error == UNKNOWN
        assert client.produce(topic, 2, records, version=version).error == NOT_LEADER
        assert client.produce(topic, 0, records, version=version, acks=7).error == BAD_ACKS
    for version in versions("Fetch"):
        (row,) = client.fetch(topic, 0, 0, version=version)
        assert row.error == 0 and row.high_watermark == end and row.records.count(b"abc") == end
        assert [r.error for r in client.fetch(topic, 0, end + 1, version=version)] == [OUT_OF_RANGE]
        assert [r.error for r in client.fetch(topic, 9, 0, version=version)] == [UNKNOWN]
        assert [r.error for r in client.fetch(topic, 2, 0, version=version)] == [NOT_LEADER]
        if version >= 9:
            assert [r.error for r in client.fetch(topic, 0, 0, version=version, leader_epoch=99)] == [UNKNOWN_EPOCH]


def test_who_asks_for_no_answer_loses_the_connection_by_an_error(cluster: Cluster, topic: str) -> None:
    good, damaged = batch(b"abc"), bytearray(batch(b"abc"))
    damaged[-1] ^= 1
    end = 0
    for version in (3, 9, 13):
        for partition, records in ((9, good), (2, good), (0, bytes(damaged)), (0, b"")):
            client = cluster.wire(NODE)
            # An answer says that the connection is not closed for what went well.
            client.send_produce(topic, 0, good, version=version, acks=0)
            assert client.produce(topic, 0, good, version=version, acks=1).base_offset == end + 1
            end += 2
            client.send_produce(topic, partition, records, version=version, acks=0)
            assert client.closed(), (version, partition, records)
    assert cluster.end_offset(topic, 0) == end


def test_topic_ids_that_nobody_has_and_fetch_sessions_that_are_none(client: Client, topic: str) -> None:
    client.topic_id(topic)
    for id_ in (uuid.uuid4(), None):
        rows = [{"index": 0, "records": batch(b"x")}]
        topics = [{"topic_id": id_, "partition_data": rows}]
        (made,) = client.call("Produce", 13, acks=-1, timeout=SOON, topic_data=topics).responses
        assert made.topic_id == id_ and code(made.partition_responses[0]) == UNKNOWN_ID
        for version in range(13, 19):
            wanted = [{"topic_id": id_, "partitions": [{"partition": 0, "partition_max_bytes": 100}]}]
            answer = client.call("Fetch", version, max_bytes=100, session_epoch=-1, topics=wanted)
            assert code(answer) == 0 and code(answer.responses[0].partitions[0]) == UNKNOWN_ID
    for version in range(7, 19):
        answer = client.call("Fetch", version, max_bytes=100, session_id=5, session_epoch=3, topics=())
        assert (code(answer), answer.session_id, answer.responses) == (70, 0, ())


def test_request_to_a_node_that_does_not_lead_returns_the_leader(client: Client, cluster: Cluster, topic: str) -> None:
    host, _, port = cluster.address(2).rpartition(":")
    rows = [{"index": 2, "records": batch(b"x")}]
    for version in (10, 12, 13):
        topics = [{"name": topic, "topic_id": client.topic_id(topic), "partition_data": rows}]
        answer = client.call("Produce", version, acks=-1, timeout=SOON, topic_data=topics)
        part = answer.responses[0].partition_responses[0]
        assert (code(part), part.current_leader.leader_id) == (NOT_LEADER, 2)
        assert [(n.node_id, n.host, n.port) for n in answer.node_endpoints] == [(2, host, int(port))]
    for version in (16, 17, 18):
        wanted = [{"topic_id": client.topic_id(topic), "partitions": [{"partition": 2, "partition_max_bytes": 100}]}]
        answer = client.call("Fetch", version, max_bytes=100, session_epoch=-1, topics=wanted)
        part = answer.responses[0].partitions[0]
        assert (code(part), part.current_leader.leader_id) == (NOT_LEADER, 2)
        assert [(n.node_id, n.host, n.port) for n in answer.node_endpoints] == [(2, host, int(port))]


def test_offsets_by_their_times_in_every_version(client: Client, topic: str) -> None:
    base = int(time.time() * 1000)
    for offset in range(3):
        assert client.produce(topic, 0, batch(b"x", at=base + offset)).base_offset == offset
    first_known = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99}
    expected = {
        -1: (3, -1),
        -2: (0, -1),
        -3: (2, base + 2),
        -4: (0, -1),
        -5: (-1, -1),
        -6: (-1, -1),
        base + 1: (1, base + 1),
        base + 9000: (-1, -1),
    }

    def ask(version: int, index: int = 0, timestamp: int = -1, epoch: int = -1) -> Any:
        rows = [{"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}]
        topics = [{"name": topic, "partitions": rows}]
        return client.call("ListOffsets", version, replica_id=-1, timeout=SOON, topics=topics).topics[0].partitions[0]

    for version in versions("ListOffsets"):
        for timestamp in (*expected, -7):
            row = ask(version, timestamp=timestamp)
            if timestamp < 0 and version < first_known[timestamp]:
                assert (code(row), row.offset, row.timestamp) == (UNSUPPORTED, -1, -1), (version, timestamp)
            else:
                assert (code(row), (row.offset, row.timestamp)) == (0, expected[timestamp]), (version, timestamp)
                if version >= 4:
                    assert row.leader_epoch == (0 if row.offset >= 0 else -1)
        assert code(ask(version, 9)) == UNKNOWN and code(ask(version, 2)) == NOT_LEADER
        if version >= 4:
            assert code(ask(version, epoch=99)) == UNKNOWN_EPOCH
        twice = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}] * 2
        answer = client.call("ListOffsets", version, replica_id=-1, topics=[{"name": topic, "partitions": twice}])
        assert [code(row) for row in answer.topics[0].partitions] == [INVALID]


def test_where_leader_epochs_end(client: Client, topic: str) -> None:
    client.produce(topic, 0, batch(*[b"x"] * 4))
    for version in versions("OffsetForLeaderEpoch"):
        asked = [(0, -1, 0), (0, -1, 5), (0, -1, -1), (0, 99, 0), (0, 0, 0), (1, -1, 0), (9, -1, 0), (2, -1, 0)]
        rows = [{"partition": p, "current_leader_epoch": now, "leader_epoch": epoch} for p, now, epoch in asked]
        topics = [{"topic": topic, "partitions": rows}]
        (found,) = client.call("OffsetForLeaderEpoch", version, replica_id=-1, topics=topics).topics
        none = (-1, -1)
        assert [(code(row), (row.leader_epoch, row.end_offset)) for row in found.partitions] == [
            (0, (0, 4)),
            (0, none),
            (0, none),
            (UNKNOWN_EPOCH, none),
            (0, (0, 4)),
            (0, (0, 0)),
            (UNKNOWN, none),
            (NOT_LEADER, none),
        ]


def test_producer_ids_are_new_ones_and_halves_are_refused(client: Client, cluster: Cluster) -> None:
    seen: set[int] = set()
    for version in versions("InitProducerId"):

        def ask(version: int = version, **values: Any) -> Any:
            return client.call(
                "InitProducerId", version, transaction_timeout=SOON, **{"transactional_id": None} | values
            )

        made = cluster.eventually(lambda ask=ask: (row := ask()) and code(row) == 0 and row)  # type: ignore[misc]
        assert made.producer_epoch == 0 and made.producer_id not in seen
        seen.add(made.producer_id)
        assert code(ask(transactional_id="")) == INVALID
        if version >= 3:
            again = ask(producer_id=made.producer_id, producer_epoch=3)
            assert (code(again), again.producer_epoch) == (0, 0) and again.producer_id not in seen
            seen.add(again.producer_id)
            assert code(ask(producer_id=7)) == code(ask(producer_epoch=7)) == INVALID


def test_init_producer_id_with_a_transactional_id_where_transactions_are_not_offered(
    client: Client, cluster: Cluster
) -> None:
    for version in versions("InitProducerId"):
        known = f"transactional-{uuid.uuid4().hex[:8]}"
        if cluster.differs("no-transactions"):
            answer = client.call("InitProducerId", version, transaction_timeout=SOON, transactional_id=known)
            assert (code(answer), answer.producer_id) == (NOT_AUTHORIZED, -1)
            sent = batch(b"x")
            topic = cluster.new_topic(assignment={0: [NODE]})
            client.send_produce(topic, 0, sent, transactional_id=known)
            assert client.receive_produce()[1].error == NOT_AUTHORIZED


def test_producers_of_a_partition_are_described(client: Client, cluster: Cluster) -> None:
    topic, copied = cluster.new_topic(assignment={0: [NODE], 1: [2]}), cluster.new_topic(assignment={0: [2, NODE]})
    now = int(time.time() * 1000)
    made = cluster.eventually(
        lambda: (
            row := client.call("InitProducerId", 4, transaction_timeout=SOON, transactional_id=None)
        ) and code(row) == 0 and row
    )  # fmt: skip
    sent = build_batch([b"x"] * 3, producer_id=made.producer_id, producer_epoch=0, base_sequence=0, timestamp=now)
    assert client.produce(topic, 0, sent).error == 0
    leader = cluster.wire(2)
    assert leader.produce(copied, 0, sent).error == 0

    def described(at: Client, index: int, name: str = topic) -> tuple[int, list[tuple[int, ...]]]:
        topics = [{"name": name, "partition_indexes": [index]}]
        (row,) = at.call("DescribeProducers", 0, topics=topics).topics[0].partitions
        assert row.partition_index == index and (row.error_message is None or code(row))
        return code(row), [
            (
                each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp,
                each.coordinator_epoch, each.current_txn_start_offset,
            )
            for each in row.active_producers
        ]  # fmt: skip

    expected = (0, [(made.producer_id, 0, 2, now + 2, -1, -1)])
    assert described(client, 0) == expected and described(leader, 0, copied) == expected
    # Also a follower's replica is described, and not only by the leader's word.
    cluster.eventually(lambda: described(client, 0, copied) == expected)
    assert described(leader, 1) == (0, [])
    assert described(client, 1) == (NOT_LEADER, [])
    assert described(client, 9) == described(client, -1) == described(client, 0, "no-such-topic") == (UNKNOWN, [])


def test_records_are_deleted_up_to_an_offset(client: Client, topic: str) -> None:
    client.produce(topic, 0, batch(*[b"x"] * 9))
    for version in versions("DeleteRecords"):

        def ask(index: int, offset: int, version: int = version) -> tuple[int, int]:
            rows = [{"partition_index": index, "offset": offset}]
            answer = client.call("DeleteRecords", version, topics=[{"name": topic, "partitions": rows}], timeout=SOON)
            (row,) = answer.topics[0].partitions
            return code(row), row.low_watermark

        assert ask(0, version + 2) == (0, version + 2)
        assert ask(0, 99) == ask(0, -2) == (OUT_OF_RANGE, -1)
        assert ask(9, 1) == (UNKNOWN, -1) and ask(2, 0) == (NOT_LEADER, -1)
    assert ask(0, -1) == (0, 9)
