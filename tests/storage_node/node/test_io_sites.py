"""Every kind of I/O that a node does: which errors take the directory offline, which do not, and that others go on."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient

from storage_node.directories.signs import repeats
from storage_node.errors import RequestRefused, StorageError
from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from tests.support.io_faults import Faults
from tests.support.nodes.leading import lead
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client

EXTRA = {"file.delete.delay.ms": "0", "log.dir.health.check.interval.ms": "600000"}
TOPIC = {"segment.bytes": "2000", "retention.bytes": "4000"}
TP = TopicPartition("t", 1)
BATCH = [b"x" * 700]


@pytest.fixture
def node(tmp_path: Path, faults: Faults) -> Iterator[Harness]:
    harness = Harness(tmp_path, 3, EXTRA)
    harness.start()
    harness.create_topic("t", 3, TOPIC)
    harness.settle()
    client = Client(harness)
    for partition in range(3):
        assert client.produce("t", partition, build_batch(BATCH)).error == 0
    client.close()
    yield harness
    faults.clear()
    harness.close()


# What is done to partition 1 of the topic, or to the directory that it is in.


def produce(harness: Harness) -> int:
    """Two appends, so that the second one rolls; answers the last one's error."""
    client = Client(harness)
    codes = [client.produce("t", 1, build_batch(BATCH * 2)).error for _ in range(2)]
    client.close()
    return max(codes)


def fetch(harness: Harness) -> int:
    client = Client(harness)
    found = client.fetch("t", 1, 0)[0]
    client.close()
    return found.error


def in_pool(work: Callable[[Any, Any], object]) -> Callable[[Harness], object]:
    """Work on the partition's directory, on its own threads, as housekeeping does it."""

    def run(harness: Harness) -> object:
        partition = harness.node.partition(TP)
        assert partition is not None
        try:
            return partition.directory.submit(work, harness.node, partition).result(20)
        except (StorageError, RequestRefused) as error:
            harness.node.storage_failed(error) if isinstance(error, StorageError) else None
            return error

    return run


def rolled(work: Callable[[Any, Any], object]) -> Callable[[Harness], object]:
    """The same after some segments are full."""

    def run(harness: Harness) -> object:
        rules, FAULTS[0].rules = FAULTS[0].rules, []
        for _ in range(4):
            produce(harness)
        FAULTS[0].rules = rules
        return in_pool(work)(harness)

    return run


FAULTS: list[Faults] = []

flush = in_pool(lambda node, partition: partition.log.flush())
flush_rolled = rolled(lambda node, partition: partition.log.flush())
retention = rolled(lambda node, partition: partition.delete_old_segments(10**14))
purge = rolled(lambda node, partition: (partition.delete_old_segments(10**14), partition.tidy(10**15)))
truncation = rolled(lambda node, partition: partition.truncate_to(1))
claim = in_pool(lambda node, partition: node.engine.next_claim(TP))
recovery_points = in_pool(lambda node, partition: node.offset_files.recovery_points(partition.directory))
high_watermarks = in_pool(lambda node, partition: node.offset_files.high_watermarks(partition.directory))
log_starts = in_pool(lambda node, partition: node.offset_files.log_starts(partition.directory))
marker = in_pool(lambda node, partition: partition.directory.mark_clean_shutdown(1))
usage = in_pool(lambda node, partition: partition.directory.usage())


def leader_epoch(harness: Harness) -> int:
    partition = harness.node.partition(TP)
    assert partition is not None
    lead(partition, 7, True)
    return produce(harness)


def image(harness: Harness) -> None:
    harness.controller.change(configs={("broker", ""): {}})
    harness.node.dirs.images.flush(20)


def wishes(harness: Harness) -> None:
    """The wish is for partition 1's directory, the file is kept in the first one."""
    harness.node.preferred_log_dirs.remember([(TopicPartition("later", 0), harness.node.dirs.directories[0])])


def create(harness: Harness) -> None:
    harness.create_topic("u", 3)


def delete(harness: Harness) -> None:
    harness.delete_topic("t")
    until(lambda: not harness.node.engine._deletions.pending() or _offline(harness), 20)


def _offline(harness: Harness) -> list[str]:
    return [directory.name for directory in harness.node.dirs.directories if not directory.online]


@dataclass(frozen=True)
class Site:
    """An error `code` of a system call on files of the directory that match: latched, or not."""

    name: str
    act: Callable[[Harness], object]
    call: str
    pattern: str
    code: int = errno.EIO
    latched: bool = True
    met: bool = True


