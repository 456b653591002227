"""What a node reports of where its replicas are: once, until it is taken, and of that only what was not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from storage_node.lifecycle import housekeeping
from storage_node.model.commands import ReplicaDirectory
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.ports import ChangeResult
from tests.support.nodes.node_harness import Harness, until


@pytest.mark.conformance(116, 117)
def test_replica_is_reported_once_and_not_again_by_a_start(harness: Harness) -> None:
    harness.create_topic("t", 6)
    harness.settle()
    reported = [row.partition for row in harness.controller.assigned]
    assert sorted(reported) == [TopicPartition("t", part) for part in range(6)]
    for part, disk in ((row.partition.partition, row.directory_id) for row in harness.controller.assigned):
        assert harness.node.dirs.by_path(harness.directory_of("t", part)).id == disk
    for clean in (True, False):
        harness.restart(clean=clean)
        harness.create_topic(f"after-{clean}")  # whatever is reported comes after everything that was due before
        harness.settle()
    assert [row.partition.topic for row in harness.controller.assigned[6:]] == ["after-True", "after-False"]


@pytest.mark.conformance(105)
def test_registration_names_every_directory_and_which_are_good(harness: Harness) -> None:
    def registered() -> list[tuple[str, str, bool]]:
        return [(row.id, row.path, row.online) for row in harness.node.registration().directories]

    ids = [directory.id for directory in harness.node.dirs.directories]
    assert all(ids) and len(set(ids)) == 3
    assert registered() == [(id_, path, True) for id_, path in zip(ids, harness.paths, strict=True)]
    harness.node.dirs.directories[1].fail("I/O error")
    assert registered() == [(id_, path, path != harness.paths[1]) for id_, path in zip(ids, harness.paths, strict=True)]


def test_what_the_controller_did_not_take_is_reported_again_and_only_that(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = harness.controller.assign_directories
    asked: list[list[int]] = []

    async def refusing(replicas: Sequence[ReplicaDirectory], *, timeout: float) -> list[ChangeResult]:
        if not asked and len(replicas) < 4:
            raise TimeoutError  # the others are still being made
        asked.append(sorted(row.partition.partition for row in replicas))
        if len(asked) == 1:
            raise TimeoutError
        if len(asked) > 2:
            return await original(replicas, timeout=timeout)
        refused = [row for row in replicas if row.partition.partition == 2]
        results = iter(await original([row for row in replicas if row not in refused], timeout=timeout))
        # It is asked again soon, and by then the node has heard of what was taken.
        taken = harness.controller.image.version
        assert await asyncio.to_thread(harness.node.metadata.wait_for_version, taken, 20)
        wrong = ChangeResult(ErrorCode.UNKNOWN_SERVER_ERROR, "try again")
        return [wrong if row in refused else next(results) for row in replicas]

    monkeypatch.setattr(housekeeping, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(harness.controller, "assign_directories", refusing)
    harness.create_topic("t", 4)
    until(lambda: len(asked) >= 3)
    harness.settle()
    assert asked == [[0, 1, 2, 3], [0, 1, 2, 3], [2]]
