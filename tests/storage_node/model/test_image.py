"""The cluster image: its one codec, and deltas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.assignment import Assignment
from storage_node.model.ids import TopicPartition
from storage_node.model.image import BadDelta, BadImage, ClusterImage, ImageMessage, Reader, decode, decode_whole
from storage_node.model.metadata import DirectoryRegistration, NodeImage, OfflineReplica, PartitionImage, TopicImage
from storage_node.model.packing import pack, unpack

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "image-v1.json").read_text())


@pytest.mark.parametrize("name", list(GOLDEN))
def test_golden_images_are_read(name: str) -> None:
    assert unpack(GOLDEN[name]["text"]) == GOLDEN[name]["content"]
    image = ClusterImage().after(decode(GOLDEN[name]["text"]))
    assert (image.cluster_generation, image.version) == (
        GOLDEN[name]["content"]["generation"],
        GOLDEN[name]["content"]["version"],
    )


def test_whole_golden_image_is_written_alike() -> None:
    content = GOLDEN["whole"]["content"]
    assert unpack(decode_whole(GOLDEN["whole"]["text"]).encode()) == content


def row(index: int = 0, replicas: tuple[int, ...] = (1,), directory: str = "", epoch: int = 0) -> list[Any]:
    return [index, list(replicas), [], [], [], [directory], [3], list(replicas), replicas[0], epoch, 0]


def whole(version: int = 1, generation: int = 1, **changes: Any) -> dict[str, Any]:
    base = {
        "v": 1,
        "cluster": "c",
        "generation": generation,
        "version": version,
        "from": 0,
        "topics": [["a", "A" * 22, {}, [row()]], ["b", "B" * 22, {"retention.ms": "5"}, [row(), row(1, (2,))]]],
        "gone": [],
        "nodes": [[1, "i", 4, "h", 9, [["d", "/d", 1], ["e", "/e", 0]], 0], [2, "j", 5, "h", 10, [], 1]],
        "configs": [["broker", "", {"x": "1"}], ["broker", "1", {"y": "2"}]],
        "controller": 1,
    }
    return base | changes


def test_look_ups() -> None:
    image = decode_whole(pack(whole()))
    assert image.pair == (1, 1)
    found = image.partition(TopicPartition("b", 1))
    assert found is not None and found.leader == 2 and found.generation_of(2) == 3 and found.generation_of(1) == 0
    assert image.partition(TopicPartition("b", 2)) is None and image.partition(TopicPartition("c", 0)) is None
    assert [node.node for node in image.live_nodes()] == [1]
    assert image.dynamic_configs(1) == ({"y": "2"}, {"x": "1"}) and image.dynamic_configs(2) == ({}, {"x": "1"})
    topic = image.topic_by_id("B" * 22)
    assert topic is not None and topic.name == "b"


@pytest.mark.conformance(110)
@pytest.mark.parametrize(
    ("directory", "known"), [("", None), ("AAAAAAAAAAAAAAAAAAAAAQ", None), ("AAAAAAAAAAAAAAAAAAAAAA", None), ("d", "d")]
)
def test_reserved_directory_ids_say_nothing(directory: str, known: str | None) -> None:
    image = decode_whole(pack(whole(topics=[["a", "A" * 22, {}, [row(directory=directory)]]])))
    found = image.partition(TopicPartition("a", 0))
    assert found is not None and found.directory_of(1) == known


def test_delta_replaces_rows_and_removes_what_is_gone() -> None:
    image = decode_whole(pack(whole()))
    delta = whole(
        2,
        topics=[["c", "C" * 22, {}, [row()]]],
        gone=[["b", "B" * 22]],
        nodes=[[2, "k", 6, "h", 10, [], 0]],
        configs=[["broker", "1", {}]],
        **{"from": 1},
    )
    after = image.after(decode(pack(delta)))
    assert set(after.topics) == {"a", "c"} and after.gone == {"B" * 22: "b"}
    assert after.nodes[1] == image.nodes[1] and after.nodes[2].broker_epoch == 6
    assert after.dynamic_configs(1) == ({}, {"x": "1"})
    again = after.after(
        decode(pack(whole(3, topics=[["b", "D" * 22, {}, [row()]]], nodes=[], configs=[], **{"from": 2})))
    )
    assert again.topics["b"].id == "D" * 22, "a new topic of the old name"
    assert decode_whole(again.encode()) == again


def test_delta_changes_single_partitions_of_an_existing_topic() -> None:
    image = decode_whole(pack(whole()))
    delta = whole(2, topics=[], nodes=[], configs=[], partitions=[["b", [row(1, (2,), epoch=7)]]], **{"from": 1})
    after = image.after(decode(pack(delta)))
    changed = after.partition(TopicPartition("b", 1))
    assert changed is not None and changed.leader_epoch == 7
    assert after.partition(TopicPartition("b", 0)) == image.partition(TopicPartition("b", 0))
    assert after.topics["b"].configs == {"retention.ms": "5"} and after.topics["a"] is image.topics["a"]
    assert decode_whole(after.encode()) == after


@pytest.mark.parametrize("partitions", [[["c", [row()]]], [["b", [row(2)]]]], ids=["topic", "partition"])
def test_delta_of_partitions_that_do_not_exist_is_rejected(partitions: list[Any]) -> None:
    image = decode_whole(pack(whole()))
    with pytest.raises(BadImage, match="does not have"):
        image.after(decode(pack(whole(2, topics=[], nodes=[], configs=[], partitions=partitions, **{"from": 1}))))


@pytest.mark.conformance(111)
@pytest.mark.parametrize("place", [5, 6], ids=["directories", "generations"])
@pytest.mark.parametrize("values", [[], ["", ""]], ids=["too few", "too many"])
def test_each_replica_has_one_directory_and_one_generation(place: int, values: list[Any]) -> None:
    wrong = row()
    wrong[place] = values
    with pytest.raises(BadImage, match="partition 0 has"):
        decode_whole(pack(whole(topics=[["a", "A" * 22, {}, [wrong]]])))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!!!",
        "AAAA",
        pack({"v": 2}),
        pack({"v": 1, "from": 0}),
        pack(whole(topics=[["a"]])),
        pack(whole(nodes=[[1]])),
        pack(whole(**{"from": 3})),
        pack(whole())[:-8],
    ],
)
def test_what_is_no_image_is_refused(text: str) -> None:
    with pytest.raises(BadImage):
        decode_whole(text)


NUMBERS = st.integers(0, (1 << 63) - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
CONFIGS = st.dictionaries(TEXTS, TEXTS, max_size=2)


@st.composite
def partitions(draw: st.DrawFn, index: int) -> PartitionImage:
    nodes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    assignment = Assignment(tuple(nodes))
    if draw(st.booleans()):
        assignment = assignment.reassign(draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)))
    held = assignment.replicas
    isr = draw(st.lists(st.sampled_from(held), unique=True))
    offline = [
        OfflineReplica(node, draw(TEXTS), draw(TEXTS)) for node in draw(st.lists(st.sampled_from(held), unique=True))
    ]
    return PartitionImage(
        index,
        assignment,
        tuple(draw(TEXTS) for _ in held),
        tuple(draw(NUMBERS) for _ in held),
        tuple(isr),
        draw(st.sampled_from((-1, *held))),
        draw(st.integers(-1, 9)),
        draw(st.integers(-1, 9)),
        tuple(offline),
    )


@st.composite
def topics(draw: st.DrawFn, name: str) -> TopicImage:
    rows = tuple(draw(partitions(index)) for index in range(draw(st.integers(0, 3))))
    return TopicImage(name, draw(TEXTS), draw(CONFIGS), rows)


@st.composite
def nodes(draw: st.DrawFn, number: int) -> NodeImage:
    directories = st.builds(DirectoryRegistration, TEXTS, TEXTS, st.booleans())
    start = draw(TEXTS), draw(NUMBERS), draw(TEXTS), draw(NUMBERS)
    held = tuple(draw(st.lists(directories, max_size=2)))
    return NodeImage(number, *start, held, draw(st.booleans()), draw(TEXTS), draw(st.booleans()))


@st.composite
def messages(draw: st.DrawFn) -> ImageMessage:
    since = draw(st.integers(0, 3))
    changed = {name: (draw(partitions(draw(st.integers(0, 9)))),) for name in draw(st.sets(TEXTS, max_size=2))}
    return ImageMessage(
        draw(TEXTS),
        draw(NUMBERS),
        draw(NUMBERS),
        since,
        {name: draw(topics(name)) for name in draw(st.sets(TEXTS, max_size=3))},
        changed if since else {},
        draw(CONFIGS),
        {number: draw(nodes(number)) for number in draw(st.sets(st.integers(0, 9), max_size=3))},
        draw(st.dictionaries(st.tuples(TEXTS, TEXTS), CONFIGS, max_size=2)),
        draw(st.integers(-1, 9)),
    )


@settings(max_examples=100, deadline=None)
@given(message=messages())
def test_what_was_encoded_is_decoded(message: ImageMessage) -> None:
    assert decode(message.encode()) == message
    if not message.since:
        image = ClusterImage().after(message)
        assert decode_whole(image.encode()) == image and image.message() == message
        assert decode_whole(image.encode()).digest == image.digest


@settings(max_examples=60, deadline=None)
@given(message=messages())
def test_reader_of_several_images_reads_what_a_reader_of_one_does(message: ImageMessage) -> None:
    reader = Reader()
    other = replace(message, topics={name: replace(each, id="other") for name, each in message.topics.items()})
    for each in (message, other, other, message):
        assert decode(each.encode(), reader) == each
    again, first = decode(message.encode(), reader), decode(message.encode(), reader)
    assert all(again.topics[name] is first.topics[name] for name in message.topics)


DAMAGE: list[tuple[str, dict[str, Any]]] = [
    ("cluster", {"cluster": 1}),
    ("cluster", {"cluster": "half of a pair: \ud800"}),
    ("generation", {"generation": "1"}),
    ("version", {"version": True}),
    ("from", {"from": -1}),
    ("controller", {"controller": 1.0}),
    ("topics", {"topics": {}}),
    ("topics", {"topics": [["a", "A", {"k": 1}, []]]}),
    ("topics", {"topics": [["a", 5, {}, []]]}),
    ("topics", {"topics": [["a", "A", {}, [row(1)]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[*row()[:8], "1", 0, 0]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[*row()[:8], 1, -2, 0]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[0, [True], *row()[2:]]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[0, [1], [], [], [], [7], [0], [1], 1, 0, 0]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[0, [1], [], [], [], [""], [0], [2], 1, 0, 0]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[0, [1], [2], [], [], [""], [0], [1], 1, 0, 0]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[0, [1, 1], [], [], [], ["", ""], [0, 0], [1], 1, 0, 0]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[0, [], [], [], [], [], [], [], -1, 0, 0]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[0, [[1]], [], [], [], [""], [0], [1], 1, 0, 0]]]]}),
    ("partitions", {"topics": [["a", "A", {}, [[*row(), [[1, 2, 3]]]]]]}),
    ("partitions", {"partitions": [["a"]]}),
    ("partitions", {"partitions": [["a", [row()[:4]]]]}),
    ("nodes", {"nodes": [[1, "i", 4, "h", 9, [["d", "/d", 2]], 0]]}),
    ("nodes", {"nodes": [[1, "i", 4, "h", "9", [], 0]]}),
    ("gone", {"gone": [["a"]]}),
    ("configs", {"configs": [["broker", "", {"x": None}]]}),
]


@pytest.mark.parametrize(("where", "changes"), DAMAGE)
@pytest.mark.parametrize("since", [0, 1])
def test_damaged_row_is_refused_with_its_place(where: str, changes: dict[str, Any], since: int) -> None:
    with pytest.raises(BadImage, match=f"damaged row in {where}: "):
        decode(pack(whole() | {"from": since} | changes))


def test_delta_with_damaged_rows_still_shows_what_it_is_for() -> None:
    with pytest.raises(BadDelta) as damaged:
        decode(pack(whole(7, 3, nodes=[[1]], **{"from": 6})))
    assert damaged.value.header == ImageMessage("c", 3, 7, 6)


def test_rows_may_have_more_fields_than_these() -> None:
    longer = [[*row(), [], "later"]]
    found = decode(
        pack(
            whole(
                topics=[["a", "A", {}, longer, "later"]],
                nodes=[[1, "i", 4, "h", 9, [["d", "/d", 1, "later"]], 0, "r", 1, 5]],
            )
        )
    )
    assert found.topics["a"].partitions == decode(pack(whole())).topics["a"].partitions
    assert found.nodes[1].rack == "r" and found.nodes[1].unclean


def test_change_of_one_partition_keeps_all_other_values() -> None:
    image = decode_whole(pack(whole()))
    kept = image.topics["b"].partitions[0]
    assert image.digest
    after = image.after(
        decode(
            pack(whole(2, topics=[], nodes=[], configs=[], partitions=[["b", [row(1, (2,), epoch=7)]]], **{"from": 1}))
        )
    )
    assert after.topics["a"] is image.topics["a"] and after.topics["b"].partitions[0] is kept
    assert after.nodes[1] is image.nodes[1]
    assert kept._digest is not None and after.topics["b"].partitions[1]._digest is None, "nothing else is hashed again"
    assert after.digest == decode_whole(after.encode()).digest != image.digest
