"""The replicas while a plan for them is made."""

from __future__ import annotations

from tests.workflows.model.plans.support import MB, cluster, disk, tp
from workflows.model.plans.document import PlannedPartition
from workflows.model.plans.generate.layout import Item, Layout, Limits


def test_broker_that_gave_a_replica_does_not_receive_another_one_of_the_partition() -> None:
    layout = Layout(cluster({"t-0": ["1:/a", "2:/a"]}), Limits())
    assert layout.may_replace(tp("t-0"), 2, 3) and not layout.may_replace(tp("t-0"), 2, 1)
    layout.move(Item(MB, tp("t-0"), 1, "/a"), disk("3:/b"))
    assert not layout.may_replace(tp("t-0"), 2, 1), "the controller would keep the replica of 1, and copy nothing"
    assert layout.document().partitions == (PlannedPartition("t", 0, (3, 2), ("/b", "any")),)


def test_space_counts_what_arrives_and_not_what_leaves() -> None:
    layout = Layout(cluster({"t-0": ["1:/a"]}, total=10 * MB), Limits(keep_free=10))
    assert (layout.free[disk("1:/a")], layout.free[disk("1:/b")]) == (8 * MB, 9 * MB)
    layout.move(Item(MB, tp("t-0"), 1, "/a"), disk("1:/b"))
    assert (layout.free[disk("1:/a")], layout.free[disk("1:/b")]) == (8 * MB, 8 * MB)
    assert layout.bytes == MB
