"""Any commands about replicated partitions, in any order: what holds after each, and that none counts twice."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.image import decode
from storage_node.model.metadata import PartitionImage
from storage_node.model.packing import pack, unpack
from tests.support.scale import scaled
from tests.workflows.model.replicated import elect, isr_command, reassign, replicated, row
from tests.workflows.model.support import apply, lost, registration, topics_after
from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState

NODES = 4
_nodes = st.integers(1, NODES)
_sets = st.lists(_nodes, min_size=1, max_size=3, unique=True)


def draw(data: st.DataObject, state: ClusterState) -> dict[str, Any]:
    """A command that somebody might send in this state, true or late."""
    index = data.draw(st.integers(0, 1))
    held = row(state, index)
    kinds = ["isr", "isr", "isr", "reassign", "cancel", "elect", "lost", "register", "place", "offline", "online"]
    what = data.draw(st.sampled_from(kinds))
    if what == "isr":
        isr = data.draw(st.lists(st.sampled_from(held.replicas), min_size=1, unique=True))
        if held.leader in held.replicas and data.draw(st.integers(0, 4)):
            isr = [held.leader, *(node for node in isr if node != held.leader)]
        late = data.draw(st.sampled_from(["", "", "leader_epoch", "partition_epoch"]))
        given = {late: getattr(held, late) - data.draw(st.integers(1, 3))} if late else {}
        return isr_command(state, isr, index, **given)
    if what in ("reassign", "cancel"):
        return reassign((index, data.draw(_sets) if what == "reassign" else None))
    if what == "elect":
        return elect(index, unclean=data.draw(st.booleans()))
    node = data.draw(_nodes)
    if what == "lost":
        return lost(node, state.nodes[node].incarnation)
    if what in ("offline", "online"):
        report = ["t", index, "", "", 0, "a bad file" if what == "offline" else "", ""]
        late = data.draw(st.integers(0, 5)) == 0
        epoch = state.nodes[node].broker_epoch - late
        return {"do": "report_replicas", "node": node, "epoch": epoch, "replicas": [report]}
    if what == "register":
        found = registration(node, data.draw(st.sampled_from("xyz")), online=data.draw(st.booleans()))
        where, generation = data.draw(st.sampled_from("de")), data.draw(st.integers(0, 3))
        moved = [["t", index, "", f"{where}{node}", generation]] if data.draw(st.booleans()) else []
        return {**found, "assigned": moved}
    where, generation = data.draw(st.sampled_from("de")), data.draw(st.integers(0, 3))
    told = [["t", index, "", f"{where}{node}", generation]]
    return {"do": "assign_directories", "node": node, "replicas": told}


def is_late(state: ClusterState, command: dict[str, Any]) -> bool:
    """Whether a leader sent it before it heard of a later change of the partition."""
    if command["do"] != "alter_partitions":
        return False
    ((_, index, _, leader_epoch, partition_epoch, _),) = command["partitions"]
    held = row(state, index)
    return bool(leader_epoch < held.leader_epoch or partition_epoch < held.partition_epoch)


def check(state: ClusterState, before: PartitionImage, after: PartitionImage, nodes_left: bool) -> None:
    """What holds for a partition after any command."""
    can = {
        node
        for node, directory in zip(after.replicas, after.directories, strict=True)
        if state.nodes[node].holds(directory) and after.offline_on(node) is None
    }
    assert after.isr and set(after.isr) <= set(after.replicas)
    assert {each.node for each in after.offline} <= set(after.replicas)
    assert set(after.isr) <= can or not set(after.isr) & can, "who cannot serve is in sync only as the last"
    assert (after.leader in set(after.isr) & can) if after.leader != -1 else not set(after.isr) & can
    assert after.assignment.complete(after.isr) is None
    assert after.leader_epoch >= before.leader_epoch
    assert (after == before) == (after.partition_epoch == before.partition_epoch)
    places = zip(after.replicas, after.directories, after.generations, strict=True)
    known = {
        node: (directory, generation)
        for node, directory, generation in zip(before.replicas, before.directories, before.generations, strict=True)
    }
    for node, directory, generation in places:
        if node not in known:
            assert (directory, generation) == ("", 0), "a new replica is nowhere yet"
        elif nodes_left:
            assert (directory, generation) == known[node], "where the others are stays known"


@settings(max_examples=scaled(50, 3_000), deadline=None)
@given(st.data())
def test_commands_on_replicated_partitions_keep_the_invariants(data: st.DataObject) -> None:
    state = replicated((1, 2, 3), (2, 3), nodes=NODES)
    for _ in range(data.draw(st.integers(1, 14))):
        command = draw(data, state)
        change = apply(state, command)
        after = change.state
        assert after == state or not is_late(state, command), "what a leader asked before the last change is not made"
        assert (after == state) == (after.version == state.version), "a change has a version, no change has none"
        for index in (0, 1):
            check(after, row(state, index), row(after, index), command["do"] not in ("assign_directories", "register"))
        again = apply(after, command)
        assert again.state == after, "delivered twice, nothing happens twice"
        for text in image.since(after, *state.pair):
            told = topics_after(state.topics, decode(text))
            assert told["t"].partitions == after.topics["t"].partitions, "nodes get the present state"
        assert (row(after), row(after, 1)) == (row(state), row(state, 1)) or image.since(after, *state.pair)
        state = after
    assert ClusterState.of(unpack(pack(state.rows()))) == state
