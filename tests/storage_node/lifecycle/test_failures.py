"""A disk error takes its directory offline and nothing else."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient

from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogAppendError
from storage_node.log.batches.batch import build_batch
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.protocol.apis.private import is_loopback
from storage_node.wire.client.private_client import PrivateCallFailed, call
from storage_node.wire.table import APIS
from tests.support.io_faults import Faults
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client


@pytest.mark.conformance(96)
@pytest.mark.feature("18-01", "18-02", "18-05", "18-06")
def test_append_that_fails_latches_its_directory_and_others_serve(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create_topic("t", 3)
    bad = harness.directory_of("t", 1)
    original = Log.append_as_leader

    def failing(self: Log, *args: object, **kwargs: object) -> object:
        if self.directory == bad:
            raise LogAppendError(bad, "appending") from OSError(errno.EIO, "I/O error")
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    told: list[str] = []
    harness.node.on_directory_failure(lambda directory, reason: told.append(f"{directory.path}: {reason}"))
    monkeypatch.setattr(Log, "append_as_leader", failing)
    client = Client(harness)
    assert client.produce("t", 1, build_batch([b"x"])).error == 56
    monkeypatch.undo()
    assert client.produce("t", 1, build_batch([b"x"])).error == 56, "it stays offline"
    assert client.fetch("t", 1, 0)[0].error == 56
    for partition in (0, 2):
        assert client.produce("t", partition, build_batch([b"x"])).error == 0
    client.close()
    assert len(told) == 1 and bad in told[0] and "I/O error" in told[0]
    status = harness.node.status()
    assert [row["online"] for row in status["directories"]] == [path != bad for path in harness.paths]
    harness.restart()
    until(lambda: TopicPartition("t", 1) in harness.node.replicas.served)


@pytest.mark.feature("18-05")
def test_nothing_new_goes_to_an_offline_directory(harness: Harness) -> None:
    bad = harness.paths[0]
    harness.node.dirs.by_path(bad).fail("I/O error")
    harness.create_topic("t", 6)
    assert {harness.directory_of("t", part) for part in range(6)} == set(harness.paths[1:])


#: The jobs that checkpoint and flush are due many times a second.
BUSY = dict.fromkeys(
    (
        "replica.high.watermark.checkpoint.interval.ms",
        "log.flush.offset.checkpoint.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
        "log.retention.check.interval.ms",
        "log.flush.scheduler.interval.ms",
    ),
    "50",
)


@pytest.mark.feature("18-05", "18-06", "18-12")
def test_offline_directory_is_left_alone_by_every_job(tmp_path: Path, faults: Faults) -> None:
    with running(tmp_path, extra=BUSY) as harness:
        harness.create_topic("t", 3, {"flush.ms": "1", "retention.ms": "-1"})
        harness.settle()
        dirs = harness.node.dirs
        bad = dirs.by_path(harness.directory_of("t", 1))
        client = Client(harness)

        def produce(*partitions: int) -> None:
            for partition in partitions:
                assert client.produce("t", partition, build_batch([b"x"])).error == 0

        def checkpoints(directory: LogDirectory) -> list[dict[TopicPartition, int]]:
            files = directory.high_watermarks, directory.recovery_points, directory.log_start_offsets
            return [file.read() for file in files]

        def checkpointed(partition: int, end: int, start: int) -> bool:
            tp = TopicPartition("t", partition)
            found = checkpoints(dirs.by_path(harness.directory_of("t", partition)))
            return [file.get(tp) for file in found] == [end, end, start]

        def delete_before(offset: int, *partitions: int) -> None:
            admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
            admin.delete_records({KafkaPythonPartition("t", partition): offset for partition in partitions})
            admin.close()

        produce(0, 1, 2, 0, 1, 2, 0, 1, 2)
        delete_before(1, 0, 1, 2)
        until(lambda: all(checkpointed(partition, 3, 1) for partition in range(3)), what="all are while all are online")
        produce(1)
        assert bad.fail("Input/output error")
        until(
            lambda: all(job.done() for jobs in list(harness.node.housekeeping._busy.values()) for job in jobs.values()),
            what="jobs at work end",
        )
        kept = checkpoints(bad)
        seen: list[tuple[str, str]] = []
        faults.fail("none", "", 0)  # so that calls come by
        faults.meet = lambda call, path: seen.append((call, path))  # type: ignore[method-assign]

        produce(0, 2, 0, 2)
        client.close()
        delete_before(2, 0, 2)
        until(lambda: checkpointed(0, 5, 2) and checkpointed(2, 5, 2), what="the jobs of the others go on")
        tp, replicas = TopicPartition("t", 1), harness.node.replicas
        assert tp in replicas.offline and tp not in replicas.served and not list(replicas.in_directory(bad))
        harness.create_topic("u", 6)
        assert bad.name not in {harness.directory_of("u", partition) for partition in range(6)}
        assert [at for at in seen if at[1].startswith(bad.name)] == []
        assert {call for call, _ in seen} >= {"write", "rename", "fsync", "fdatasync"}
        assert checkpoints(bad) == kept


def test_unmounted_disk_is_noticed(harness: Harness) -> None:
    harness.create_topic("t", 3)
    gone = Path(harness.paths[1])
    gone.rename(gone.with_name("elsewhere"))
    gone.mkdir()
    until(lambda: harness.node.replicas.offline, what="its replica is offline")
    assert not harness.node.dirs.by_path(str(gone)).online
    assert sum(str(gone) in reason for reason in harness.node.replicas.offline.values()) == 1


def test_directory_that_hangs_delays_only_itself(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create_topic("t", 3)
    slow = harness.directory_of("t", 1)
    release = threading.Event()
    original = Log.append_as_leader

    def hanging(self: Log, *args: object, **kwargs: object) -> object:
        if self.directory == slow:
            release.wait(60)
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "append_as_leader", hanging)
    stuck, client = Client(harness), Client(harness)
    stuck.send_produce("t", 1, build_batch([b"x"]))
    assert client.produce("t", 0, build_batch([b"x"])).error == 0
    assert client.fetch("t", 0, 0)[0].records
    release.set()
    assert stuck.receive_produce()[1].error == 0
    stuck.close()
    client.close()


def test_private_api(harness: Harness) -> None:
    host, port = "127.0.0.1", harness.node.port
    answer = call(host, port, "incarnation")
    assert answer["node"] == 1 and answer["incarnation"] == harness.node.incarnation
    assert (answer["generation"], answer["version"]) == harness.node.metadata.image.pair
    assert call(host, port, "stop-moves") == {"stopped": True}
    nothing = {"moves": [], "delete_delays": [], "offline": [], "fenced": []}
    generation, version = harness.node.metadata.image.pair
    assert call(host, port, "moves") == {"stopped": True, "generation": generation, "version": version, **nothing}
    harness.restart()
    assert call(host, port, "moves")["stopped"] is True, "remembered over a restart"
    assert call(host, port, "resume-moves") == {"stopped": False}
    assert call(host, port, "status")["node"] == 1
    harness.controller.hold_moves = True
    harness.create_topic("t")
    target = harness.other_directory("t")
    tp = TopicPartition("t", 0)
    harness.node.engine.create(tp, target, owner="me")
    (row,) = call(host, port, "moves")["moves"]
    assert (row["topic"], row["partition"], row["directory"], row["owner"]) == ("t", 0, target, "me")
    assert call(host, port, "cancel-move", topic="t", partition=0) == {"cancelled": True}
    assert call(host, port, "moves")["moves"] == []
    with pytest.raises(PrivateCallFailed, match="unknown op"):
        call(host, port, "nonsense")
    with pytest.raises(PrivateCallFailed, match="topic and partition"):
        call(host, port, "cancel-move")


def test_private_api_is_not_advertised_and_serves_the_loopback_only() -> None:
    assert 32001 not in APIS
    assert [is_loopback(peer) for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == [True] * 3
    assert [is_loopback(peer) for peer in ("10.0.0.1", "::ffff:10.0.0.1", "", "fe80::1")] == [False] * 4


def test_retention_and_purging_run_by_themselves(tmp_path: Path) -> None:
    extra = {"log.retention.check.interval.ms": "100", "file.delete.delay.ms": "100"}
    with running(tmp_path, extra=extra) as harness:
        harness.create_topic("t", configs={"segment.bytes": "2000", "retention.bytes": "4000"})
        harness.produce("t", [b"x" * 1000] * 50, batch_num_messages=1)
        partition = harness.node.partition(TopicPartition("t", 0))
        assert partition is not None
        until(lambda: partition.log.log_start_offset > 40)
        path = partition.log.path
        until(lambda: len(list(path.glob("*.log"))) <= 5 and not list(path.glob("*.deleted")))
        assert [m.offset() for m in harness.consume("t", 3, offset=47)] == [47, 48, 49]
