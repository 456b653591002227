"""The file of the partition epochs under which replicas were held, written by several threads of a directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.model.ids import TopicPartition
from storage_node.replication.partition_epoch_checkpoint import FILE, PartitionEpochCheckpoint
from tests.support.nodes.static_image import row

ID = "A" * 22
MADE, SERVED = ([TopicPartition(name, index) for index in range(40)] for name in ("made", "served"))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    made = LogDirectory(tmp_path, "A")
    yield made
    made.pool.shutdown()


def test_replica_creation_beside_housekeeping_writes_the_file_without_an_error(directory: LogDirectory) -> None:
    """Each write uses a temporary file: two at once would replace each other's."""
    held = PartitionEpochCheckpoint()

    def again(work: Callable[[int], None]) -> Callable[[], None]:
        return lambda: [work(each) for each in range(60)] and None

    def create(epoch: int) -> None:
        for tp in MADE:
            held.note(tp, ID, row(partition_epoch=epoch))
        held.add(directory, MADE)

    def housekeeping(epoch: int) -> None:
        for tp in SERVED:
            held.note(tp, ID, row(partition_epoch=epoch))
        held.write(directory, lambda tp: tp not in SERVED)

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(again(work)) for work in (create, housekeeping, create, housekeeping)]:
            job.result()
    held.add(directory, [*MADE, *SERVED])
    after = PartitionEpochCheckpoint()
    after.load([directory])
    assert all(after.reassigned(tp, ID, row(partition_epoch=60)) for tp in (*MADE, *SERVED))
    assert not any(after.reassigned(tp, ID, row(partition_epoch=59)) for tp in (*MADE, *SERVED))
    assert not list(Path(directory.path).glob(f"{FILE}.*"))
