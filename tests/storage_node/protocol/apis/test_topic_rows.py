"""The cached encoding of topics: clients decode the image's content, in every version, after every change."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_node.model.assignment import Assignment
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import DirectoryRegistration, NodeImage, PartitionImage, TopicImage
from storage_node.protocol.apis import topic_rows
from storage_node.protocol.apis.topic_rows import DESCRIBED, TopicRows, layout_of
from tests.support.nodes.node_harness import Harness, running
from tests.support.wire import Client, offered

NODES = (1, 2, 3)
NO_LEADER, OPERATIONS, NOT_ASKED = 5, 3576, -(2**31)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with running(Path(tmp_path_factory.mktemp("rows")), dirs=1) as made:
        yield made


def an_id(number: int) -> str:
    return "A" + base64.urlsafe_b64encode(bytes(12) + number.to_bytes(4, "big")).decode().rstrip("=")[1:]


@st.composite
def partitions(draw: st.DrawFn, index: int) -> PartitionImage:
    replicas = tuple(draw(st.lists(st.sampled_from((2, 3, 4)), min_size=1, max_size=3, unique=True)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), max_size=3, unique=True))) or replicas[:1]
    directories = tuple(draw(st.sampled_from(("a", "b", ""))) for _ in replicas)
    leader = draw(st.sampled_from((-1, *isr)))
    epoch = draw(st.integers(0, 2**31 - 1))
    return PartitionImage(index, Assignment(replicas), directories, (0,) * len(replicas), isr, leader, epoch, 1)


@st.composite
def topics(draw: st.DrawFn, name: str, number: int) -> TopicImage:
    count = draw(st.integers(1, 4))
    return TopicImage(name, an_id(number), {}, tuple(draw(partitions(index)) for index in range(count)))


@st.composite
def images(draw: st.DrawFn) -> ClusterImage:
    names = draw(
        st.lists(st.sampled_from(("a", "b.c", "d_e", "z" * 249, "__consumer_offsets")), max_size=4, unique=True)
    )
    found = {name: draw(topics(name, number)) for number, name in enumerate(names, 1)}
    nodes = {1: NodeImage(1, "i", 1, "127.0.0.1", 1, (DirectoryRegistration("own", "/own"),))}
    for number in draw(st.lists(st.sampled_from((2, 3, 4)), max_size=3, unique=True)):
        dirs = tuple(DirectoryRegistration(id_, f"/{id_}", draw(st.booleans())) for id_ in ("a", "b"))
        nodes[number] = NodeImage(number, "i", 1, f"host-{number}", 9000 + number, dirs, draw(st.booleans()))
    return ClusterImage("test-cluster", 1, 1, found, {}, nodes)


def shown(image: ClusterImage, row: PartitionImage, version: int, described: bool = False) -> dict[str, Any]:
    """Return a partition as a client must decode it, by kio's field names."""
    live = {node.node for node in image.nodes.values() if not node.fenced}
    lost = {(node.node, each.id) for node in image.nodes.values() for each in node.directories if not each.online}
    placed = zip(row.replicas, row.directories, strict=True)
    offline = tuple(node for node, where in placed if node not in live or (node, where) in lost)
    led = row.leader in live
    out: dict[str, Any] = {
        "partition_index": row.index,
        "leader_id": row.leader if led else -1,
        "leader_epoch": row.leader_epoch,
        "replica_nodes": row.replicas,
        "isr_nodes": row.isr,
        "offline_replicas": offline,
        "error_code": 0 if led or described else NO_LEADER,
    }
    if described:
        return out | {"eligible_leader_replicas": (), "last_known_elr": ()}
    if version == 0:
        out |= {name: tuple(n for n in out[name] if n in live) for name in ("replica_nodes", "isr_nodes")}
        if led and (len(out["replica_nodes"]), len(out["isr_nodes"])) != (len(row.replicas), len(row.isr)):
            out["error_code"] = 9
    return out


