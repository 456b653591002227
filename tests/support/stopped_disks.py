"""The log directories of a stopped broker, as Apache Kafka or a storage node leaves them, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage_node.directories import partition_metadata
from storage_node.directories.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, OffsetCheckpoint
from storage_node.directories.meta import properties as meta_properties
from storage_node.directories.meta.properties import MetaProperties
from storage_node.log.batches.batch import build_batch, parse
from storage_node.log.index import IndexBuilder
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.model.ids import TopicPartition

CLUSTER = "5MJQ_nGJQHGp6zHzbJCZhg"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAA1A"
OTHER_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAA2A"
CLEAN = ".kafka_cleanshutdown"


def directory_id(number: int) -> str:
    """The directory id of the so many-th directory."""
    return f"Directory-id-of-disk-{number}Q"[:22].ljust(22, "A")


def format_disks(paths: Sequence[Path], *, version: int = 1, clean: bool = True) -> None:
    """Make the directories with their meta.properties (1: Apache Kafka's, 2: a storage node's)."""
    ids = tuple(directory_id(number) for number in range(len(paths)))
    for path, id_ in zip(paths, ids, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        meta_properties.write(path, MetaProperties(version, CLUSTER, 1, id_, ids if version == 2 else ()))
        if clean:
            (path / CLEAN).write_bytes(b'{"version":0,"brokerEpoch":7}')


def batches(start: int, count: int, *, epoch: int = 0, per_batch: int = 5, size: int = 40) -> list[bytes]:
    """Batches with the offsets from `start` on; the values say the offset, so that equal offsets have equal bytes."""
    return [
        build_batch(
            [b"%06d %d " % (at + i, epoch) + b"x" * size for i in range(per_batch)],
            base_offset=at,
            timestamp=1_700_000_000_000 + at,
            leader_epoch=epoch,
        )
        for at in range(start, start + count * per_batch, per_batch)
    ]


def write_replica(
    directory: Path,
    tp: TopicPartition,
    segments: Sequence[Sequence[bytes]],
    *,
    topic_id: str | None = TOPIC_ID,
    interval: int = 200,
    checkpoints: bool = True,
) -> Path:
    """Write a replica's folder: each of `segments` is the batches of one; answers the folder."""
    folder = directory / str(tp)
    folder.mkdir(parents=True)
    epochs, end = LeaderEpochs(), 0
    for rows in segments:
        base = parse(rows[0]).base_offset if rows else end
        builder, position = IndexBuilder(base, interval), 0
        for row in rows:
            header = parse(row)
            builder.add(position, header)
            epochs = epochs.assign(header.leader_epoch, header.base_offset)
            position, end = position + len(row), header.next_offset
        builder.finish()
        (folder / f"{base:020d}.log").write_bytes(b"".join(rows))
        (folder / f"{base:020d}.index").write_bytes(builder.index.encode())
        (folder / f"{base:020d}.timeindex").write_bytes(builder.times.encode())
    (folder / "leader-epoch-checkpoint").write_bytes(epochs.encode())
    if topic_id is not None:
        (folder / partition_metadata.FILE).write_bytes(partition_metadata.encode(topic_id))
    if checkpoints:
        for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
            OffsetCheckpoint(directory, name).update({tp: end})
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of all files below a folder, by their paths in it; empty for a folder that does not exist."""
    if not folder.is_dir():
        return {}
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def records(folder: Path) -> bytes:
    """The bytes of all segments in their order."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
