"""A node whose disks were swapped between their mount points knows them by their ids (KIP-858)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.disks import scanning
from ops.disks.verdict import verdict
from storage_node.directories.meta import properties as meta_properties
from tests.support.nodes.node_harness import running, until


@pytest.mark.feature("858-05")
def test_swapped_disks_are_served_from_where_they_are(tmp_path: Path) -> None:
    with running(tmp_path, extra={"log.dir.health.check.interval.ms": "100"}) as harness:
        harness.create_topic("t", 3)
        harness.settle()
        for index in range(3):
            harness.produce("t", [b"%d-%d" % (index, number) for number in range(20)], index)
        first, second, _ = harness.paths
        swapped = {first: second, second: first}
        before = {index: harness.directory_of("t", index) for index in range(3)}
        ids = {path: harness.node.dirs.by_path(path).id for path in harness.paths}
        port = harness.node.port
        harness.stop()
        aside = Path(first).rename(f"{first}-aside")
        Path(second).rename(first)
        aside.rename(second)
        harness.node = harness._new(port)
        harness.start()

        assert harness.node.dirs.missing_ids() == frozenset() and harness.node.replicas.offline == {}
        for path in harness.paths:
            directory = harness.node.dirs.by_path(path)
            assert directory.online and directory.id == ids[swapped.get(path, path)] and directory.signs() == {}
        for index in range(3):
            assert harness.directory_of("t", index) == swapped.get(before[index], before[index])
            values = [message.value() for message in harness.consume("t", 20, index)]
            assert values == [b"%d-%d" % (index, number) for number in range(20)]
            harness.produce("t", [b"more"], index)
        registered = {each.path: each for each in harness.controller.image.nodes[1].directories}
        assert {path: row.id for path, row in registered.items()} == {
            path: ids[swapped.get(path, path)] for path in harness.paths
        }
        until(lambda: all(row.online for row in harness.controller.image.nodes[1].directories))
        assert harness.controller.failed == []
        found = [meta_properties.read(path) for path in harness.paths]
        assert {each.directory_ids for each in found if each} == {harness.node.dirs.directory_ids}
    assert verdict(scanning.look(harness.paths), node_id=1, metadata=harness.paths[0]).clean
