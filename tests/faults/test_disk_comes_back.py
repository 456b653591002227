"""A disk that fails and is good again comes back on the running node; nothing acknowledged is lost."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from storage_node.errors import RequestRefused
from tests.faults.disk import CHANGES, FLUSHES, needs_fuse
from tests.faults.node import TP, FaultyNode, Writer, lost, undisturbed
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.fuse, needs_fuse]


@pytest.mark.feature("18-20")
@pytest.mark.parametrize("ops", [FLUSHES, CHANGES], ids=["flushes", "changes"])
def test_disk_comes_back_and_has_every_acknowledged_record(
    start: Callable[..., FaultyNode], ops: tuple[str, ...]
) -> None:
    node = start()
    acknowledged = dict(enumerate(node.fill(40)))
    node.replica.log.flush()
    with undisturbed(node), Writer(node, "t") as writer:
        until(lambda: writer.acknowledged)
        node.source_disk.rules({"ops": ops, "errno": errno.EIO})
        until(lambda: not node.source.online)
        with pytest.raises(RequestRefused, match=f"{node.source.name} is not online: "):
            node.node.directory_changes.bring_online(node.source.name)
        until(lambda: writer.errors)
        node.source_disk.heal()
        assert node.node.directory_changes.bring_online(node.source.name)["replicas"] == 1
        before = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > before)
    assert node.node.partition(TP) is not None
    assert lost(node, {**acknowledged, **writer.acknowledged}) == []
    node.restart()
    assert lost(node, {**acknowledged, **writer.acknowledged}) == []
