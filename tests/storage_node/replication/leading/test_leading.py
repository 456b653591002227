"""A leader with followers: what consumers see, ISR membership, what acks=all waits for."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from storage_node.errors import RequestRefused
from storage_node.model.error_codes import ErrorCode
from storage_node.offset_lookup import LATEST
from tests.storage_node.replication.conftest import Led, nothing_comes, record
from tests.support.nodes.node_harness import until
from tests.support.nodes.static_image import row

LONG_LAG = pytest.mark.parametrize("led", [30_000], indirect=True)


@LONG_LAG
def test_consumers_read_up_to_the_high_watermark(led: Led) -> None:
    led.create()
    led.append(5)
    assert led.partition().high_watermark == 0
    (found,) = led.client.fetch("t", 0, 0)
    assert (found.error, found.high_watermark, found.records) == (0, 0, b"")
    # Between the high watermark and the log end: no records and no error.
    assert led.client.fetch("t", 0, 4)[0].error == 0
    assert led.client.fetch("t", 0, 6)[0].error == ErrorCode.OFFSET_OUT_OF_RANGE
    led.followers[0].fetch("t", 5)
    assert led.partition().high_watermark == 0
    led.followers[1].fetch("t", 3)
    assert led.partition().high_watermark == 3
    (found,) = led.client.fetch("t", 0, 0)
    assert found.high_watermark == 3 and found.records.count(b"value") == 3
    led.followers[1].fetch("t", 5)
    assert led.client.fetch("t", 0, 0)[0].records.count(b"value") == 5


@LONG_LAG
def test_waiting_consumer_gets_records_as_soon_as_they_are_replicated(led: Led) -> None:
    led.create()
    led.client.send_fetch("t", 0, 0, max_wait_ms=20_000)
    other = led.followers[0].client
    assert not other.produce("t", 0, record(), acks=1).error
    assert nothing_comes(led.client)
    led.followers[0].fetch("t", 1)
    led.followers[1].fetch("t", 1)
    (found,) = led.client.receive_fetch()
    assert found.records.count(b"value") == 1


@LONG_LAG
def test_follower_reads_to_the_end_and_waits_for_appends(led: Led) -> None:
    led.create()
    led.append(3)
    found = led.followers[0].fetch("t", 0)
    assert bytes(found.records).count(b"value") == 3 and found.high_watermark == 0
    led.followers[0].send("t", 0, 3, max_wait_ms=20_000)
    led.append()
    (found,) = led.followers[0].receive()
    assert bytes(found.records).count(b"value") == 1


def test_lagging_follower_leaves_the_isr_and_rejoins(led: Led) -> None:
    led.create()
    led.append(2)
    led.catch_up(2)
    until(lambda: not led.followers[0].fetch("t", 2).error_code and led.isr() == {1, 2}, what="3 is out")
    # The high watermark does not wait for it any more.
    until(lambda: led.partition().high_watermark == 2)
    status = led.cluster.nodes[1].status()
    assert (status["led"], status["under_replicated"]) == (1, 1)
    led.append()
    led.followers[0].fetch("t", 3)
    assert led.partition().high_watermark == 3
    led.catch_up(3)
    until(lambda: not led.followers[0].fetch("t", 3).error_code and led.isr() == {1, 2, 3}, what="3 is back")


def test_all_isr_changes_of_a_node_leave_it_as_one_batch(led: Led) -> None:
    before = len(led.cluster.controller.applied)
    led.create(partitions=40)
    until(lambda: all(led.isr("t", index) == {1} for index in range(40)), what="both are out everywhere")
    commands = [each for each in led.cluster.controller.applied[before:] if each["do"] == "alter_partitions"]
    assert len(commands) <= 3 and sum(len(each["partitions"]) for each in commands) == 40


def test_followers_below_the_high_watermark_stay_out(led: Led) -> None:
    led.create()
    led.append(5)
    led.until_isr(1)
    until(lambda: led.partition().high_watermark == 5)
    led.followers[0].fetch("t", 4)
    assert led.asks_for() == {1}
    until(lambda: not led.followers[0].fetch("t", 5).error_code and led.isr() == {1, 2}, what="2 is in sync")


def test_fenced_node_or_earlier_broker_epoch_is_never_in_sync(led: Led) -> None:
    led.create()
    led.append(1)
    led.until_isr(1)
    follower, controller = led.followers[0], led.cluster.controller
    old = follower.epoch
    controller.fence(2)
    controller.spread()
    assert not follower.fetch("t", 1, broker_epoch=old).error_code
    follower.register()
    assert follower.epoch > old
    # A fetch under its former broker epoch does not count.
    assert follower.fetch("t", 1, broker_epoch=old).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not follower.fetch("t", 1, broker_epoch=follower.epoch + 1).error_code
    assert led.asks_for() == {1} == led.isr()
    commands = [each for each in controller.applied if each["do"] == "alter_partitions"]
    assert all(len(part[5]) < 3 for each in commands for part in each["partitions"])
    until(lambda: not follower.fetch("t", 1).error_code and led.isr() == {1, 2}, what="2 is in sync")


@LONG_LAG
def test_leader_waits_for_the_controller_and_for_members_it_may_have_added(led: Led) -> None:
    led.create()
    led.append(2)
    led.catch_up()
    led.cluster.controller.fence(3)
    led.cluster.controller.spread()
    led.until_isr(1, 2)
    state = led.partition().leading
    assert state is not None
    led.cluster.controller.cut.add(1)
    led.followers[1].register()
    led.cluster.controller.heal(1)
    led.cluster.controller.spread()
    led.cluster.controller.cut.add(1)
    led.followers[1].fetch("t", 2)
    until(lambda: 3 in state.maximal_isr, what="the ISR with 3 is requested")
    led.append(1)
    led.followers[0].fetch("t", 3)
    # The controller may have added 3 to the ISR, but the response is missing.
    assert led.partition().high_watermark == 2 and set(state.isr) == {1, 2}
    led.followers[1].fetch("t", 3)
    assert led.partition().high_watermark == 3
    led.cluster.controller.heal(1)
    led.until_isr(1, 2, 3)


# acks=all


@LONG_LAG
def test_acks_all_waits_for_every_in_sync_replica(led: Led) -> None:
    led.create()
    led.client.send_produce("t", 0, record(), acks=-1)
    led.client.send_produce("t", 0, record(), acks=-1)
    until(lambda: led.partition().log.log_end_offset > 0)
    led.followers[0].catch_up("t")
    assert nothing_comes(led.client)
    led.followers[1].catch_up("t")
    assert led.client.receive_produce()[1].base_offset == 0
    until(lambda: led.partition().log.log_end_offset == 2)
    led.catch_up()
    _, found = led.client.receive_produce()
    assert (found.error, found.base_offset) == (0, 1)


@LONG_LAG
def test_acks_all_waits_without_holding_up_others(led: Led) -> None:
    """More producers wait than a directory's pool has threads."""
    led.create()
    waiting = [Led(led.cluster, led.followers, type(led.client)(_address(led))) for _ in range(20)]
    for one in waiting:
        one.client.send_produce("t", 0, record(), acks=-1)
    until(lambda: led.partition().log.log_end_offset == 20)
    assert led.append().base_offset == 20
    led.catch_up()
    assert sorted(one.client.receive_produce()[1].base_offset for one in waiting) == list(range(20))
    for one in waiting:
        one.client.close()