SITES = [
    Site("append", produce, "pwritev", "/t-1/*.log"),
    Site("append-full", produce, "pwritev", "/t-1/*.log", errno.ENOSPC, False),
    Site("append-read-only", produce, "pwritev", "/t-1/*.log", errno.EROFS),
    Site("append-cut-back", produce, "ftruncate", "/t-1/*.log", errno.EIO, False, met=False),
    Site("read", fetch, "pread", "/t-1/*.log"),
    Site("roll", produce, "open", "/t-1/*.log"),
    Site("roll-full", produce, "open", "/t-1/*.log", errno.ENOSPC, False),
    Site("roll-no-descriptor", produce, "open", "/t-1/*.log", errno.EMFILE, False),
    Site("snapshot", produce, "open", "/t-1/*.snapshot*"),
    Site("snapshot-full", produce, "pwritev", "/t-1/*.snapshot*", errno.ENOSPC, False),
    Site("leader-epochs", leader_epoch, "fsync", "/t-1/leader-epoch-checkpoint*"),
    Site("leader-epochs-flush-full", leader_epoch, "fsync", "/t-1/leader-epoch-checkpoint*", errno.ENOSPC),
    Site("flush", flush, "fdatasync", "/t-1/*.log"),
    Site("flush-full", flush, "fdatasync", "/t-1/*.log", errno.ENOSPC),
    Site("flush-index", flush_rolled, "pwritev", "/t-1/*index"),
    Site("flush-index-full", flush_rolled, "pwritev", "/t-1/*index", errno.ENOSPC, False),
    Site("retention", retention, "rename", "/t-1/*.log"),
    Site("purge", purge, "unlink", "/t-1/*.deleted"),
    Site("truncation", truncation, "ftruncate", "/t-1/*.log"),
    Site("claim", claim, "fsync", "/t-1/partition.move*"),
    Site("claim-full", claim, "write", "/t-1/partition.move*", errno.ENOSPC, False),
    Site("claim-flush-full", claim, "fsync", "/t-1/partition.move*", errno.ENOSPC),
    Site("claim-rename-full", claim, "rename", "/t-1/partition.move*", errno.ENOSPC, False),
    Site("recovery-points", recovery_points, "fsync", "/recovery-point-offset-checkpoint*"),
    Site("high-watermarks", high_watermarks, "rename", "/replication-offset-checkpoint*"),
    Site("log-starts", log_starts, "write", "/log-start-offset-checkpoint*"),
    Site("log-starts-full", log_starts, "write", "/log-start-offset-checkpoint*", errno.ENOSPC, False),
    Site("checkpoint-gone", log_starts, "rename", "/log-start-offset-checkpoint*", errno.ENOENT, False),
    Site("clean-shutdown", marker, "fsync", "/.kafka_cleanshutdown*"),
    Site("usage", usage, "statvfs", ""),
    Site("image", image, "write", "/cluster-image*"),
    Site("image-full", image, "write", "/cluster-image*", errno.ENOSPC, False),
    Site("create", create, "mkdir", "/u-*"),
    Site("create-full", create, "mkdir", "/u-*", errno.ENOSPC, False),
    Site("create-name-too-long", create, "mkdir", "/u-*", errno.ENAMETOOLONG, False),
    Site("create-metadata", create, "fsync", "/u-*/partition.metadata*"),
    Site("create-segment", create, "open", "/u-*/*.log"),
    Site("delete-rename", delete, "rename", "/t-1"),
    Site("delete-rename-full", delete, "rename", "/t-1", errno.ENOSPC, False),
    Site("delete-marker", delete, "fsync", "/t-1/partition.move*"),
    Site("remove", delete, "unlink", "/t-1.*.delete/*.log"),
    Site("remove-folder", delete, "rmdir", "/t-1.*.delete"),
]


@pytest.mark.conformance(96, 97)
@pytest.mark.feature("18-02", "18-05")
@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
def test_error_at(site: Site, node: Harness, faults: Faults) -> None:
    FAULTS[:] = [faults]
    bad = node.directory_of("t", 1)
    others = [path for path in node.paths if path != bad]
    rule = faults.fail(site.call, bad + site.pattern, site.code)
    site.act(node)
    if site.latched:
        until(lambda: not node.node.dirs.by_path(bad).online, 20, "it is taken offline")
    assert bool(rule.hits) is site.met
    reason = node.node.dirs.by_path(bad).failure
    assert (reason is not None) == site.latched, reason
    if reason is not None:
        text = {errno.EIO: "Input/output error", errno.ENOSPC: "No space left", errno.EROFS: "Read-only"}[site.code]
        assert bad in reason and text in reason
        if "t" in node.node.metadata.image.topics:
            assert produce(node) == fetch(node) == 56
    assert all(node.node.dirs.by_path(path).online for path in others)
    faults.rules.clear()
    client = Client(node)
    for partition in (0, 2):
        if site.act is not delete:
            assert client.produce("t", partition, build_batch(BATCH)).error == 0
    client.close()


