"""`rehome dirs online`: a running node takes a repaired disk back, and does all that a start does for it."""

from __future__ import annotations

import errno
import gc
import json
import shutil
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories.directory import LogDirectory
from storage_node.directories.meta import properties as meta_properties
from storage_node.errors import LogDirNotFound, RequestRefused
from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from storage_node.publisher import directory_changes
from storage_node.wire.client import private_client
from tests.support.io_faults import Faults
from tests.support.nodes.node_harness import Harness, running, until

TP = TopicPartition("t", 1)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with running(tmp_path, extra={"log.dir.health.check.interval.ms": "100"}) as made:
        yield made


def filled(harness: Harness, partitions: int = 3) -> None:
    harness.create_topic("t", partitions)
    harness.settle()
    for index in range(partitions):
        harness.produce("t", [b"%d-%d" % (index, number) for number in range(20)], index)


def read(harness: Harness, partition: int, count: int = 20) -> list[bytes]:
    return [message.value() for message in harness.consume("t", count, partition)]


def pulled_out(harness: Harness, path: str) -> tuple[Path, Path]:
    """Take a directory away, as a disk that is pulled out; where it is, and where it was."""
    there, gone = Path(path), Path(path).with_name("pulled-out")
    there.rename(gone)
    until(lambda: not harness.node.dirs.by_path(path).online)
    return gone, there


@pytest.mark.feature("18-20", "113-54")
@pytest.mark.parametrize("which", [0, 1])
def test_repaired_disk_comes_back_without_a_restart(harness: Harness, which: int) -> None:
    filled(harness)
    bad = harness.paths[which]
    lost = {tp for tp, part in harness.node.replicas.served.items() if part.directory.name == bad}
    assert lost
    gone, there = pulled_out(harness, bad)
    until(lambda: harness.controller.failed)
    with pytest.raises(RequestRefused, match=f"{bad} is not online: the directory does not exist; mount its disk"):
        harness.node.directory_changes.bring_online(bad)
    assert not harness.node.dirs.by_path(bad).online
    gone.rename(there)
    found = harness.node.directory_changes.bring_online(bad)
    assert (found["outcome"], found["path"], found["replicas"], found["left"]) == ("reopened", bad, len(lost), {})
    assert set(harness.node.replicas.served) == {TopicPartition("t", index) for index in range(3)}
    for tp in lost:
        assert read(harness, tp.partition) == [b"%d-%d" % (tp.partition, number) for number in range(20)]
        harness.produce("t", [b"more"], tp.partition)
    assert harness.controller.registered_again == 1
    row = harness.controller.image.nodes[1]
    assert all(directory.online for directory in row.directories)
    assert harness.node.registration().in_offline_directories == () and harness.node.replicas.offline == {}
    notes = [Path(path) / "directory-failures" for path in harness.paths]
    until(lambda: not any(note.exists() for note in notes))
    assert harness.node.directory_changes.bring_online(bad)["outcome"] == "online", "a second request changes nothing"
    harness.restart()
    for index in range(3):
        assert read(harness, index) == [b"%d-%d" % (index, number) for number in range(20)]


def test_report_of_the_failure_that_arrives_late_is_undone(harness: Harness) -> None:
    filled(harness)
    gone, there = pulled_out(harness, harness.paths[1])
    gone.rename(there)
    harness.node.directory_changes.bring_online(str(there))
    row = harness.controller.image.nodes[1]
    failed = replace(row, directories=tuple(replace(each, online=False) for each in row.directories))
    harness.controller.change(nodes={1: failed})
    until(lambda: all(each.online for each in harness.controller.image.nodes[1].directories))


