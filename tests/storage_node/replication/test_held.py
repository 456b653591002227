"""The file that remembers under which partition epoch a replica was held, written by several threads of a directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.replication.held import FILE, HeldEpochs
from storage_node.types import TopicPartition
from tests.support.static_image import row

ID = "A" * 22
MADE, SERVED = ([TopicPartition(name, index) for index in range(40)] for name in ("made", "served"))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    made = LogDirectory(tmp_path, "A")
    yield made
    made.pool.shutdown()


def test_replica_creation_beside_housekeeping_writes_the_file_without_an_error(directory: LogDirectory) -> None:
    """Each write takes a temporary file's name: two at once would take it from each other."""
    held = HeldEpochs()

    def again(work: Callable[[int], None]) -> Callable[[], None]:
        return lambda: [work(each) for each in range(60)] and None

    def create(epoch: int) -> None:
        for tp in MADE:
            held.note(tp, ID, row(partition_epoch=epoch))
        held.add(directory, MADE)

    def housekeeping(epoch: int) -> None:
        for tp in SERVED:
            held.note(tp, ID, row(partition_epoch=epoch))
        held.write(directory, SERVED)

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(again(work)) for work in (create, housekeeping, create, housekeeping)]:
            job.result()
    held.add(directory, [*MADE, *SERVED])
    after = HeldEpochs()
    after.load([directory])
    assert all(after.taken_away(tp, ID, row(partition_epoch=60)) for tp in (*MADE, *SERVED))
    assert not any(after.taken_away(tp, ID, row(partition_epoch=59)) for tp in (*MADE, *SERVED))
    assert not list(Path(directory.path).glob(f"{FILE}.*"))