@pytest.mark.feature("18-19")
@pytest.mark.parametrize("site", [site for site in SITES if site.latched], ids=lambda site: site.name)
def test_what_failed_is_tried_once_and_reads_and_writes_of_logs_once_more(
    site: Site, node: Harness, faults: Faults
) -> None:
    """A read has its CRC and a write its flush behind it; of a flush, and of any other call, the next result would
    prove nothing.
    """
    FAULTS[:] = [faults]
    directory = node.node.dirs.by_path(node.directory_of("t", 1))
    rule = faults.fail(site.call, directory.name + site.pattern, site.code)
    site.act(node)
    until(lambda: not directory.online, 20, "it is taken offline")
    for again in (produce, fetch):
        if "t" in node.node.metadata.image.topics:
            assert again(node) == 56
    repeated = site.call in ("pread", "pwritev") and site.code == errno.EIO
    assert rule.hits == (2 if repeated else 1)
    evidence = directory.evidence
    assert evidence is not None and evidence.errno == errno.errorcode[site.code], evidence
    verdicts = {errno.EROFS: "read-only", errno.ENOSPC: "full"}
    assert evidence.verdict == verdicts.get(site.code, "disk") and abs(evidence.time - time.time()) < 60
    assert evidence.operation and evidence.operation in str(directory.failure)


@pytest.mark.feature("18-19")
@pytest.mark.parametrize("call", ["pread", "pwritev"])
def test_read_or_a_write_that_fails_once_is_noted_and_the_directory_stays_online(
    call: str, node: Harness, faults: Faults
) -> None:
    directory = node.node.dirs.by_path(node.directory_of("t", 1))
    device = directory.path.stat().st_dev
    before = repeats.count(device)
    rule = faults.fail(call, f"{directory.name}/t-1/*.log", errno.EIO)
    rule.times = 1
    assert (produce(node), fetch(node)) == (0, 0)
    assert rule.hits == 1 and directory.online
    assert repeats.count(device) == before + 1


@pytest.mark.conformance(88)
@pytest.mark.feature("18-19")
def test_flush_that_failed_is_never_tried_again(node: Harness, faults: Faults) -> None:
    partition = node.node.partition(TP)
    assert partition is not None
    point = partition.log.recovery_point
    rule = faults.fail("fdatasync", f"{node.directory_of('t', 1)}/t-1/*.log", errno.EIO)
    flush(node)
    assert not partition.directory.online and rule.hits == 1
    faults.rules.clear()  # from now on the system would say that all is well
    with pytest.raises(StorageError):
        partition.log.flush()
    assert partition.log.recovery_point == point
    checkpoint = partition.directory.path / "recovery-point-offset-checkpoint"
    before = checkpoint.read_bytes() if checkpoint.exists() else b""
    node.stop()
    assert (checkpoint.read_bytes() if checkpoint.exists() else b"") == before
    marked = [path for path in node.paths if (Path(path) / ".kafka_cleanshutdown").exists()]
    assert marked == [path for path in node.paths if path != partition.directory.name]
    node.node = node._new(0)
    node.start()
    assert node.node.partition(TP) is not None, "a start looks at what is really there"


@pytest.mark.feature("18-07")
def test_replica_whose_folder_is_gone_goes_offline_alone(node: Harness) -> None:
    bad = node.directory_of("t", 1)
    node.create_topic("w", 6)
    beside = [tp for tp, part in node.node.replicas.served.items() if part.directory.name == bad and tp != TP]
    assert beside
    for entry in (Path(bad) / "t-1").iterdir():
        entry.unlink()
    (Path(bad) / "t-1").rmdir()
    assert produce(node) == 56
    assert node.node.dirs.by_path(bad).online
    assert "No such file" in node.node.replicas.offline[TP]
    client = Client(node)
    for tp in beside:
        assert client.produce(tp.topic, tp.partition, build_batch(BATCH)).error == 0
    client.close()


@dataclass(frozen=True)
class StartSite:
    """A start that meets an error in one directory."""

    name: str
    call: str
    pattern: str
    code: int = errno.EIO