def test_disk_that_fails_again_is_found_again(harness: Harness) -> None:
    filled(harness)
    bad = harness.directory_of("t", 1)
    for _ in range(2):
        gone, there = pulled_out(harness, bad)
        gone.rename(there)
        assert harness.node.directory_changes.bring_online(bad)["outcome"] == "reopened"
        assert read(harness, 1) == [b"1-%d" % number for number in range(20)]
    until(lambda: len({failure.noticed for failure in harness.controller.failed}) == 2)
    harness.node.dirs.by_path(bad).fail("an error")
    until(lambda: len(harness.controller.failed) == 3)
    assert TP in harness.node.replicas.offline


def test_another_disk_is_not_taken_for_the_one_that_failed(harness: Harness, tmp_path: Path) -> None:
    filled(harness)
    bad = harness.directory_of("t", 1)
    gone, there = pulled_out(harness, bad)
    there.mkdir()
    with pytest.raises(RequestRefused, match=f"it has no meta.properties; .*rehome dirs replace 1 {bad}"):
        harness.node.directory_changes.bring_online(bad)
    properties = (gone / "meta.properties").read_text()
    id_ = harness.node.dirs.by_path(bad).id
    found = meta_properties.read(Harness(tmp_path / "other", dirs=1).paths[0])
    assert found is not None
    other_id = found.directory_id
    for wrong, says in (
        (properties.replace(f"directory.id={id_}", f"directory.id={other_id}"), f"its directory id is {other_id}"),
        (properties.replace("node.id=1", "node.id=7"), "it belongs to node 7"),
        ("version=9\n", "unknown version 9"),
    ):
        (there / "meta.properties").write_text(wrong)
        with pytest.raises(RequestRefused, match=says):
            harness.node.directory_changes.bring_online(bad)
        assert not (there / ".lock").exists()
    shutil.rmtree(there)
    gone.rename(there)
    assert harness.node.directory_changes.bring_online(bad)["outcome"] == "reopened"
    with pytest.raises(LogDirNotFound):
        harness.node.directory_changes.bring_online("/nowhere")


def test_disk_that_is_still_bad_stays_offline(harness: Harness, faults: Faults) -> None:
    filled(harness)
    bad = harness.directory_of("t", 1)
    faults.fail("fsync", f"{bad}/*", errno.EIO)
    harness.node.dirs.by_path(bad).fail("an error")
    with pytest.raises(RequestRefused, match=f"log directory {bad} is not online: .*repair the disk and request it"):
        harness.node.directory_changes.bring_online(bad)
    assert TP in harness.node.replicas.offline and not harness.node.dirs.by_path(bad).online
    faults.clear()
    assert harness.node.directory_changes.bring_online(bad)["replicas"] >= 1


def test_operation_that_still_hangs_keeps_the_disk_away(harness: Harness, faults: Faults) -> None:
    """Were it to end later, it would write beside the new logs."""
    filled(harness)
    bad = harness.directory_of("t", 1)
    rule = faults.hang("fdatasync", f"{bad}/*")
    harness.node.dirs.by_path(bad).submit(harness.node.leader(TP).log.flush)
    harness.node.leader(TP).append(build_batch([b"x"]))
    stuck = harness.node.dirs.by_path(bad).submit(harness.node.leader(TP).log.flush)
    until(lambda: rule.hits)
    harness.node.dirs.by_path(bad).fail("it hangs")
    with pytest.raises(RequestRefused, match="operations from before its failure still wait for the disk"):
        harness.node.directory_changes.bring_online(bad)
    faults.clear()
    until(stuck.done)
    until(lambda: not harness.node.dirs.by_path(bad).running)
    assert harness.node.directory_changes.bring_online(bad)["outcome"] == "reopened"


@pytest.mark.feature("113-17")
def test_move_into_the_disk_goes_on_when_it_is_back(harness: Harness) -> None:
    harness.controller.hold_moves = True
    filled(harness)
    source, target = harness.directory_of("t", 1), harness.other_directory("t", 1)
    engine = harness.node.engine
    claim = engine.create(TP, target, owner="a-run").claim
    gone, there = pulled_out(harness, target)
    until(lambda: (status := engine.status(TP)) is not None and status.state is MoveState.FAILED)
    harness.produce("t", [b"meanwhile"], 1)
    gone.rename(there)
    harness.node.directory_changes.bring_online(target)
    until(lambda: (status := engine.status(TP)) is not None and status.state is MoveState.CAUGHT_UP)
    assert engine.swap(TP, claim).outcome == "swapped"
    assert harness.directory_of("t", 1) == target != source
    assert read(harness, 1, 21)[-1] == b"meanwhile"


