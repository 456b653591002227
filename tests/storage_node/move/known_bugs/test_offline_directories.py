"""Apache Kafka's bugs with directories that are offline at the start or fail while replicas are made."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.directories.lock import DirectoryLock
from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import Harness, running, until


@pytest.mark.conformance(102)
def test_start_without_a_disk_creates_nothing_elsewhere(tmp_path: Path) -> None:
    # KAFKA-16234: what had been on the offline disk was made again, empty, in another directory.
    with running(tmp_path) as harness:
        harness.create_topic("t", 6)
        for part in range(6):
            harness.produce("t", [b"x"] * 5, partition=part)
        harness.settle()
        away = Path(harness.directory_of("t", 2))
        there = {part for part in range(6) if harness.directory_of("t", part) == str(away)}
        if away == Path(harness.paths[0]):
            pytest.skip("partition 2 is in the metadata directory")
        harness.stop()
        away.rename(tmp_path / "away")
        harness.node = harness._new(0)
        harness.start()
        assert {tp.partition for tp in harness.node.replicas.offline} == there
        made = [path.name for root in harness.paths for path in Path(root).glob("t-*")]
        assert len(made) == 6 - len(there) and all(int(name[2:]) not in there for name in made)
        harness.stop()
        if away.exists():
            for path in away.iterdir():
                path.unlink()
            away.rmdir()
        (tmp_path / "away").rename(away)
        harness.node = harness._new(0)
        harness.start()
        for part in range(6):
            assert len(harness.consume("t", 5, partition=part)) == 5


def test_directory_that_fails_while_a_replica_is_made(harness: Harness) -> None:
    # KAFKA-8526: where the first directory failed no other one was tried; KAFKA-10314: an offline one stopped it all.
    bad = harness.node.dirs.by_path(harness.paths[1])
    harness.node.preferred_log_dirs.remember([(TopicPartition("t", 0), bad)])

    original = LogDirectory.for_image

    def for_image(self: LogDirectory, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        if self is bad and getattr(fn, "__name__", "") == "_make":
            self.fail("Input/output error")
        return original(self, fn, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogDirectory, "for_image", for_image)
        harness.create_topic("t", 1)
        until(lambda: not bad.online)
        assert harness.directory_of("t") in (harness.paths[0], harness.paths[2])
    harness.create_topic("other", 3)
    assert {harness.directory_of("other", part) for part in range(3)} <= {harness.paths[0], harness.paths[2]}
    # It never was anywhere else: a start, with the disk still away or not, finds it where it was made.
    harness.restart()
    until(lambda: harness.node.partition(TopicPartition("t", 0)) is not None)
    harness.produce("t", [b"x"])


def test_directory_that_cannot_be_locked_does_not_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # KAFKA-17310, KAFKA-6697.
    with running(tmp_path) as harness:
        harness.create_topic("t", 3)
        harness.settle()
        harness.stop()
        bad = harness.paths[2]
        original = DirectoryLock.acquire

        def acquire(self: DirectoryLock) -> None:
            if str(self.directory) == bad:
                raise OSError(errno.EIO, "Input/output error", bad)
            original(self)

        monkeypatch.setattr(DirectoryLock, "acquire", acquire)
        harness.node = harness._new(0)
        harness.start()
        assert [directory.online for directory in harness.node.dirs.directories] == [True, True, False]
        assert len(harness.node.replicas.served) == 2
        monkeypatch.undo()