@pytest.mark.parametrize(
    "site",
    [
        StartSite("meta-properties", "open", "/meta.properties"),
        StartSite("clean-shutdown-read", "open", "/.kafka_cleanshutdown"),
        StartSite("clean-shutdown-removal", "unlink", "/.kafka_cleanshutdown"),
        StartSite("image", "open", "/cluster-image"),
        StartSite("checkpoint", "open", "/recovery-point-offset-checkpoint"),
        StartSite("listing", "listdir", ""),
        StartSite("topic-id", "open", "/t-1/partition.metadata"),
        StartSite("log", "listdir", "/t-1"),
        StartSite("failures", "open", "/directory-failures"),
        StartSite("moves-stopped", "stat", "/moves-stopped"),
    ],
    ids=lambda site: site.name,
)
def test_start_continues_without_a_directory_that_fails(site: StartSite, node: Harness, faults: Faults) -> None:
    bad = node.directory_of("t", 1)
    if bad == node.paths[0]:
        pytest.skip("placement has put the replica into the metadata directory")
    node.stop()
    node.node = node._new(0)
    rule = faults.fail(site.call, bad + site.pattern, site.code)
    node.start()
    assert rule.hits >= 1
    directory = node.node.dirs.by_path(bad)
    assert not directory.online and "Input/output error" in str(directory.failure)
    assert TP in node.node.replicas.offline
    faults.rules.clear()
    assert produce(node) == 56
    client = Client(node)
    assert client.produce("t", 0, build_batch(BATCH)).error == client.produce("t", 2, build_batch(BATCH)).error == 0
    client.close()
    told = until(lambda: node.controller.failed)
    assert [(one.path, one.replicas[0].partition) for one in told] == [(bad, TP)]


@pytest.mark.conformance(109)
@pytest.mark.parametrize(
    ("call", "pattern", "code", "latched"),
    [
        ("pwritev", "*/t-1.move/*.log", errno.EIO, True),
        ("fsync", "*/t-1.move*/partition.move*", errno.EIO, True),
        ("mkdir", "*/t-1.*", errno.EIO, True),
        ("mkdir", "*/t-1.*", errno.ENOSPC, False),
        ("rename", "*/t-1.move", errno.EIO, True),
        ("rename", "*/t-1.move", errno.ENOSPC, False),
    ],
)
@pytest.mark.feature("113-17")
def test_move_ends_with_its_target_and_the_replica_serves_on(
    node: Harness, faults: Faults, call: str, pattern: str, code: int, latched: bool
) -> None:
    source, target = node.directory_of("t", 1), node.other_directory("t", 1)
    rule = faults.fail(call, target + pattern[1:], code)
    engine = node.node.engine
    try:
        status = engine.create(TP, target, owner="me")
        engine.start_copy(TP, status.claim)
        status = engine.wait(TP, status.claim, 20)
        if not status.error:
            engine.swap(TP, status.claim)
    except (StorageError, RequestRefused) as error:
        assert target in str(error)
    assert rule.hits >= 1
    directory = node.node.dirs.by_path(target)
    assert directory.online is not latched
    found = engine.status(TP)
    if found is not None and latched:
        assert found.error == "LogDirOffline"
        assert target in found.message and "Input/output error" in found.message
    faults.rules.clear()
    assert node.node.dirs.by_path(source).online and node.directory_of("t", 1) == source
    assert produce(node) == 0 and fetch(node) == 0


@pytest.mark.feature("113-17", "113-19")
def test_what_deletes_records_is_not_held_up_by_the_copy_s_disk(node: Harness, faults: Faults) -> None:
    source, target = node.directory_of("t", 1), node.other_directory("t", 1)
    for _ in range(3):
        assert produce(node) == 0
    engine = node.node.engine
    claim = engine.create(TP, target, owner="me").claim
    partition = node.node.partition(TP)
    assert partition is not None and partition.future is not None
    admin = KafkaAdminClient(bootstrap_servers=node.bootstrap)
    replica = KafkaPythonPartition("t", 1)

    # It hangs: the answer may take its time, everybody else's does not.
    rule = faults.hang("fsync", f"{target}/t-1.move/*")
    deleting = threading.Thread(target=lambda: admin.delete_records({replica: 1}))
    deleting.start()
    until(lambda: rule.hits >= 1 or not deleting.is_alive())
    assert produce(node) == 0 and fetch(node) == 1  # OFFSET_OUT_OF_RANGE: the record is gone
    faults.clear()
    deleting.join(20)

    # It fails: the move ends with it, the records go all the same.
    rule = faults.fail("open", f"{target}/t-1.move/*", errno.EIO)
    end = partition.log.log_end_offset
    assert admin.delete_records({replica: end})[replica]["low_watermark"] == end
    admin.close()
    # The copier applies it to the copy, before it writes anything else there.
    engine.start_copy(TP, claim)
    until(lambda: rule.hits >= 1 and not node.node.dirs.by_path(target).online)
    assert node.node.dirs.by_path(source).online and partition.log.log_start_offset == end
    status = engine.status(TP)
    assert status is not None and status.claim == claim and status.error == "LogDirOffline"
    assert produce(node) == 0