def test_older_replica_in_it_is_discarded(harness: Harness) -> None:
    """The replica was moved away while the disk was away, by a copy of its folder: the newer one serves on."""
    filled(harness)
    source, target = harness.directory_of("t", 1), harness.other_directory("t", 1)
    old = Path(source) / "t-1"
    aside = Path(source).with_name("aside")
    shutil.copytree(old, aside)
    harness.controller.hold_moves = True
    claim = harness.node.engine.create(TP, target, owner="a-run").claim
    harness.node.engine.start_copy(TP, claim)
    until(lambda: (status := harness.node.engine.status(TP)) is not None and status.state is MoveState.CAUGHT_UP)
    assert harness.node.engine.swap(TP, claim).outcome == "swapped"
    harness.produce("t", [b"newer"], 1)
    gone, there = pulled_out(harness, source)
    shutil.rmtree(gone / "t-1", ignore_errors=True)
    shutil.copytree(aside, gone / "t-1")
    gone.rename(there)
    harness.node.directory_changes.bring_online(source)
    assert harness.directory_of("t", 1) == target
    assert read(harness, 1, 21)[-1] == b"newer"
    until(lambda: not (there / "t-1").exists())


def test_new_replicas_moves_and_the_order_to_stop_use_it_again(harness: Harness) -> None:
    filled(harness)
    bad = harness.paths[0]
    gone, there = pulled_out(harness, bad)
    harness.node.engine.stop_moves()
    harness.node.preferred_log_dirs.remember([(TopicPartition("u", 0), harness.node.dirs.by_path(bad))])
    gone.rename(there)
    harness.node.directory_changes.bring_online(bad)
    assert (there / "moves-stopped").exists()
    until(lambda: (there / "preferred-log-dirs").exists())
    harness.create_topic("u", 1)
    assert harness.directory_of("u") == bad
    harness.node.engine.resume_moves()
    assert not (there / "moves-stopped").exists()
    until(lambda: f" {harness.node.metadata.image.version} ".encode() in (there / "cluster-image").read_bytes()[:60])


def test_private_call_returns_what_was_done(harness: Harness) -> None:
    filled(harness)
    bad = harness.directory_of("t", 1)
    gone, there = pulled_out(harness, bad)
    call = private_client.call
    with pytest.raises(private_client.PrivateCallFailed, match="the directory does not exist"):
        call(harness.node.host, harness.node.port, "directory-online", path=bad)
    gone.rename(there)
    found = call(harness.node.host, harness.node.port, "directory-online", timeout=30.0, path=bad)
    assert found["outcome"] == "reopened" and json.dumps(found)
    assert isinstance(harness.node.dirs.by_path(bad), LogDirectory)


def test_replica_that_is_offline_alone_elsewhere_is_left_to_its_own_request(harness: Harness) -> None:
    filled(harness)
    bad = harness.other_directory("t", 1)
    harness.controller.hold_moves = True
    harness.node.engine.create(TP, bad, owner="a-run")
    harness.node.replicas.served[TP].delete_records(12)
    gone, there = pulled_out(harness, bad)
    harness.node.replicas.set_offline({TP: "a bad file"})
    gone.rename(there)
    left = harness.node.directory_changes.bring_online(bad)["left"]
    assert "went offline alone" in left["t-1"] and "rehome replicas online 1 t-1" in left["t-1"]
    assert TP not in harness.node.replicas.served
    assert harness.node.metadata_publisher.reopen(TP)
    assert harness.node.replicas.served[TP].log.log_start_offset == 12, "what was deleted stays deleted"


