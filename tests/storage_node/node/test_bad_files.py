"""Every operation on a replica's files that fails for the file alone: the replica goes offline and is reported, the log
directory and all others serve on.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_node.lifecycle.housekeeping import Housekeeping
from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.partitions.partition import Partition
from tests.support.io_faults import Faults
from tests.support.nodes.leading import lead
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client

EXTRA = {"file.delete.delay.ms": "0", "log.dir.health.check.interval.ms": "600000"}
TOPIC = {"segment.bytes": "2000", "retention.bytes": "4000", "flush.ms": "1"}
TP = TopicPartition("t", 1)


@pytest.fixture
def node(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setattr(Housekeeping, "_everywhere", lambda *_: None)  # only what a test does itself
    harness = Harness(tmp_path, 2, EXTRA)
    harness.start()
    harness.create_topic("t", 3, TOPIC)
    harness.settle()
    for index in range(3):
        assert produce(harness, 1, index) == 0
    yield harness
    faults.clear()
    harness.close()


def produce(harness: Harness, count: int = 2, partition: int = 1, acks: int = 1) -> int:
    client = Client(harness)
    codes = [client.produce("t", partition, build_batch([b"x" * 1200]), acks=acks).error for _ in range(count)]
    client.close()
    return max(codes)


def replica(harness: Harness) -> Partition:
    return harness.node.replicas.served[TP]


def image_row(harness: Harness) -> PartitionImage:
    return harness.controller.image.topics["t"].partitions[1]


def in_pool(name: str) -> Callable[[Harness], None]:
    """A job of housekeeping, in the directory's own pool."""

    def run(harness: Harness) -> None:
        directory, keeping = replica(harness).directory, harness.node.housekeeping
        directory.submit(keeping._guarded, getattr(keeping, name), directory).result(20)

    return run


def filled(work: Callable[[Harness], object]) -> Callable[[Harness], object]:
    """The same with some segments that are full; they were made while all was well."""

    def run(harness: Harness) -> object:
        rules, FAULTS[0].rules = FAULTS[0].rules, []
        assert produce(harness, 8) == 0
        FAULTS[0].rules = rules
        return work(harness)

    return run


def removed(work: Callable[[Harness], object]) -> Callable[[Harness], object]:
    """The same with segments that retention has renamed."""

    def run(harness: Harness) -> object:
        rules, FAULTS[0].rules = FAULTS[0].rules, []
        assert produce(harness, 8) == 0
        in_pool("_retention")(harness)
        FAULTS[0].rules = rules
        return work(harness)

    return run


def new_epoch(harness: Harness) -> int:
    lead(replica(harness), 7, True)
    return produce(harness, 1)


def read(harness: Harness) -> int:
    client = Client(harness)
    found = client.fetch("t", 1, 0)[0]
    client.close()
    return found.error


def restart(harness: Harness) -> None:
    harness.restart(clean=False)


FAULTS: list[Faults] = []


@dataclass(frozen=True)
class Site:
    """A system call on files of the replica's folder that match fails with `code`."""

    name: str
    act: Callable[[Harness], object]
    call: str
    pattern: str
    code: int = errno.EPERM


SITES = [
    Site("roll", produce, "open", "/*[1-9].log"),
    Site("roll-in-the-way", produce, "open", "/*[1-9].log", errno.EISDIR),
    Site("roll-a-link", produce, "open", "/*[1-9].log", errno.ELOOP),
    Site("roll-index", produce, "open", "/*[1-9].index"),
    Site("roll-time-index", produce, "open", "/*[1-9].timeindex"),
    Site("roll-snapshot", produce, "open", "/*.snapshot*", errno.EACCES),
    Site("roll-snapshot-rename", produce, "rename", "/*.snapshot*"),
    Site("append", produce, "pwritev", "/*.log"),
    Site("append-too-large", produce, "pwritev", "/*.log", errno.EFBIG),
    Site("append-acks-all", lambda harness: produce(harness, acks=-1), "pwritev", "/*.log"),
    Site("epoch-file", new_epoch, "open", "/leader-epoch-checkpoint*"),
    Site("epoch-file-rename", new_epoch, "rename", "/leader-epoch-checkpoint*"),
    Site("read", read, "pread", "/*.log"),
    Site("flush", in_pool("_flush"), "fdatasync", "/*.log"),
    Site("flush-full-segments", filled(in_pool("_segments")), "fdatasync", "/*.log"),
    Site("retention", filled(in_pool("_retention")), "rename", "/*.log"),
    Site("purge", removed(in_pool("_segments")), "unlink", "/*.deleted"),
    Site("start-listing", restart, "listdir", "", errno.EACCES),
    Site("start-log", restart, "open", "/*.log", errno.EACCES),
    Site("start-topic-id", restart, "open", "/partition.metadata", errno.EACCES),
    Site("start-epoch-file", restart, "open", "/leader-epoch-checkpoint", errno.EACCES),
]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
def test_bad_file_at(site: Site, node: Harness, faults: Faults) -> None:
    FAULTS[:] = [faults]
    bad = Path(node.directory_of("t", 1))
    rule = faults.fail(site.call, f"{bad}/t-1{site.pattern}", site.code)
    site.act(node)
    assert rule.hits, "the operation is one that a node does"
    until(lambda: image_row(node).offline_on(1) is not None, 20, f"{site.name} is reported")
    assert image_row(node).leader == -1, "the controller has heard that it cannot be used"
    told = image_row(node).offline_on(1)
    assert told is not None and (bad / "t-1") in (Path(told.file), *Path(told.file).parents), told
    assert node.node.dirs.by_path(bad).online and TP in node.node.replicas.offline
    assert produce(node, 1) == 56
    for other in (0, 2):
        assert produce(node, 1, other) == 0
    (row,) = node.node.status()["offline_replicas"]
    assert (row["topic"], row["partition"], row["directory"], row["reason"]) == ("t", 1, str(bad), told.reason)

    faults.rules.clear()
    node.node.metadata_publisher.reopen(TP)
    until(lambda: image_row(node).leader == 1 and image_row(node).offline == ())
    until(lambda: TP in node.node.replicas.served and replica(node).is_leader)
    assert produce(node, 3) == 0 and read(node) in (0, 1)