def same(found: Any, image: ClusterImage, version: int, described: bool = False) -> None:
    for topic, wanted in zip(found, sorted(image.topics.values(), key=lambda t: t.name), strict=True):
        assert (topic.name, int(topic.error_code)) == (wanted.name, 0)
        assert getattr(topic, "is_internal", None) in (None, wanted.name.startswith("__"))
        if hasattr(topic, "topic_id"):
            assert base64.urlsafe_b64encode(topic.topic_id.bytes).decode().rstrip("=") == wanted.id
        for row, part in zip(topic.partitions, wanted.partitions, strict=True):
            expected = shown(image, part, version, described)
            read = {name: getattr(row, name) for name in expected if hasattr(row, name)}
            assert read == {name: value for name, value in expected.items() if name in read}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(images(), st.data())
def test_decoded_topics_equal_the_image(node: Harness, image: ClusterImage, data: st.DataObject) -> None:
    client = Client(node)
    for number in range(3):
        node.node.metadata.publish(replace(image, version=node.node.metadata.image.version + 1))
        for version in offered(3):
            everything = client.ask(3, version, {"topics": () if version == 0 else None})
            same(sorted(everything.topics, key=lambda topic: topic.name), image, version)
            live = sorted(row.node for row in image.nodes.values() if not row.fenced)
            assert [row.node_id for row in everything.brokers] == (live or [1])
        same(client.ask(75, 0, {"response_partition_limit": 2000}).topics, image, 0, described=True)
        other = data.draw(images(), label=f"change {number}")
        # A topic that is the same object in both images is not encoded again.
        kept = {name: topic for name, topic in image.topics.items() if data.draw(st.booleans(), label=name)}
        image = replace(other, topics={**other.topics, **kept})
    client.close()


def test_only_what_changed_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = topic_rows.Layout.topic

    def counted(self: topic_rows.Layout, topic: TopicImage, view: topic_rows.View) -> bytes:
        encoded.append(topic.name)
        return encode(self, topic, view)

    monkeypatch.setattr(topic_rows.Layout, "topic", counted)
    nodes = {number: NodeImage(number, "i", 1, "h", 1, (DirectoryRegistration("d", "/d"),)) for number in NODES}
    found = {f"t{n}": TopicImage(f"t{n}", an_id(n + 1), {}, (alone(n % 3 + 1),)) for n in range(9)}
    image, rows = ClusterImage("c", 1, 1, found, {}, nodes), TopicRows()

    def ask(image: ClusterImage) -> list[str]:
        encoded.clear()
        rows.rows(layout_of(12), image.topics.values(), rows.view(image))
        return sorted(encoded)

    assert ask(image) == sorted(found)
    assert ask(image) == ask(replace(image, version=2)) == []
    changed = replace(image, topics={**found, "t4": replace(found["t4"], partitions=(alone(2, epoch=8),))})
    assert ask(changed) == ["t4"]
    fenced = replace(changed, nodes={**nodes, 2: replace(nodes[2], fenced=True)})
    assert ask(fenced) == ["t1", "t4", "t7"], "the topics with a replica on that node"
    offline = replace(
        fenced, nodes={**fenced.nodes, 1: replace(nodes[1], directories=(DirectoryRegistration("d", "/d", False),))}
    )
    assert ask(offline) == ["t0", "t3", "t6"]
    rows.prepare(replace(image, version=9))
    encoded.clear()
    assert ask(image) == [], "encoded before the request"


def alone(node: int, epoch: int = 1) -> PartitionImage:
    return PartitionImage(0, Assignment((node,)), ("d",), (0,), (node,), node, epoch, 1)


def test_layout_without_requests_is_dropped() -> None:
    rows, image = TopicRows(), ClusterImage("c", 1, 1, {"t": TopicImage("t", an_id(1), {}, (alone(1),))}, {}, {})
    for layout in (layout_of(12), layout_of(1)):
        rows.rows(layout, image.topics.values(), rows.view(image))
    for _ in range(topic_rows.IDLE + 1):
        rows.rows(layout_of(12), image.topics.values(), rows.view(image))
        rows.prepare(image)
    assert list(rows._entries) == [layout_of(12)]
    for number in range(500):
        rows.rows(layout_of(12), [TopicImage(f"passing-{number}", "", {}, ())], rows.view(image))
    rows.prepare(image)
    assert list(rows._entries[layout_of(12)]) == ["t"]


