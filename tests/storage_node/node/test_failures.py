"""A disk error takes its directory offline and nothing else."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest

from storage_node.errors import LogAppendError
from storage_node.log.batch import build_batch
from storage_node.log.log import Log
from storage_node.protocol.private import is_loopback
from storage_node.protocol.private_client import PrivateCallFailed, call
from storage_node.protocol.table import APIS
from storage_node.types import TopicPartition
from tests.support.node_harness import Harness, running, until
from tests.support.wire import Client


@pytest.mark.conformance(96)
@pytest.mark.feature("18-01", "18-02", "18-05", "18-06", "18-07")
def test_an_append_that_fails_latches_its_directory_and_others_serve(
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


def test_an_unmounted_disk_is_noticed(harness: Harness) -> None:
    harness.create_topic("t", 3)
    gone = Path(harness.paths[1])
    gone.rename(gone.with_name("elsewhere"))
    gone.mkdir()
    until(lambda: harness.node.replicas.offline, what="its replica is offline")
    assert not harness.node.dirs.by_path(str(gone)).online
    assert sum(str(gone) in reason for reason in harness.node.replicas.offline.values()) == 1


def test_a_directory_that_hangs_delays_only_itself(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
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
    begun = time.monotonic()
    assert client.produce("t", 0, build_batch([b"x"])).error == 0
    assert client.fetch("t", 0, 0)[0].records
    assert time.monotonic() - begun < 20
    release.set()
    assert stuck.receive_produce()[1].error == 0
    stuck.close()
    client.close()


def test_the_private_api(harness: Harness) -> None:
    host, port = "127.0.0.1", harness.node.port
    answer = call(host, port, "incarnation")
    assert answer["node"] == 1 and answer["incarnation"] == harness.node.incarnation
    assert (answer["generation"], answer["version"]) == harness.node.metadata.image.age
    assert call(host, port, "stop-moves") == {"stopped": True}
    nothing = {"moves": [], "waiting": [], "offline": [], "fenced": []}
    generation, version = harness.node.metadata.image.age
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


def test_the_private_api_is_not_advertised_and_answers_loopback_only() -> None:
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
