"""What a broker answers about consumer groups where the tools do not look."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.conformance.clusters import Cluster
from tests.conformance.groups import coordinator

SESSION = timedelta(seconds=10)


def test_what_brokers_answer_for_groups_that_are_not_there(cluster: Cluster, group: str) -> None:
    where = coordinator(cluster, group)

    def ask(api: str, version: int, **values: Any) -> Any:
        return cluster.call(api, version, node=where, **values)

    member = {"group_id": group, "member_id": "stranger", "generation_id": 1}
    assert int(ask("Heartbeat", 4, **member).error_code) == 25
    sync = {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    assert int(ask("SyncGroup", 5, **sync).error_code) == 25
    assert int(ask("SyncGroup", 5, **member, assignments=[]).error_code) == 23
    leaving = [{"member_id": "stranger", "group_instance_id": None, "reason": None}]
    answer = ask("LeaveGroup", 5, group_id=group, members=leaving)
    assert (int(answer.error_code), [int(row.error_code) for row in answer.members]) == (0, [25])
    assert int(ask("LeaveGroup", 2, group_id=group, member_id="stranger").error_code) == 25
    assert int(ask("DeleteGroups", 2, groups_names=[group]).results[0].error_code) == 69
    assert int(ask("OffsetDelete", 0, group_id=group, topics=[]).error_code) == 69
    (row,) = ask("DescribeGroups", 5, groups=[group], include_authorized_operations=True).groups
    assert (int(row.error_code), row.group_state, row.authorized_operations) == (0, "Dead", 3400)
    (row,) = ask("DescribeGroups", 6, groups=[group], include_authorized_operations=False).groups
    assert (int(row.error_code), row.error_message) == (69, f"Group {group} not found.")


def test_what_brokers_answer_on_join(cluster: Cluster, group: str) -> None:
    where = coordinator(cluster, group)
    wrong = next(node for node in cluster.addresses if node != where)
    base = {
        "group_id": group,
        "session_timeout": SESSION,
        "rebalance_timeout": SESSION,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"x"}],
    }

    def join(version: int = 9, node: int = where, **changes: Any) -> Any:
        return cluster.call("JoinGroup", version, node=node, **{**base, **changes})

    def told(answer: Any) -> tuple[int, str]:
        return int(answer.error_code), answer.member_id

    assert told(join(group_id="")) == (24, "")
    assert told(join(member_id="stranger")) == (25, "stranger")
    assert told(join(session_timeout=timedelta(milliseconds=499))) == (26, "")
    assert told(join(session_timeout=timedelta(hours=1))) == (26, "")
    assert told(join(protocols=[]))[0] == 23
    assert told(join(protocol_type=""))[0] == 23
    assert told(join(node=wrong)) == (16, "")
    named = join()
    assert int(named.error_code) == 79 and named.member_id.startswith("test-")
    answer = join(member_id=named.member_id)
    assert (int(answer.error_code), answer.generation_id, answer.leader) == (0, 1, named.member_id)
    member = {"group_id": group, "member_id": named.member_id}
    sync = {**member, "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range"}
    assignments = [{"member_id": named.member_id, "assignment": b"mine"}]

    def synced(**changes: Any) -> tuple[int, bytes]:
        answer = cluster.call("SyncGroup", 5, node=where, **{**sync, "assignments": assignments, **changes})
        return int(answer.error_code), answer.assignment

    assert synced(generation_id=2) == (22, b"")
    assert synced(protocol_name="other") == (23, b"")
    assert synced(protocol_type="connect") == (23, b"")
    assert synced() == (0, b"mine")
    for generation, error in ((1, 0), (0, 22), (2, 22)):
        beat = cluster.call("Heartbeat", 4, node=where, **member, generation_id=generation)
        assert int(beat.error_code) == error
    assert told(join(protocol_type="connect"))[0] == 23
    assert told(join(protocols=[{"name": "other", "metadata": b""}]))[0] == 23
    assert int(cluster.call("DeleteGroups", 2, node=where, groups_names=[group]).results[0].error_code) == 68


def test_what_brokers_answer_on_commits(cluster: Cluster, group: str) -> None:
    topic = cluster.new_topic()
    where = coordinator(cluster, group)
    wrong = next(node for node in cluster.addresses if node != where)

    def commit(node: int = where, generation: int = -1, member: str = "", version: int = 9, **changes: Any) -> int:
        row = {
            "partition_index": 0,
            "committed_offset": 5,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
            **changes,
        }
        values = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": [{"name": changes.get("topic", topic), "partitions": [row]}],
        }
        answer = cluster.call("OffsetCommit", version, node=node, **values)
        return int(answer.topics[0].partitions[0].error_code)

    assert commit(generation=1, member="m") == 69
    assert commit(generation=1, member="m", version=8) == 22
    assert commit(node=wrong) == 16
    assert commit(topic="nowhere") == 3
    assert commit(partition_index=7) == 3
    assert commit(committed_metadata="x" * 4097) == 12
    assert commit() == 0
    assert commit(generation=1, member="m") == 25

    def fetch(node: int, group: str) -> tuple[int, list[tuple[int, int, str | None]]]:
        topics = [{"name": topic, "partition_indexes": [0, 1]}]
        asked = [{"group_id": group, "member_id": None, "topics": topics}]
        (row,) = cluster.call("OffsetFetch", 9, node=node, groups=asked, require_stable=True).groups
        parts = row.topics[0].partitions if row.topics else ()
        return int(row.error_code), [(int(p.error_code), p.committed_offset, p.metadata) for p in parts]

    assert fetch(where, group) == (0, [(0, 5, ""), (0, -1, "")])
    assert fetch(wrong, group) == (16, [])
    other = cluster.call("FindCoordinator", 4, node=wrong, key_type=0, coordinator_keys=[group]).coordinators[0]
    assert other.node_id == where


def test_what_brokers_answer_of_offsets_that_are_removed(cluster: Cluster, group: str) -> None:
    topic, other = cluster.new_topic(), cluster.new_topic()
    where = coordinator(cluster, group)
    rows = [{"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": "note"}]
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": rows}, {"name": other, "partitions": rows}],
    }
    cluster.call("OffsetCommit", 8, node=where, **values)

    def listed(**filters: Any) -> list[tuple[str, str, str]]:
        answer = cluster.call("ListGroups", 5, node=where, **{"states_filter": [], "types_filter": [], **filters})
        return [(row.protocol_type, row.group_state, row.group_type) for row in answer.groups if row.group_id == group]

    assert listed() == listed(states_filter=["EMPTY"]) == listed(types_filter=["CLASSIC"])
    assert listed() == [("", "Empty", "classic")]
    assert listed(states_filter=["Stable"]) == listed(types_filter=["consumer"]) == []
    (row,) = cluster.call("DescribeGroups", 6, node=where, groups=[group], include_authorized_operations=True).groups
    assert (int(row.error_code), row.group_state, row.protocol_type, row.members) == (0, "Empty", "", ())

    def remove(*topics: str) -> list[int]:
        asked = [{"name": name, "partitions": [{"partition_index": 0}, {"partition_index": 5}]} for name in topics]
        answer = cluster.call("OffsetDelete", 0, node=where, group_id=group, topics=asked)
        assert int(answer.error_code) == 0
        return [int(part.error_code) for one in answer.topics for part in one.partitions]

    assert sorted(remove(topic, "nowhere")) == [0, 3, 3, 3]

    def offsets(version: int) -> list[tuple[str, int, str | None]]:
        answer = cluster.call("OffsetFetch", version, node=where, group_id=group, topics=None)
        assert int(answer.error_code) == 0
        return [(one.name, p.committed_offset, p.metadata) for one in answer.topics for p in one.partitions]

    for version in (2, 5, 7):
        assert offsets(version) == [(other, 5, "note")]
    assert int(cluster.call("DeleteGroups", 2, node=where, groups_names=[group]).results[0].error_code) == 0
    assert offsets(7) == []
    nowhere = [{"name": "nowhere", "partition_indexes": [3]}]
    answer = cluster.call("OffsetFetch", 1, node=where, group_id=group, topics=nowhere)
    (part,) = answer.topics[0].partitions
    assert (int(part.error_code), part.committed_offset, part.metadata) == (0, -1, "")