def test_deletion_that_was_pending_is_carried_out_after_the_return(harness: Harness) -> None:
    harness.create_topic("t", 3, {"file.delete.delay.ms": "3000"})
    harness.settle()
    source, target = harness.directory_of("t", 1), harness.other_directory("t", 1)
    engine = harness.node.engine
    claim = engine.create(TP, target, owner="a-run").claim
    engine.start_copy(TP, claim)
    assert engine.wait(TP, claim, 20).state is MoveState.CAUGHT_UP
    assert engine.swap(TP, claim).outcome == "swapped"
    gone, there = pulled_out(harness, source)
    gone.rename(there)
    harness.node.directory_changes.bring_online(source)
    until(lambda: not list(there.glob("*.delete")), 20, "the source of the swap is deleted")
    assert engine.delete_now_if_due(TP) == 0.0


def test_threads_of_a_directory_that_failed_end(harness: Harness) -> None:
    filled(harness)
    quick = {"file.delete.delay.ms": "100"}

    def deleting() -> int:
        return sum(thread.name.startswith("deletions-") for thread in threading.enumerate())

    def deleted() -> None:
        """Create and delete replicas, for each of which a directory has a thread."""
        harness.create_topic("u", 3, quick)
        harness.settle()
        harness.delete_topic("u")
        until(lambda: not [path for each in harness.paths for path in Path(each).glob("u-*")])

    deleted()
    before = deleting()
    for _ in range(3):
        gone, there = pulled_out(harness, harness.paths[1])
        gone.rename(there)
        harness.node.directory_changes.bring_online(str(there))
        deleted()
    until(lambda: deleting() <= before, 10, "no thread more than before")


def test_replica_swapped_into_a_disk_as_it_fails_comes_back_with_it(harness: Harness) -> None:
    filled(harness)
    harness.controller.hold_moves = True
    engine, directory = harness.node.engine, harness.node.dirs.by_path(harness.other_directory("t", 1))
    claim = engine.create(TP, directory.name, owner="run").claim
    engine.start_copy(TP, claim)
    until(lambda: engine.statuses()[0].state is MoveState.CAUGHT_UP)
    with failpoints.active({"swap.after_target_flushed": lambda: directory.fail("it fails at this moment")}):
        assert engine.swap(TP, claim).outcome == "swapped"
    assert TP in harness.node.replicas.offline and TP not in harness.node.replicas.served
    # The report of the failure may lack it: the controller learns of it from a registration.
    assert TP in [row.partition for row in harness.node.registration().in_offline_directories]
    assert harness.node.directory_changes.bring_online(directory.name)["outcome"] == "reopened"
    assert harness.node.replicas.served[TP].directory is harness.node.dirs.by_path(directory.name)
    harness.produce("t", [b"more"], 1)
    assert read(harness, 1, 21)[-1] == b"more"


@pytest.mark.parametrize("decided", [True, False])
def test_nothing_of_the_directory_that_failed_is_kept(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    """Else each return of a disk would keep its threads' pools, checkpoints and dictionary entries for good."""
    filled(harness)
    bad = harness.paths[0]
    former = weakref.ref(harness.node.dirs.by_path(bad))
    gone, there = pulled_out(harness, bad)
    until(lambda: harness.controller.failed)
    gone.rename(there)
    if not decided:
        with monkeypatch.context() as patch:
            patch.setattr(directory_changes, "take_in", lambda *_: int("no number"))
            with pytest.raises(ValueError, match="no number"):
                harness.node.directory_changes.bring_online(bad)
        failure = harness.node.dirs.by_path(bad).failure
        assert failure is not None and failure.startswith("what it holds could not be decided: invalid literal")
    assert harness.node.directory_changes.bring_online(bad)["outcome"] == "reopened"

    def collected() -> bool:
        gc.collect()
        return former() is None

    for index in range(3):
        harness.produce("t", [b"more"], index)
    until(collected)
