"""What a node does about a directory that fails: what it tells the controller, what it remembers, when it stops."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline
from storage_node.lifecycle.directory_history import Event
from storage_node.log.batches.batch import build_batch
from storage_node.model.commands import ReplicaDirectory
from storage_node.model.ids import TopicPartition
from tests.support.io_faults import Faults
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

TP = TopicPartition("t", 1)
HASTY = {"log.dir.failure.timeout.ms": "1000", "log.dir.health.check.interval.ms": "100"}


def row_of(harness: Harness, tp: TopicPartition = TP) -> tuple[str, str, int]:
    """Topic id, directory id and generation of a replica that is served."""
    partition = harness.node.partition(tp)
    assert partition is not None
    return partition.topic_id, partition.directory.id, partition.generation


@pytest.mark.feature("858-09")
def test_replicas_unknown_to_the_controller_are_reported_with_the_failure(harness: Harness) -> None:
    harness.node.housekeeping.stop()  # nothing is told of where replicas are
    harness.create_topic("t", 3)
    assert not harness.controller.assigned
    topic_id, directory_id, generation = row_of(harness)
    bad = harness.node.dirs.by_path(harness.directory_of("t", 1))
    told: list[int] = []
    harness.node.on_directory_failure(lambda *_: told.append(len(harness.node.registration().in_offline_directories)))
    assert bad.fail("I/O error")
    assert told == [1], "whoever registers again upon the failure has them"
    (lost,) = harness.node.registration().in_offline_directories
    assert (lost.partition, lost.topic_id, lost.directory_id, lost.generation) == (
        TP, topic_id, directory_id, generation,
    )  # fmt: skip
    (failure,) = until(lambda: harness.controller.failed)
    assert (failure.path, failure.directory_id, failure.reason) == (bad.name, directory_id, "I/O error")
    assert failure.replicas == (lost,) and failure.incarnation == harness.node.incarnation
    assert abs(failure.noticed - time.time()) < 20


@pytest.mark.conformance(101)
def test_replicas_under_creation_when_it_fails_are_reported_too(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = harness.node.replicas.add_all

    def failing(partitions: object) -> None:
        # The directory fails after its replicas are on the disk and before they are served.
        for partition in list(partitions):  # type: ignore[call-overload]
            if partition.tp == TP:
                partition.directory.fail("I/O error")
        original(partitions)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.node.replicas, "add_all", failing)
    harness.create_topic("t", 3)
    until(lambda: TP in harness.node.replicas.offline)
    assert TP not in harness.node.replicas.served
    assert [row.partition for row in harness.node.registration().in_offline_directories] == [TP]


def test_moves_that_end_are_reported_with_their_reason(harness: Harness) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t", 3)
    target = harness.other_directory("t", 1)
    harness.node.engine.create(TP, target, owner="a-run", run_id="an-id")
    harness.node.dirs.by_path(target).fail("Input/output error at a flush")
    (failure,) = until(lambda: harness.controller.failed)
    (move,) = failure.moves
    assert (move.partition, move.directory, move.owner, move.run_id) == (TP, target, "a-run", "an-id")
    assert target in move.message and "Input/output error at a flush" in move.message
    assert harness.node.partition(TP) is not None, "the source serves on"


def test_failure_is_reported_until_recorded_over_a_restart(harness: Harness) -> None:
    harness.create_topic("t", 3)
    harness.settle()
    bad = Path(next(path for path in harness.paths[1:]))
    lost = {tp for tp in harness.node.replicas.served if harness.directory_of(tp.topic, tp.partition) == str(bad)}
    harness.controller.away = True  # told, but not taken
    directory = next(each for each in harness.node.dirs.directories if each.name == str(bad))
    harness.node.history.add(directory, Event.SIGN, "smart: 8 sectors")
    bad.rename(bad.with_name("pulled-out"))
    until(lambda: harness.controller.failed, 30)
    (first,) = harness.controller.failed
    assert [sign.text for sign in first.signs] == ["smart: 8 sectors"]
    note = Path(harness.paths[0]) / "directory-failures"
    until(note.exists)
    harness.controller.away = False
    harness.restart()
    until(lambda: len(harness.controller.failed) == 2)
    again = harness.controller.failed[1]
    assert again == first, "the same failure, noticed when it was"
    assert {row.partition for row in again.replicas} == lost
    until(lambda: json.loads(note.read_bytes())["failures"][0]["recorded"])
    harness.restart()
    assert {row.partition for row in harness.node.registration().in_offline_directories} == lost, (
        "the set is told with every registration"
    )
    assert len(harness.controller.failed) == 2, "it is known"
    bad.with_name("pulled-out").rename(bad) if not bad.exists() else None
    harness.restart()
    until(lambda: not note.exists())
    assert harness.node.registration().in_offline_directories == () and len(harness.controller.failed) == 2
    assert set(harness.node.replicas.served) >= lost


def test_directory_that_is_missing_at_a_start_is_a_failure_once(harness: Harness) -> None:
    harness.create_topic("t", 3)
    harness.settle()
    bad = Path(harness.paths[2])
    id_ = harness.node.dirs.directories[2].id
    harness.stop()
    bad.rename(bad.with_name("pulled-out"))
    harness.node = harness._new(0)
    harness.start()
    (failure,) = until(lambda: harness.controller.failed)
    assert (failure.directory_id, failure.path) == (id_, str(bad)), "its id is known from the image"
    assert [row.partition for row in failure.replicas] == [tp for tp in harness.node.replicas.offline]
    (registered,) = [one for one in harness.node.registration().directories if one.path == str(bad)]
    assert (registered.id, registered.online) == (id_, False)
    until(lambda: json.loads((Path(harness.paths[0]) / "directory-failures").read_bytes())["failures"][0]["recorded"])
    harness.restart()
    assert len(harness.controller.failed) == 1


@pytest.mark.conformance(80)
def test_directory_that_was_never_formatted_is_not_reported(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    never = tmp_path / "never-formatted"
    never.write_text("no directory")
    harness.paths.append(str(never))
    harness.node = harness._new(0)
    harness.start()
    try:
        assert not harness.node.dirs.by_path(never).online
        harness.create_topic("t", 3)
        bad = harness.node.dirs.by_path(harness.directory_of("t", 1))
        bad.fail("I/O error")
        until(lambda: harness.controller.failed)
        assert [failure.path for failure in harness.controller.failed] == [bad.name]
        note = Path(harness.paths[0]) / "directory-failures"
        kept = until(lambda: json.loads(note.read_bytes())["failures"] if note.exists() else [])
        assert [row["path"] for row in kept] == [bad.name]
    finally:
        harness.close()


def test_replicas_created_in_a_directory_without_id_are_not_reported(harness: Harness, tmp_path: Path) -> None:
    never = LogDirectory(tmp_path / "never-formatted", "", failure="not formatted")
    harness.node.failures.add_replicas(never, [ReplicaDirectory(TP, "topic-id", never.id, 1)])
    assert harness.node.registration().in_offline_directories == ()


@pytest.mark.parametrize("which", [[0], [1, 2, 0], [0, 2, 1], [0, 1]])
def test_node_stops_after_its_last_directory_only(harness: Harness, which: list[int]) -> None:
    said: list[str] = []
    harness.node.halt = said.append
    for number in which:
        harness.node.dirs.directories[number].fail(f"error {number}")
    if len(which) < 3:
        assert said == []
        return
    (sentence,) = said
    path = harness.paths[which[-1]]
    assert sentence.startswith("node 1 stops: ") and path in sentence and f"error {which[-1]}" in sentence
    assert "start the node again" in sentence


def test_hanging_disk_counts_as_failed_and_others_serve(tmp_path: Path, faults: Faults) -> None:
    with running(tmp_path, extra=HASTY) as harness:
        harness.create_topic("t", 3)
        bad = harness.directory_of("t", 1)
        if bad == harness.paths[0]:
            pytest.skip("the metadata directory")
        for call in ("fsync", "fdatasync", "pwritev", "pread"):
            faults.hang(call, f"{bad}/*")
        stuck, client = Client(harness), Client(harness)
        stuck.send_produce("t", 1, build_batch([b"x"]))
        until(lambda: not harness.node.dirs.by_path(bad).online)
        assert "did not respond within 1 s" in str(harness.node.dirs.by_path(bad).failure)
        assert client.produce("t", 1, build_batch([b"x"])).error == 56
        for partition in (0, 2):
            assert client.produce("t", partition, build_batch([b"x"])).error == 0
        faults.clear()
        stuck.close()
        client.close()


def test_deleting_a_topic_whose_move_goes_to_a_hanging_disk_blames_that_disk_alone(
    tmp_path: Path, faults: Faults
) -> None:
    extra = HASTY | {"log.dir.health.check.interval.ms": "600000"}  # nobody but the deletion finds it out
    with running(tmp_path, extra=extra) as harness:
        harness.controller.hold_moves = True
        harness.create_topic("t", 3)
        harness.create_topic("beside", 3)
        source = harness.directory_of("t", 1)
        target = next(path for path in harness.paths[1:] if path != source)
        harness.node.engine.create(TP, target, owner="a-run")
        for call in ("fsync", "rename", "write"):
            faults.hang(call, f"{target}/*")
        harness.delete_topic("t")
        until(lambda: not harness.node.dirs.by_path(target).online)
        assert harness.node.dirs.by_path(source).online and harness.node.dirs.by_path(source).failure is None
        assert TP not in harness.node.replicas.served
        client = Client(harness)
        for partition in range(3):
            if harness.node.partition(TopicPartition("beside", partition)) is not None:
                assert client.produce("beside", partition, build_batch([b"x"])).error == 0
        client.close()
        faults.clear()
        until(lambda: not (Path(source) / "t-1").exists(), 30, "the disk's answer lets the deletion go on")


def test_deleting_a_topic_whose_source_hangs_leaves_the_target_alone(tmp_path: Path, faults: Faults) -> None:
    extra = HASTY | {"log.dir.health.check.interval.ms": "600000"}
    with running(tmp_path, extra=extra) as harness:
        harness.controller.hold_moves = True
        harness.create_topic("t", 3)
        source = next(
            harness.directory_of("t", n) for n in range(3) if harness.directory_of("t", n) != harness.paths[0]
        )
        tp = next(TopicPartition("t", n) for n in range(3) if harness.directory_of("t", n) == source)
        target = next(path for path in harness.paths if path != source)
        harness.node.engine.create(tp, target, owner="a-run")
        partition = harness.node.partition(tp)
        assert partition is not None
        for call in ("fsync", "fdatasync", "pwritev"):
            faults.hang(call, f"{source}/*")
        stuck = Client(harness)
        stuck.send_produce("t", tp.partition, build_batch([b"x"]))  # holds the partition's lock in the hanging disk
        until(lambda: any(rule.hits for rule in faults.rules))
        deleting = threading.Thread(target=harness.delete_topic, args=("t",))
        deleting.start()
        until(lambda: not harness.node.dirs.by_path(source).online, 30)
        assert harness.node.dirs.by_path(target).online
        faults.clear()
        deleting.join(20)
        stuck.close()


def test_swap_does_not_wait_for_a_copier_in_a_failed_disk(harness: Harness, faults: Faults) -> None:
    harness.controller.hold_moves = True
    harness.create_topic("t", 3)
    target = harness.other_directory("t", 1)
    client = Client(harness)
    assert client.produce("t", 1, build_batch([b"x" * 1000])).error == 0
    client.close()
    engine = harness.node.engine
    claim = engine.create(TP, target, owner="me").claim
    rule = faults.hang("pwritev", f"{target}/t-1.move/*.log")
    engine.start_copy(TP, claim)
    until(lambda: rule.hits >= 1)
    harness.node.dirs.by_path(target).fail("it hangs")
    with pytest.raises(LogDirectoryOffline):
        engine.swap(TP, claim)
    engine.cancel(TP, claim)
    faults.clear()


def test_replica_that_is_served_from_another_directory_is_not_in_the_failed_one(harness: Harness) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    here = harness.directory_of("t", 0)
    bad = next(each for each in harness.node.dirs.directories if each.name != here)
    bad.fail("an error")
    topic_id = harness.node.metadata.image.topics["t"].id
    # It was in the failed directory under a higher generation, and was reassigned away and back since.
    before = ReplicaDirectory(TopicPartition("t", 0), topic_id, bad.id, 7)
    harness.node.failures.add_replicas(bad, [before])
    assert harness.node.registration().in_offline_directories == ()
    harness.node.failures.add_replicas(bad, [replace(before, partition=TopicPartition("t", 1))])
    assert [row.partition.partition for row in harness.node.registration().in_offline_directories] == [1]