def _address(led: Led) -> str:
    return f"127.0.0.1:{led.cluster.nodes[1].port}"


def test_too_few_in_sync_replicas_refuse_acks_all_before_anything_is_appended(led: Led) -> None:
    led.create(min_insync_replicas=2)
    led.append(1)
    led.until_isr(1)
    assert led.append(acks=-1).error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.partition().log.log_end_offset == 1
    assert not led.append(acks=1).error
    assert not led.append(acks=1).error
    # Consumers do not see records on fewer than min.insync.replicas replicas.
    assert led.partition().high_watermark == 0
    until(lambda: not led.followers[0].fetch("t", 3).error_code and led.isr() == {1, 2}, what="2 is in sync")
    until(lambda: led.partition().high_watermark == 3)


def test_min_insync_replicas_is_at_most_the_number_of_replicas_and_can_be_changed(led: Led) -> None:
    led.cluster.create_topic("one", [[1]], {"min.insync.replicas": "2"})
    assert not led.append(acks=-1, topic="one").error
    led.create(min_insync_replicas=2)
    led.until_isr(1)
    assert led.append(acks=-1).error == ErrorCode.NOT_ENOUGH_REPLICAS
    admin = led.cluster.admin()
    _set(admin, "t", "min.insync.replicas", "1")
    until(lambda: not led.append(acks=-1).error)


def _set(admin: object, topic: str, name: str, value: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)  # type: ignore[attr-defined]


