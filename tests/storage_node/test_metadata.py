"""The cluster image: the codec shared with the controller, deltas, and the cache."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from storage_node.metadata import (
    BadImage,
    ClusterImage,
    MetadataCache,
    decode,
    decode_row,
    encode_row,
)
from storage_node.types import TopicPartition

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "image-v1.json").read_text())


@pytest.mark.parametrize("name", list(GOLDEN))
def test_the_golden_images_are_read(name: str) -> None:
    assert decode_row(GOLDEN[name]["text"]) == GOLDEN[name]["content"]
    image = ClusterImage().apply(decode_row(GOLDEN[name]["text"]))
    assert (image.generation, image.version) == (
        GOLDEN[name]["content"]["generation"],
        GOLDEN[name]["content"]["version"],
    )


def test_a_whole_golden_image_is_written_alike() -> None:
    content = GOLDEN["whole"]["content"]
    assert decode_row(decode(GOLDEN["whole"]["text"]).encode()) == content


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
    image = decode(encode_row(whole()))
    assert image.age == (1, 1)
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
    image = decode(encode_row(whole(topics=[["a", "A" * 22, {}, [row(directory=directory)]]])))
    found = image.partition(TopicPartition("a", 0))
    assert found is not None and found.directory_of(1) == known


def test_a_delta_replaces_rows_and_removes_what_is_gone() -> None:
    image = decode(encode_row(whole()))
    delta = whole(
        2,
        topics=[["c", "C" * 22, {}, [row()]]],
        gone=[["b", "B" * 22]],
        nodes=[[2, "k", 6, "h", 10, [], 0]],
        configs=[["broker", "1", {}]],
        **{"from": 1},
    )
    after = image.apply(delta)
    assert set(after.topics) == {"a", "c"} and after.gone == {"B" * 22: "b"}
    assert after.nodes[1] == image.nodes[1] and after.nodes[2].broker_epoch == 6
    assert after.dynamic_configs(1) == ({}, {"x": "1"})
    again = after.apply(whole(3, topics=[["b", "D" * 22, {}, [row()]]], nodes=[], configs=[], **{"from": 2}))
    assert again.topics["b"].id == "D" * 22, "a new topic of the old name"
    assert decode(again.encode()) == again


def test_a_delta_may_change_single_partitions_of_a_topic_that_is_there() -> None:
    image = decode(encode_row(whole()))
    delta = whole(2, topics=[], nodes=[], configs=[], partitions=[["b", [row(1, (2,), epoch=7)]]], **{"from": 1})
    after = image.apply(delta)
    changed = after.partition(TopicPartition("b", 1))
    assert changed is not None and changed.leader_epoch == 7
    assert after.partition(TopicPartition("b", 0)) == image.partition(TopicPartition("b", 0))
    assert after.topics["b"].configs == {"retention.ms": "5"} and after.topics["a"] is image.topics["a"]
    assert decode(after.encode()) == after


@pytest.mark.parametrize("partitions", [[["c", [row()]]], [["b", [row(2)]]]], ids=["topic", "partition"])
def test_a_delta_of_partitions_that_are_not_there_is_refused(partitions: list[Any]) -> None:
    image = decode(encode_row(whole()))
    with pytest.raises(BadImage, match="does not have"):
        image.apply(whole(2, topics=[], nodes=[], configs=[], partitions=partitions, **{"from": 1}))


@pytest.mark.conformance(111)
@pytest.mark.parametrize("place", [5, 6], ids=["directories", "generations"])
@pytest.mark.parametrize("values", [[], ["", ""]], ids=["too few", "too many"])
def test_each_replica_has_one_directory_and_one_generation(place: int, values: list[Any]) -> None:
    wrong = row()
    wrong[place] = values
    with pytest.raises(BadImage, match="partition 0 has"):
        decode(encode_row(whole(topics=[["a", "A" * 22, {}, [wrong]]])))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!!!",
        "AAAA",
        encode_row({"v": 2}),
        encode_row({"v": 1, "from": 0}),
        encode_row(whole(topics=[["a"]])),
        encode_row(whole(nodes=[[1]])),
        encode_row(whole(**{"from": 3})),
        encode_row(whole())[:-8],
    ],
)
def test_what_is_no_image_is_refused(text: str) -> None:
    with pytest.raises(BadImage):
        decode(text)


def test_who_waits_for_a_version_is_woken() -> None:
    cache = MetadataCache()
    image = decode(encode_row(whole(5)))
    seen: list[int] = []
    waiter = threading.Thread(target=lambda: seen.append(cache.wait_for_version(5, 10)))
    waiter.start()
    with cache.listening(lambda published: seen.append(published.version)):
        cache.publish(image)
    waiter.join()
    cache.publish(decode(encode_row(whole(6))))
    assert sorted(seen) == [True, 5]
    assert not cache.wait_for_version(7, 0.01)