@pytest.mark.parametrize("version", [v for v in offered(3) if v >= 8])
def test_authorized_operations_are_in_the_response_on_request(harness: Harness, version: int) -> None:
    harness.create_topic("t")
    client = Client(harness)
    for asked, topic, cluster in ((True, OPERATIONS, 8096), (False, NOT_ASKED, NOT_ASKED)):
        call = {
            "topics": [{"name": "t"}, {"name": "none"}],
            "include_topic_authorized_operations": asked,
            "include_cluster_authorized_operations": asked,
        }
        answer = client.ask(3, version, call)
        assert [row.topic_authorized_operations for row in answer.topics] == [topic, NOT_ASKED]
        assert getattr(answer, "cluster_authorized_operations", cluster) == cluster
    client.close()


@pytest.mark.parametrize("version", [v for v in offered(3) if v >= 10])
def test_topics_by_id_from_version_12_on(harness: Harness, version: int) -> None:
    harness.create_topic("t")
    client = Client(harness)
    known = client.topic_id("t")
    if version < 12:
        (row,) = client.ask(3, version, {"topics": [{"name": "t", "topic_id": known}]}).topics
        assert int(row.error_code) == 42
    else:
        other = replace_last(known)
        asked = [{"name": None, "topic_id": known}, {"name": None, "topic_id": other}, {"name": "t"}, {"name": "t"}]
        rows = client.ask(3, version, {"topics": asked}).topics
        assert [(row.name, int(row.error_code)) for row in rows] == [("t", 0), ("t", 0), (None, 100)]
        assert rows[2].topic_id == other
    client.close()


def replace_last(topic_id: Any) -> Any:
    return type(topic_id)(int=topic_id.int ^ 1)


def describe(client: Client, topics: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    begin = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    names = [{"name": name} for name in topics]
    return client.ask(75, 0, {"topics": names, "response_partition_limit": limit, "cursor": begin})


def named(answer: Any) -> list[tuple[str, int, list[int]]]:
    return [(t.name, int(t.error_code), [row.partition_index for row in t.partitions]) for t in answer.topics]


def test_descriptions_are_paged_in_order_of_names(harness: Harness) -> None:
    for name, count in (("b", 3), ("a", 2), ("c", 1)):
        harness.create_topic(name, count)
    client = Client(harness)
    everything = [("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])]
    answer = describe(client, [])
    assert named(answer) == everything and answer.next_cursor is None
    assert {topic.topic_authorized_operations for topic in answer.topics} == {OPERATIONS}
    for limit in range(7):
        read: dict[str, list[int]] = {}
        cursor, pages = None, 0
        while pages == 0 or cursor is not None:
            answer = describe(client, [], limit, cursor)
            pages += 1
            rows = named(answer)
            assert sum(len(row[2]) for row in rows) <= max(limit, 1)
            for name, _, indexes in rows:
                read.setdefault(name, []).extend(indexes)
            after = answer.next_cursor
            cursor = None if after is None else (after.topic_name, after.partition_index)
        assert read == {name: indexes for name, _, indexes in everything}, limit
    client.close()


def test_descriptions_of_unknown_topics_and_invalid_cursors(harness: Harness) -> None:
    harness.create_topic("b", 2)
    client = Client(harness)
    assert named(describe(client, ["no@name", "b", "a", "b"])) == [("a", 3, []), ("b", 0, [0, 1]), ("no@name", 17, [])]
    assert named(describe(client, ["a", "b"], cursor=("b", 1))) == [("b", 0, [1])]
    assert named(describe(client, ["b"], cursor=("b", 99))) == [("b", 0, [])]
    for cursor in (("c", 0), ("b", -1)):
        assert named(describe(client, ["b"], cursor=cursor)) == [("b", 42, [])]
    answer = describe(client, ["b", "zz"], 2)
    assert named(answer) == [("b", 0, [0, 1])] and answer.next_cursor.topic_name == "zz"
    client.close()


def test_versions_with_the_same_encoding_share_a_layout() -> None:
    assert len({id(layout_of(version)) for version in offered(3)}) == 7
    assert DESCRIBED not in [layout_of(version) for version in offered(3)]
