"""AlterReplicaLogDirs and DescribeLogDirs as Kafka's admin clients see them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, KafkaAdminClient

from storage_node import alter_log_dirs
from storage_node.directories.directory import LogDirectory, Usage
from storage_node.errors import RequestRefused
from storage_node.model.assignment import Assignment
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage
from storage_node.move.status import MoveState
from storage_node.publisher import creation
from tests.support.nodes.node_harness import Harness, running, until

NONE, STORAGE_ERROR, NO_SUCH_DIR = "NoError", "KafkaStorageError", "LogDirNotFoundError"


@pytest.fixture
def admin(harness: Harness) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
    yield client
    client.close()


def ask(admin: KafkaAdminClient, wanted: dict[tuple[str, int], str]) -> dict[tuple[str, int], str]:
    """Ask for directories; answers the name of the error class per replica."""
    answer = admin.alter_replica_log_dirs({(topic, part, 1): path for (topic, part), path in wanted.items()})
    return {(replica.topic, replica.partition): error.__name__ for replica, error in answer.items()}


def describe(admin: KafkaAdminClient, **kwargs: Any) -> dict[str, Any]:
    (broker,) = admin.describe_log_dirs(**kwargs)
    return {row["log_dir"]: row for row in broker["log_dirs"]}


def replicas(row: dict[str, Any]) -> dict[tuple[str, int, bool], dict[str, Any]]:
    return {
        (topic["name"], part["partition_index"], part["is_future_key"]): part
        for topic in row["topics"]
        for part in topic["partitions"]
    }


@pytest.mark.conformance(3, 5, 6)
@pytest.mark.feature("113-03", "113-45")
def test_each_replica_has_its_own_result_and_good_ones_move(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.create_topic("t", 3)
    harness.produce("t", [b"x" * 100] * 50)
    target = harness.other_directory("t", 0)
    wanted = {("t", 0): target, ("t", 1): "/nowhere", ("unknown", 0): target, ("unknown", 1): "/nowhere"}
    assert ask(admin, wanted | {("t", 9): target}) == {
        ("t", 0): NONE,
        ("t", 1): NO_SUCH_DIR,
        ("unknown", 0): "UnknownTopicOrPartitionError",
        ("unknown", 1): NO_SUCH_DIR,
        ("t", 9): "UnknownTopicOrPartitionError",
    }
    until(lambda: harness.directory_of("t", 0) == target)
    assert [m.value() for m in harness.consume("t", 50)] == [b"x" * 100] * 50


@pytest.mark.conformance(24, 25, 26)
@pytest.mark.feature("113-04", "113-31", "113-32", "113-33", "113-34", "113-43", "113-44")
def test_both_copies_are_listed_as_soon_as_the_response_arrives(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"x" * 1000] * 100)
    source, target = harness.directory_of("t"), harness.other_directory("t")
    assert ask(admin, {("t", 0): target}) == {("t", 0): NONE}
    assert (Path(target) / "t-0.move" / "partition.move").exists()
    rows = describe(admin)
    assert set(rows) == set(harness.paths)
    current = replicas(rows[source])[("t", 0, False)]
    copy = replicas(rows[target])[("t", 0, True)]
    assert current["offset_lag"] == 0 and copy["offset_lag"] == 100
    size = sum(path.stat().st_size for path in (Path(source) / "t-0").glob("*.log"))
    assert current["partition_size"] == size > 100_000
    assert all(row["error_code"] == 0 and 0 < row["usable_bytes"] <= row["total_bytes"] for row in rows.values())
    (planned,) = harness.controller.planned
    assert (planned.source, planned.directory) == (source, target) and planned.claim > 0
    harness.controller.run_move(harness.node, planned)
    rows = describe(admin)
    assert replicas(rows[source]) == {}
    assert replicas(rows[target])[("t", 0, False)]["partition_size"] == size


@pytest.mark.conformance(28)
@pytest.mark.feature("113-31")
def test_filter_chooses_replicas_and_never_directories(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.create_topic("t", 2)
    harness.create_topic("u", 1)
    rows = describe(admin, topic_partitions={"t": [1]})
    assert set(rows) == set(harness.paths)
    assert [key for row in rows.values() for key in replicas(row)] == [("t", 1, False)]
    rows = describe(admin, topic_partitions={"nothing": [0]})
    assert set(rows) == set(harness.paths)
    assert all(row["topics"] == [] and row["error_code"] == 0 for row in rows.values())


@pytest.mark.conformance(19, 20)
@pytest.mark.feature("113-05")
@pytest.mark.parametrize("how", ["any", "current directory"])
def test_cancel_removes_the_copy(harness: Harness, admin: KafkaAdminClient, how: str) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"x"] * 10)
    source, target = harness.directory_of("t"), harness.other_directory("t")
    ask(admin, {("t", 0): target})
    harness.controller.away = True  # a cancel asks nobody
    assert ask(admin, {("t", 0): "any" if how == "any" else source}) == {("t", 0): NONE}
    assert not (Path(target) / "t-0.move").exists()
    assert replicas(describe(admin)[target]) == {}
    assert harness.directory_of("t") == source
    assert len(harness.consume("t", 10)) == 10
    harness.controller.away = False
    harness.settle()
    row = harness.controller.image.partition(TopicPartition("t", 0))
    assert row is not None and row.directory_of(1) == harness.node.dirs.by_path(source).id
    assert harness.node.dirs.by_path(target).id not in {told.directory_id for told in harness.controller.assigned}


@pytest.mark.conformance(4, 18)
@pytest.mark.feature("113-08")
def test_repeated_requests_and_a_new_target(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"x"] * 10)
    source = harness.directory_of("t")
    first, second = (path for path in harness.paths if path != source)
    assert ask(admin, {("t", 0): source}) == {("t", 0): NONE}
    assert harness.controller.planned == []
    assert ask(admin, {("t", 0): first}) == {("t", 0): NONE}
    assert ask(admin, {("t", 0): first}) == {("t", 0): NONE}
    assert len(harness.controller.planned) == 1
    assert ask(admin, {("t", 0): second}) == {("t", 0): NONE}
    assert not (Path(first) / "t-0.move").exists() and (Path(second) / "t-0.move").exists()
    old, new = harness.controller.planned
    assert new.claim > old.claim
    assert "StaleClaim" in harness.controller.run_move(harness.node, old)
    assert harness.controller.run_move(harness.node, new) == "swapped"
    assert harness.directory_of("t") == second


@pytest.mark.conformance(1, 2)
@pytest.mark.feature("113-06", "113-07")
def test_preferred_log_dir_of_a_replica_that_does_not_exist_yet_places_it(
    harness: Harness, admin: KafkaAdminClient
) -> None:
    target = harness.paths[2]
    wanted = {("later", part): target for part in range(4)}
    assert ask(admin, wanted) == dict.fromkeys(wanted, "UnknownTopicOrPartitionError")
    assert not [path for disk in harness.paths for path in Path(disk).glob("later-*")]
    harness.restart()  # Kafka forgets it here
    harness.create_topic("later", 4)
    assert {harness.directory_of("later", part) for part in range(4)} == {target}


@pytest.mark.feature("113-05", "113-07")
def test_any_removes_a_preferred_log_dir(harness: Harness, admin: KafkaAdminClient) -> None:
    """KIP-113: "any" cancels what was asked for before."""
    wanted = {("later", part): harness.paths[2] for part in range(3)}
    ask(admin, wanted)
    assert ask(admin, {("later", 0): "any"}) == {("later", 0): "UnknownTopicOrPartitionError"}
    harness.restart()
    left = {part for part in range(3) if harness.node.preferred_log_dirs.get(TopicPartition("later", part)) is not None}
    assert left == {1, 2}
    harness.create_topic("later", 3)
    assert [harness.directory_of("later", part) == harness.paths[2] for part in range(3)] == [False, True, True]


@pytest.mark.parametrize("in_time", [True, False])
def test_preferred_log_dir_of_a_replica_under_creation_is_kept(
    harness: Harness, admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    make, asked, go_on = creation.create_logs, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        asked.set()
        assert go_on.wait(30)
        return make(*arguments)

    monkeypatch.setattr(creation, "create_logs", slow)
    if not in_time:
        monkeypatch.setattr(alter_log_dirs, "MAKING_PATIENCE", 0.2)
    with ThreadPoolExecutor(2) as pool:
        try:
            pool.submit(harness.create_topic, "late", 3)
            assert asked.wait(30)
            wanted = {("late", part): harness.paths[2] for part in range(3)}
            answer = pool.submit(ask, admin, wanted)
            if in_time:
                until(lambda: harness.node.log_dirs.waiting == 3, what="the request waits for the replicas")
                go_on.set()
                assert answer.result(30) == dict.fromkeys(wanted, "NoError")
                for part in range(3):
                    until(lambda part=part: harness.directory_of("late", part) == harness.paths[2], what="it is there")
            else:
                assert answer.result(30) == dict.fromkeys(wanted, "RequestTimedOutError")
        finally:
            go_on.set()
    # What was answered has no effect later on.
    assert harness.node.preferred_log_dirs.get(TopicPartition("late", 0)) is None


@pytest.mark.conformance(12)
@pytest.mark.feature("113-06")
def test_replica_on_another_node_is_not_available(harness: Harness, admin: KafkaAdminClient) -> None:
    away = PartitionImage(0, Assignment((2,)), directories=("",), generations=(0,), isr=(2,), leader=2)
    topic = TopicImage("away", "B" + "A" * 21, {}, (away,))
    other = NodeImage(2, "x", 1, "127.0.0.1", 1)
    image = harness.controller.image
    harness.controller.image = replace(
        image, version=image.version + 1, topics={"away": topic}, nodes={**image.nodes, 2: other}
    )
    harness.node.apply_images([harness.controller.image.encode()])
    assert ask(admin, {("away", 0): harness.paths[1]}) == {("away", 0): "ReplicaNotAvailableError"}


@pytest.mark.conformance(11)
def test_without_a_controller_nothing_is_left_on_disk(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.create_topic("t", 4)
    harness.create_topic("u", 3)
    harness.controller.away = True
    places = [(topic, part) for topic, count in (("t", 4), ("u", 3)) for part in range(count)]
    wanted = {place: harness.other_directory(*place) for place in places}
    assert len(set(wanted.values())) > 1
    assert ask(admin, wanted) == dict.fromkeys(wanted, "RequestTimedOutError")
    assert not [path for disk in harness.paths for path in Path(disk).glob("*.move")]


@pytest.mark.conformance(11, 18)
def test_without_a_controller_a_new_target_leaves_the_running_move_alone(
    harness: Harness, admin: KafkaAdminClient
) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"x"] * 10)
    first, second = (path for path in harness.paths if path != harness.directory_of("t"))
    assert ask(admin, {("t", 0): first}) == {("t", 0): NONE}
    harness.controller.away = True
    assert ask(admin, {("t", 0): second}) == {("t", 0): "RequestTimedOutError"}
    rows = describe(admin)
    assert ("t", 0, True) in replicas(rows[first]) and not replicas(rows[second])
    (planned,) = harness.controller.planned
    assert harness.controller.run_move(harness.node, planned) == "swapped"
    assert harness.directory_of("t") == first


def test_while_moves_are_stopped_a_new_target_leaves_the_stopped_move_alone(
    harness: Harness, admin: KafkaAdminClient
) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t")
    first, second = (path for path in harness.paths if path != harness.directory_of("t"))
    assert ask(admin, {("t", 0): first}) == {("t", 0): NONE}
    harness.node.engine.stop_moves()
    assert ask(admin, {("t", 0): second}) == {("t", 0): "PolicyViolationError"}
    assert ("t", 0, True) in replicas(describe(admin)[first])
    harness.node.engine.resume_moves()
    (planned,) = harness.controller.planned
    assert harness.controller.run_move(harness.node, planned) == "swapped"


@pytest.mark.parametrize("trouble", ["full", "taken", "hangs"])
def test_new_target_that_is_refused_leaves_the_running_copy_alone(
    harness: Harness, admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"x"] * 10)
    first, second = (path for path in harness.paths if path != harness.directory_of("t"))
    assert ask(admin, {("t", 0): first}) == {("t", 0): NONE}
    hanging, usage = threading.Event(), LogDirectory.usage

    def in_trouble(directory: LogDirectory) -> Usage:
        if directory.name == second and trouble == "hangs":
            assert hanging.wait(30)
        return Usage(1 << 30, 10) if directory.name == second and trouble == "full" else usage(directory)

    monkeypatch.setattr(LogDirectory, "usage", in_trouble)
    monkeypatch.setattr(alter_log_dirs, "DEFAULT_TIMEOUT", 1.0)
    if trouble == "taken":
        (Path(second) / "t-0.move").mkdir()
    (code,) = ask(admin, {("t", 0): second}).values()
    hanging.set()
    assert code == {"full": STORAGE_ERROR, "taken": "UnknownError", "hangs": "RequestTimedOutError"}[trouble]
    status = harness.node.engine.status(TopicPartition("t", 0))
    assert status is not None and (status.directory, status.state.under_way) == (first, True)
    (planned,) = harness.controller.planned
    assert harness.controller.run_move(harness.node, planned) == "swapped"
    assert harness.directory_of("t") == first


@pytest.mark.parametrize("before", ["nothing", "one that fails", "one that hangs"])
def test_room_for_one_lets_one_of_many_running_copies_go_to_a_new_target(
    harness: Harness, admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    harness.controller.hold_moves = True
    source, first, second = harness.paths
    places = [("t", part) for part in range(4)]
    ask(admin, dict.fromkeys(places, source))
    harness.create_topic("t", 4)
    for _, part in places:
        harness.produce("t", [b"x" * 1000] * 100, partition=part)
    assert set(ask(admin, dict.fromkeys(places, first)).values()) == {NONE}
    usage, size, go_on = LogDirectory.usage, 100_000, threading.Event()

    def room_for_one(directory: LogDirectory) -> Usage:
        assert directory.name != second or before != "one that hangs" or go_on.wait(30)
        return Usage(1 << 40, size + (1 << 20) + size // 2) if directory.name == second else usage(directory)

    monkeypatch.setattr(LogDirectory, "usage", room_for_one)
    monkeypatch.setattr(LogDirectory, "shares_disk_with", lambda *_: False)
    if before == "one that fails":

        async def fails(*_: Any) -> None:
            raise RequestRefused("the disk hangs", ErrorCode.REQUEST_TIMED_OUT)

        with monkeypatch.context() as patched:
            patched.setattr(harness.node.log_dirs, "_cancel_other", fails)
            assert "RequestTimedOutError" in set(ask(admin, dict.fromkeys(places, second)).values())
    if before == "one that hangs":
        with monkeypatch.context() as patched:
            patched.setattr(alter_log_dirs, "DEFAULT_TIMEOUT", 1.0)
            assert set(ask(admin, dict.fromkeys(places, second)).values()) == {"RequestTimedOutError"}
        go_on.set()
    # What is reserved too late is given back soon.
    codes = until(lambda: NONE in (found := ask(admin, dict.fromkeys(places, second))).values() and found)
    assert sorted(codes.values()) == [STORAGE_ERROR] * 3 + [NONE]
    at = {status.tp: status.directory for status in harness.node.engine.statuses()}
    assert {(tp.topic, tp.partition): path for tp, path in at.items()} == {
        place: second if code == NONE else first for place, code in codes.items()
    }


@pytest.mark.conformance(18)
def test_new_target_for_what_arrives_at_the_old_one_meanwhile(
    harness: Harness, admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"x"] * 10)
    first, second = (path for path in harness.paths if path != harness.directory_of("t"))
    assert ask(admin, {("t", 0): first}) == {("t", 0): NONE}
    (old,) = harness.controller.planned
    raising = harness.controller.raise_generations

    async def slowly(*args: Any, **kwargs: Any) -> Any:
        answer = await raising(*args, **kwargs)
        if harness.directory_of("t") != first:
            assert await asyncio.to_thread(harness.controller.run_move, harness.node, old) == "swapped"
        return answer

    monkeypatch.setattr(harness.controller, "raise_generations", slowly)
    assert ask(admin, {("t", 0): second}) == {("t", 0): NONE}
    new = harness.controller.planned[-1]
    assert (new.source, new.directory) == (first, second) and new.generation > old.generation
    assert harness.controller.run_move(harness.node, new) == "swapped"
    assert harness.directory_of("t") == second
    assert len(harness.consume("t", 10)) == 10


def test_one_update_raises_the_generations_of_a_whole_request(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.create_topic("t", 9)
    wanted = {("t", part): harness.other_directory("t", part) for part in range(9)}
    assert set(ask(admin, wanted).values()) == {NONE}
    assert [len(rows) for rows in harness.controller.raised] == [9]
    until(lambda: all(harness.directory_of("t", part) == path for (_, part), path in wanted.items()))
    until(lambda: not list(Path(harness.paths[0]).glob("*.move")))


@pytest.mark.conformance(17, 72)
def test_name_too_long_to_move_is_refused_and_can_still_be_deleted(harness: Harness, admin: KafkaAdminClient) -> None:
    name = "n" * 249
    harness.create_topic(name, 11)
    assert ask(admin, {(name, 10): harness.other_directory(name, 10)}) == {(name, 10): "InvalidTopicError"}
    harness.delete_topic(name)
    assert not any(TopicPartition(name, part) in harness.node.replicas.served for part in range(11))


@pytest.mark.conformance(7, 8, 22, 23)
@pytest.mark.feature("113-35")
def test_offline_directory_is_described_and_others_still_move(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.create_topic("t", 3)
    harness.produce("t", [b"x"] * 10, partition=0)
    bad = harness.directory_of("t", 1)
    good = harness.directory_of("t", 0)
    target = next(path for path in harness.paths if path not in (bad, good))
    harness.node.dirs.by_path(bad).fail("I/O error")
    rows = describe(admin)
    assert set(rows) == set(harness.paths)
    assert rows[bad]["error_code"] == 56 and rows[bad]["topics"] == []
    assert rows[bad]["total_bytes"] == rows[bad]["usable_bytes"] == -1
    answer = ask(admin, {("t", 0): target, ("t", 1): target, ("t", 2): bad})
    assert answer == {("t", 0): NONE, ("t", 1): STORAGE_ERROR, ("t", 2): STORAGE_ERROR}
    until(lambda: harness.directory_of("t", 0) == target)
    assert len(harness.consume("t", 10)) == 10


@pytest.mark.feature("113-34", "113-35")
def test_copy_whose_replica_is_lost_is_listed_with_an_unknown_lag(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"x"] * 10)
    source, target = harness.directory_of("t"), harness.other_directory("t")
    assert ask(admin, {("t", 0): target}) == {("t", 0): NONE}
    harness.node.dirs.by_path(source).fail("I/O error")
    rows = describe(admin)
    assert rows[source]["topics"] == []
    assert {key: row["offset_lag"] for key, row in replicas(rows[target]).items()} == {("t", 0, True): -1}
    assert not replicas(describe(admin, topic_partitions={"t": [1]})[target])


@pytest.mark.feature("113-08", "113-26")
def test_path_is_taken_to_the_letter(harness: Harness, admin: KafkaAdminClient) -> None:
    harness.create_topic("t")
    target = harness.other_directory("t")
    for path in (target + "/", target + "/.", "/" + target, Path(target).name):
        assert ask(admin, {("t", 0): path}) == {("t", 0): NO_SUCH_DIR}
    assert ask(admin, {("t", 0): target}) == {("t", 0): NONE}


@pytest.mark.conformance(188)
@pytest.mark.feature("113-37")
def test_rate_of_moves_follows_the_broker_config_while_running(tmp_path: Path) -> None:
    with running(tmp_path) as harness:
        admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
        harness.create_topic("t")
        harness.produce("t", [b"x" * 100_000] * 40)
        key = "replica.alter.log.dirs.io.max.bytes.per.second"
        set_broker_config(admin, key, "1")
        target = harness.other_directory("t")
        ask(admin, {("t", 0): target})
        tp = TopicPartition("t", 0)
        states = (MoveState.THROTTLED, MoveState.COPYING)
        until(lambda: (status := harness.node.engine.status(tp)) is not None and status.state in states)
        time.sleep(0.5)  # time: at one byte per second nothing may arrive
        assert harness.directory_of("t") != target
        set_broker_config(admin, key, None)
        until(lambda: harness.directory_of("t") == target)
        admin.close()


def set_broker_config(admin: KafkaAdminClient, key: str, value: str | None) -> None:
    change = (AlterConfigOp.SET, value) if value is not None else (AlterConfigOp.DELETE, None)
    # The client knows only what is described, and a rate is, as in Kafka, only once it is set.
    admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", {key: change})], raise_on_unknown=False)
