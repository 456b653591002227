"""Changes of the metadata: what Kafka's clients would see, and that nothing counts twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.packing import pack, unpack
from tests.workflows.model.support import apply, cluster, create, done, lost, refused, registration
from workflows.model.metadata import commands
from workflows.model.metadata.state import ClusterState
from workflows.model.metadata.topic_rules import MAX_REPLICAS


def leaders(state: ClusterState, topic: str = "t") -> list[int]:
    return [partition.leader for partition in state.topics[topic].partitions]


# --- topics ---


def test_replicas_are_spread_round_robin_and_over_topics() -> None:
    state = cluster(3, t=4, u=2)
    assert [p.replicas for p in state.topics["t"].partitions] == [(1,), (2,), (3,), (1,)]
    assert [p.replicas for p in state.topics["u"].partitions] == [(2,), (3,)], "the emptiest first"
    assert leaders(state) == [1, 2, 3, 1]


def test_fenced_node_gets_no_replica() -> None:
    state = done(done(cluster(2), lost(1)), create("t", 2))
    assert leaders(state) == [2, 2]
    nobody = done(state, lost(2))
    assert refused(nobody, create("u"))[0] == 38


@pytest.mark.conformance(159)
@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        ({"name": "t"}, 36, "exists"),
        ({"name": ""}, 17, "empty"),
        ({"name": None}, 17, "empty"),
        ({"name": ".."}, 17, "not allowed"),
        ({"name": "a/b"}, 17, "characters"),
        ({"name": "x" * 250}, 17, "249"),
        ({"name": "t_x"}, 17, "collides"),
        ({"name": "n", "partitions": 0}, 37, "10000"),
        ({"name": "n", "partitions": 10_001}, 37, "10000"),
        ({"name": "n", "partitions": "3"}, 42, "partitions"),
        ({"name": "n", "replication_factor": 3}, 38, "only 2 broker(s) are registered"),
        ({"name": "n", "replication_factor": 0}, 38, "larger than 0"),
        ({"name": "n", "configs": {"no.such": "1"}}, 40, "no.such"),
        ({"name": "n", "configs": {"retention.ms": "soon"}}, 40, "soon"),
        ({"name": "n", "configs": {"cleanup.policy": "compact"}}, 40, "delete"),
        ({"name": "n", "assignment": [[1], [9]]}, 39, "includes broker 9, but no such broker is registered."),
        ({"name": "n", "assignment": [[]]}, 39, "includes an empty replica list."),
        ({"name": "n", "assignment": [[1, 1]]}, 39, "includes the broker 1 more than once."),
        ({"name": "n", "assignment": [[1, 2], [1]]}, 39, "previous partitions, which have 2 replica(s)."),
        ({"name": "n", "assignment": [[1]], "partitions": 3}, 42, "exclude"),
    ],
)
def test_create_topics_with_an_invalid_topic_fails_with_kafkas_error(
    request_: dict[str, Any], error: int, says: str
) -> None:
    state = done(cluster(2, t=1), create("t.x"))
    code, message = refused(state, {"do": "create_topics", "topics": [request_]})
    assert code == error and says in message
    assert message.endswith(".")


def test_create_topics_topics_succeed_or_fail_by_themselves() -> None:
    both = [{"name": "a"}, {"name": "a"}, {"name": "b", "partitions": 2}, {"name": "c", "partitions": -2}]
    change = apply(cluster(1), {"do": "create_topics", "topics": both})
    assert [result.get("error", 0) for result in change.results] == [42, 42, 0, 37]
    assert sorted(change.state.topics) == ["b"]
    assert change.results[2]["version"] == change.state.version


def test_create_topics_with_an_assignment_uses_it() -> None:
    state = done(cluster(3), {"do": "create_topics", "topics": [{"name": "t", "assignment": [[3], [1]]}]})
    assert leaders(state) == [3, 1]


def test_validate_only_changes_nothing() -> None:
    state = cluster(1)
    change = apply(state, create("t") | {"validate_only": True})
    assert change.state == state and not change.results[0].get("error")


def test_create_topics_above_the_limits_is_rejected() -> None:
    state = cluster(3, a=10_000, b=9_999)
    assert refused(state, create("c", 2))[0] == 44
    assert len(done(state, create("c", 1)).topics) * 10_000 >= MAX_REPLICAS


def test_deleted_topic_keeps_its_id_and_frees_its_name() -> None:
    state = cluster(1, t=1)
    first = state.topics["t"].id
    change = apply(state, {"do": "delete_topics", "names": ["t", "nope"]})
    assert [result.get("error", 0) for result in change.results] == [0, 3]
    assert change.results[0]["topic_id"] == first
    again = done(change.state, create("t"))
    assert again.topics["t"].id != first and list(again.gone) == [first]
    by_id = done(again, {"do": "delete_topics", "ids": [again.topics["t"].id]})
    assert not by_id.topics


def test_alter_configs_applies_all_changes_or_none() -> None:
    state = cluster(1, t=1)
    alter = {"do": "alter_configs", "kind": "topic", "name": "t"}
    state = done(state, alter | {"changes": {"retention.ms": "5", "segment.bytes": "4096"}})
    state = done(state, alter | {"changes": {"retention.ms": None, "segment.ms": "7"}})
    assert state.topics["t"].configs == {"segment.bytes": "4096", "segment.ms": "7"}
    assert refused(state, alter | {"changes": {"segment.ms": "9", "bad": "1"}})[0] == 40
    assert refused(state, alter | {"name": "u", "changes": {}})[0] == 3
    again = apply(state, alter | {"changes": {"segment.ms": "7"}})
    assert again.state == state, "what changes nothing is no change"


def test_alter_configs_list_changes_of_two_clients_are_merged() -> None:
    key = "leader.replication.throttled.replicas"
    alter = {"do": "alter_configs", "kind": "topic", "name": "t"}
    state = cluster(1, t=1)
    for change, held in (
        ({"append": ["0:1", "1:1"]}, "0:1,1:1"),
        ({"append": ["1:1", "2:1"]}, "0:1,1:1,2:1"),
        ({"subtract": ["1:1", "7:7"]}, "0:1,2:1"),
        ({"subtract": ["0:1", "2:1"]}, ""),
    ):
        state = done(state, alter | {"changes": {key: change}})
        assert state.topics["t"].configs == {key: held}
    for bad in ({"append": ["x"]}, {"append": ["0:1", "*"]}):
        assert refused(state, alter | {"changes": {key: bad}})[0] == 40
    for malformed in ({"add": ["0:1"]}, {"append": "0:1"}, {"append": [1]}):
        assert refused(state, alter | {"changes": {key: malformed}})[0] == 42


def test_broker_configs_by_id_and_for_all() -> None:
    rate = {"replica.alter.log.dirs.io.max.bytes.per.second": "1000"}
    alter = {"do": "alter_configs", "kind": "broker"}
    state = done(done(cluster(1), alter | {"name": "", "changes": rate}), alter | {"name": "1", "changes": rate})
    assert {key: dict(values) for key, values in state.configs.items()} == {
        ("broker", ""): rate,
        ("broker", "1"): rate,
    }
    assert refused(state, alter | {"name": "8", "changes": rate})[0] == 102
    assert refused(state, {"do": "alter_configs", "kind": "group", "name": "g", "changes": {}})[0] == 42


def test_producer_ids_are_never_allocated_twice() -> None:
    state = cluster(1)
    first = apply(state, {"do": "next_producer_ids", "count": 1000})
    second = apply(first.state, {"do": "next_producer_ids", "count": 1})
    assert second.results[0]["value"] == first.results[0]["value"] + 1000
    assert refused(state, {"do": "next_producer_ids", "count": 0})[0] == 42


# --- nodes ---


def test_partitions_of_a_fenced_node_have_no_leader_until_it_registers() -> None:
    state = done(cluster(2, t=2), lost(1))
    first = state.topics["t"].partitions[0]
    assert (first.leader, first.isr, first.leader_epoch) == (-1, (1,), 0)
    assert done(state, lost(1)) == state, "told twice, nothing happens twice"
    back = done(state, registration(1, "second"))
    first = back.topics["t"].partitions[0]
    assert (first.leader, first.leader_epoch) == (1, 1)
    assert back.nodes[1].broker_epoch > state.nodes[1].broker_epoch
    assert done(back, lost(1)) == back, "the end of an earlier incarnation's lease means nothing"


def test_same_incarnation_again_changes_nothing_and_another_raises_leader_epochs() -> None:
    state = cluster(2, t=2)
    assert done(state, registration(1)) == state
    quick = done(state, registration(1, "restarted before anyone noticed"))
    assert quick.topics["t"].partitions[0].leader_epoch == 1
    assert quick.topics["t"].partitions[1].leader_epoch == 0


def test_fenced_incarnation_that_registers_again_gets_a_higher_broker_epoch() -> None:
    """What it sent under the epoch from before it was fenced is stale; the response has the epoch that it is to use."""
    state = done(cluster(2, t=2), lost(1))
    change = apply(state, registration(1))
    node = change.state.nodes[1]
    assert (node.incarnation, node.fenced) == ("i1", False)
    assert node.broker_epoch > state.nodes[1].broker_epoch
    assert [result["value"] for result in change.results] == [node.broker_epoch]
    assert leaders(change.state) == [1, 2]
    assert done(change.state, registration(1)) == change.state, "not fenced in between, it keeps the epoch"


@pytest.mark.feature("858-12")
def test_offline_directory_ends_leadership_of_its_replicas_only() -> None:
    state = cluster(1, t=2)
    rows = [["t", 0, "", "d1", 0], ["t", 1, "", "e1", 0]]
    state = done(state, {"do": "assign_directories", "node": 1, "replicas": rows})
    broken = done(state, registration(1, online=False))
    assert leaders(broken) == [-1, 1]
    assert leaders(done(broken, registration(1))) == [1, 1]


def test_registration_with_another_nodes_directory_id_is_rejected() -> None:
    code, message = refused(cluster(2), registration(3, directory="d1"))
    assert code == 42 and "node 1" in message


@pytest.mark.parametrize(
    "command",
    [
        {},
        None,
        [],
        {"do": "dance"},
        {"do": 3},
        {"do": "register"},
        registration(1) | {"port": 70_000},
        registration(1) | {"directories": [["d1", "/a"]]},
        registration(1) | {"directories": [["d", "/a", True], ["d", "/b", True]]},
        registration(1) | {"incarnation": ""},
        {"do": "raise_generations", "node": 1, "replicas": [["t", 0]]},
        {"do": "create_topics", "topics": {}},
        {"do": "alter_configs", "kind": "topic", "name": "t", "changes": []},
    ],
)
def test_malformed_command_is_rejected_and_changes_nothing(command: Any) -> None:
    code, message = refused(cluster(1, t=1), command)
    assert code == 42 and message


def test_commands_of_an_unregistered_node_are_rejected() -> None:
    state = cluster(1)
    assert commands.from_stale_node(state, 1, "i1") is None
    for node, incarnation, error in ((2, "i2", 102), (1, "old", 77)):
        problem = commands.from_stale_node(state, node, incarnation)
        assert problem is not None and problem.code == error
    fenced = commands.from_stale_node(done(state, lost(1)), 1, "i1")
    assert fenced is not None and fenced.code == 77


# --- replicas ---


def raising(generation: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"do": "raise_generations", "node": 1, "replicas": [["t", partition, "", "d1", generation]], **more}


def test_raise_generations_repeated_raises_once() -> None:
    state = cluster(1, t=1)
    first = apply(state, raising(0))
    assert first.results == [{"value": 1, "version": first.state.version}] and first.quiet
    again = apply(first.state, raising(0))
    assert again.state == first.state and again.results[0]["value"] == 1
    # After a move that sealed its source and failed, the node itself went two higher.
    later = apply(first.state, raising(3))
    assert later.results[0]["value"] == 4
    assert refused(later.state, raising(2))[0] == 42, "a stale copy is not moved"


def test_raise_generations_rejects_single_invalid_rows() -> None:
    state = cluster(2, t=2)
    rows = [["t", 0, "", "d1", 0], ["t", 1, "", "d1", 0], ["t", 9, "", "d1", 0], ["t", 0, "other", "d1", 0]]
    change = apply(state, {"do": "raise_generations", "node": 1, "replicas": [*rows, ["u", 0, "", "d1", 0]]})
    assert [result.get("error", 0) for result in change.results] == [0, 9, 3, 100, 3]


@pytest.mark.feature("858-12")
def test_directory_is_assigned_unless_a_newer_generation_is_known() -> None:
    state = done(cluster(1, t=1), raising(0))
    assign = {"do": "assign_directories", "node": 1}
    after = done(state, assign | {"replicas": [["t", 0, "", "e1", 1]]})
    partition = after.topics["t"].partitions[0]
    assert (partition.directories, partition.generations) == (("e1",), (1,))
    assert done(after, assign | {"replicas": [["t", 0, "", "e1", 1]]}) == after
    assert refused(after, assign | {"replicas": [["t", 0, "", "d1", 0]]})[0] == 42


def test_second_move_before_the_directory_report_keeps_the_right_directory() -> None:
    """The word where the last move ended comes after the generation of the next one, which is then cancelled."""
    here = {"directories": [["d1", "/d", True], ["e1", "/e", True]]}
    state = done(cluster(1, t=1), registration(1) | here)
    state = done(state, {"do": "assign_directories", "node": 1, "replicas": [["t", 0, "", "d1", 0]]})
    state = done(state, raising(0))
    at_e = [["t", 0, "", "e1", 1]]  # swapped
    state = done(state, {"do": "raise_generations", "node": 1, "replicas": at_e})
    refused(state, {"do": "assign_directories", "node": 1, "replicas": at_e})
    assert state.topics["t"].partitions[0].directories == ("e1",)
    without_d = done(state, registration(1) | {"directories": [["d1", "/d", False], ["e1", "/e", True]]})
    assert without_d.topics["t"].partitions[0].leader == 1
    repeated = done(state, raising(1))
    assert repeated.topics["t"].partitions[0].directories == ("e1",), "asked again, nothing changes"
    unserved = done(repeated, {"do": "raise_generations", "node": 1, "replicas": [["t", 0, "", "", 2]]})
    assert unserved.topics["t"].partitions[0].directories == ("e1",), "who does not know where it is says nothing"


# --- what always holds ---

_names = st.sampled_from(["a", "b", "c"])
_anything = st.one_of(
    st.builds(lambda n, p: create(n, p), _names, st.integers(1, 4)),
    st.builds(lambda n: {"do": "delete_topics", "names": [n]}, _names),
    st.builds(registration, st.integers(1, 3), st.sampled_from(["x", "y"]), online=st.booleans()),
    st.builds(lost, st.integers(1, 3), st.sampled_from(["x", "y"])),
    st.builds(
        lambda node, topic, partition, generation, what, where: {
            "do": what,
            "node": node,
            "replicas": [[topic, partition, "", f"{where}{node}", generation]],
        },
        st.integers(1, 3),
        _names,
        st.integers(0, 3),
        st.integers(0, 4),
        st.sampled_from(["raise_generations", "assign_directories"]),
        st.sampled_from(["d", "e"]),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_anything, max_size=25))
def test_commands_in_any_order_keep_the_invariants(asked: list[Any]) -> None:
    state = ClusterState("c")
    for command in asked:
        change = apply(state, command)
        after = change.state
        assert (after == state) == (after.version == state.version), "a change has a version, no change has none"
        for topic, partition in after.partitions():
            if partition.leader != -1:
                place = partition.replicas.index(partition.leader)
                assert after.nodes[partition.leader].holds(partition.directories[place])
                assert partition.leader in partition.isr
            before = state.topics.get(topic.name)
            if before is not None and before.id == topic.id:
                old = before.partitions[partition.index]
                assert partition.leader_epoch >= old.leader_epoch
                assert (partition == old) == (partition.partition_epoch == old.partition_epoch)
                assert all(new >= was for new, was in zip(partition.generations, old.generations, strict=True))
        state = after
    assert ClusterState.of(unpack(pack(state.rows()))) == state