@pytest.mark.parametrize("led", [4000], indirect=True)
def test_in_sync_replicas_that_become_too_few_after_the_append(led: Led) -> None:
    led.create(min_insync_replicas=2)
    led.catch_up()
    led.client.send_produce("t", 0, record(), acks=-1)
    _, found = led.client.receive_produce()
    assert found.error == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert led.partition().log.log_end_offset == 1 and led.isr() == {1}


@LONG_LAG
def test_followers_that_are_late(led: Led) -> None:
    led.create()
    values = {
        "acks": -1,
        "timeout": timedelta(milliseconds=300),
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": record()}]}],
    }
    begun = time.monotonic()
    answer = led.client.ask(0, 10, values)
    found = answer.responses[0].partition_responses[0]
    assert int(found.error_code) == ErrorCode.REQUEST_TIMED_OUT and 0.25 < time.monotonic() - begun < 20
    state = led.partition().leading
    # No wait is left, and the connection still works.
    assert state is not None and not state._waits
    led.catch_up()
    led.client.send_produce("t", 0, record(), acks=1)
    assert led.client.receive_produce()[1].base_offset == 1


@LONG_LAG
def test_leadership_is_lost_while_acks_all_and_a_consumer_wait(led: Led) -> None:
    led.create()
    led.append(2)
    led.catch_up()
    reader = type(led.client)(_address(led))
    reader.send_fetch("t", 0, 2, max_wait_ms=20_000)
    led.client.send_produce("t", 0, record(), acks=-1)
    until(lambda: led.partition().log.log_end_offset == 3)
    partition = led.partition()
    there = partition.row
    assert there is not None
    partition.assign(row(epoch=there.leader_epoch + 1, leader=2), partition.topic_id, 1, {})
    assert led.client.receive_produce()[1].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert reader.receive_fetch()[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    reader.close()
    assert partition.leading is None and partition.high_watermark == 2


@LONG_LAG
def test_new_leader_serves_only_records_known_to_be_replicated(led: Led) -> None:
    led.create()
    led.append(3)
    partition = led.partition()
    there = partition.row
    assert there is not None
    partition.assign(row(epoch=there.leader_epoch + 1, leader=2), partition.topic_id, 1, {})
    partition.assign(row(epoch=there.leader_epoch + 2, leader=1), partition.topic_id, 1, {1: 1, 2: 1, 3: 1})
    with pytest.raises(RequestRefused) as caught:
        partition.find_offset(LATEST)
    assert caught.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert partition.find_offset(LATEST, to_end=True).offset == 3
    state = partition.leading
    assert state is not None and state.epoch_start == 3
    for number in (2, 3):
        state.fetched(number, 3, 0, time.monotonic(), 1)
    assert partition.find_offset(LATEST).offset == 3


@LONG_LAG
def test_records_are_deleted_when_the_followers_have_deleted_them(led: Led) -> None:
    led.create()
    led.append(5)
    led.catch_up()
    request = {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 4}]}],
        "timeout": timedelta(seconds=20),
    }
    led.followers[0].send("t", 0, 5, max_wait_ms=20_000)
    led.client.send(21, 2, request)
    # The response comes at once, before the fetch's max wait time.
    (found,) = led.followers[0].receive()
    assert found.log_start_offset == 4
    led.followers[0].fetch("t", 5, log_start=4)
    assert nothing_comes(led.client)
    led.followers[1].fetch("t", 5, log_start=4)
    _, answer = led.client.receive()
    (done,) = answer.topics[0].partitions
    assert (int(done.error_code), done.low_watermark) == (0, 4)
    request["timeout"] = timedelta(milliseconds=200)
    request["topics"][0]["partitions"][0]["offset"] = -1  # type: ignore[index]
    (done,) = led.client.ask(21, 2, request).topics[0].partitions
    assert int(done.error_code) == ErrorCode.REQUEST_TIMED_OUT


@LONG_LAG
def test_what_waits_for_followers_holds_no_memory_of_requests(led: Led) -> None:
    """Otherwise the fetches that it waits for might find no memory."""
    led.create()
    large = record(b"x" * 500_000)
    waiting = [type(led.client)(_address(led)) for _ in range(4)]
    for client in waiting:
        client.send_produce("t", 0, large, acks=-1)
    until(lambda: led.partition().log.log_end_offset == 4)
    listener = led.cluster.nodes[1].listener
    until(lambda: all(row["request_bytes"] == 0 for row in listener.view()["connections"]))
    led.catch_up()
    assert sorted(client.receive_produce()[1].base_offset for client in waiting) == [0, 1, 2, 3]
    for client in waiting:
        client.close()
