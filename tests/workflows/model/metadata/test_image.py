"""Cluster images: a receiver that takes what it is sent knows what the controller knows."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.image import decode
from storage_node.model.packing import compressed, pack, unpack
from tests.golden.make_image import example
from tests.workflows.model.replicated import reassign, replicated
from tests.workflows.model.support import cluster, create, done, lost, raising_rows, registration, topics_after
from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState

GOLDEN = Path(__file__).parents[3] / "golden" / "image-v1.json"


class Receiver:
    """What a node does with images."""

    def __init__(self) -> None:
        self.pair = (0, 0)
        self.topics: dict[str, Any] = {}
        self.nodes: dict[int, Any] = {}

    def take(self, texts: list[str]) -> None:
        for text in texts:
            found = decode(text)
            if found.pair <= self.pair:
                continue
            if found.since == 0:
                self.nodes = {}
            else:
                assert found.cluster_generation == self.pair[0] and self.pair[1] >= found.since
            self.topics = topics_after(self.topics, found)
            self.nodes.update(found.nodes)
            self.pair = found.pair

    def knows(self, state: ClusterState) -> bool:
        return self.pair == state.pair and self.topics == state.topics and self.nodes == state.nodes


def test_format_is_the_recorded_one() -> None:
    recorded = json.loads(GOLDEN.read_text())
    for name, state, since in example():
        (text,) = image.since(state, *since)
        assert unpack(text) == recorded[name]["content"], name
        assert decode(recorded[name]["text"]) == decode(text)


def test_delta_has_only_what_is_new() -> None:
    state = cluster(2, t=1, u=1)
    known = state.pair
    state = done(done(state, create("v")), {"do": "delete_topics", "names": ["t"]})
    (text,) = image.since(state, *known)
    found = decode(text)
    assert (found.since, sorted(found.topics), list(found.gone.values())) == (known[1], ["v"], ["t"])
    assert image.since(state, *state.pair) == []


def changed_in(text: str) -> tuple[list[str], dict[str, list[int]]]:
    """The topics that an image has whole, and the partitions that it has of others."""
    found = decode(text)
    return sorted(found.topics), {name: [each.index for each in rows] for name, rows in found.partitions.items()}


@pytest.mark.feature("455-32")
def test_change_of_one_partition_does_not_bring_the_others() -> None:
    state = cluster(3, t=30, u=1)
    known = state.pair
    state = done(state, {"do": "raise_generations", "node": 2, "replicas": [["t", 4, "", "d2", 0]]})
    (text,) = image.since(state, *known)
    assert changed_in(text) == ([], {"t": [4]})
    (text,) = image.since(ClusterState.of(unpack(pack(state.rows()))), *known)
    assert changed_in(text) == ([], {"t": [4]}), "nor after a continue-as-new"
    between = state.pair
    state = done(state, {"do": "raise_generations", "node": 3, "replicas": [["t", 5, "", "d3", 0]]})
    assert changed_in(image.since(state, *between)[0]) == ([], {"t": [5]})
    assert changed_in(image.since(state, *known)[0]) == ([], {"t": [4, 5]})
    assert changed_in(image.since(state, 1, 0)[0]) == (["t", "u"], {}), "who has nothing gets all of it"


@pytest.mark.feature("455-32")
def test_reassignment_brings_its_own_partitions_alone() -> None:
    state = replicated(*[(1, 2)] * 30, nodes=4)
    known = state.pair
    begun = done(state, reassign((4, (3, 4)), (7, (2, 3))))
    (text,) = image.since(begun, *known)
    assert changed_in(text) == ([], {"t": [4, 7]})
    assert [each.assignment.adding for each in decode(text).partitions["t"]] == [(3, 4), (3,)]
    (text,) = image.since(done(begun, reassign((4, None))), *begun.pair)
    assert changed_in(text) == ([], {"t": [4]})


@pytest.mark.parametrize(
    "command",
    [
        {"do": "create_partitions", "topics": [{"name": "t", "count": 4}]},
        {"do": "alter_configs", "kind": "topic", "name": "t", "changes": {"retention.ms": "5"}},
    ],
    ids=["partitions", "configs"],
)
def test_topic_that_changes_itself_is_sent_whole(command: dict[str, Any]) -> None:
    state = cluster(3, t=3)
    known = state.pair
    state = done(done(state, command), raising_rows(2))
    assert changed_in(image.since(state, *known)[0]) == (["t"], {})


def test_delta_for_a_failed_node_has_the_partitions_that_it_held() -> None:
    state = cluster(9)
    for number in range(40):
        state = done(state, create(f"topic-{number}", 9))
    known = state.pair
    after = done(state, lost(1))
    whole, partitions = changed_in(image.since(after, *known)[0])
    assert whole == [] and sum(map(len, partitions.values())) == sum(
        1 in each.replicas for topic in state.topics.values() for each in topic.partitions
    )


def test_receiver_of_another_generation_gets_the_whole_image() -> None:
    state = cluster(1, t=1)
    (text,) = image.since(replace(state, cluster_generation=5), 4, state.version)
    assert decode(text).since == 0


def test_images_controller_is_the_first_unfenced_node() -> None:
    state = cluster(2)
    assert unpack(image.whole(state)[0])["controller"] == 1
    assert unpack(image.whole(done(state, lost(1)))[0])["controller"] == 2


@settings(max_examples=60, deadline=None)
@given(data=st.data(), limit=st.sampled_from([300, 800, 1_000_000]))
def test_receivers_of_all_or_some_images_end_with_the_same_metadata(data: st.DataObject, limit: int) -> None:
    state = cluster(2, t=3)
    receiver = Receiver()
    for step in range(data.draw(st.integers(1, 8))):
        command = data.draw(
            st.sampled_from(
                [
                    create(f"n{step}", 3),
                    lost(1),
                    registration(1),
                    {"do": "delete_topics", "names": ["t"]},
                    raising_rows(2),
                ]
            )
        )
        state = image_of_any(state, command)
        if data.draw(st.booleans()):
            parts = image.since(state, *receiver.pair, limit=limit)
            # A node may go down between two parts and come back with what it has.
            receiver.take(parts[: data.draw(st.integers(0, len(parts)))])
    receiver.take(image.since(state, *receiver.pair, limit=limit))
    assert receiver.knows(state)


def image_of_any(state: ClusterState, command: Any) -> ClusterState:
    from tests.workflows.model.support import apply

    return apply(state, command).state


@pytest.mark.feature("455-32")
def test_large_image_is_split_below_the_limit() -> None:
    state = cluster(9)
    for number in range(40):
        state = done(state, create(f"topic-{number}", 50))
    parts = image.whole(state, limit=1_000)
    assert len(parts) > 1 and all(len(part) <= 1_000 for part in parts)
    receiver = Receiver()
    receiver.take(parts)
    assert receiver.knows(state)


def test_image_is_split_independent_of_its_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster(9)
    for number in range(40):
        state = done(state, create(f"topic-{number}", 5))
    compress = zlib.compress
    cuts = []
    for level in (0, 1, 9):
        monkeypatch.setattr(zlib, "compress", lambda text, _, level=level: compress(text, level))
        cuts.append([decode(part).version for part in image.whole(state, limit=4_000)])
    assert len(cuts[0]) > 1 and cuts[0] == cuts[1] == cuts[2]


def test_image_that_cannot_be_compressed_fits_into_one_event() -> None:
    assert len(compressed(random.Random(1).randbytes(image.MAX_BYTES))) < 1_900_000


@pytest.mark.feature("455-32")
def test_stated_limits_fit_into_one_message() -> None:
    state = cluster(9)
    topics = [{"name": f"a-topic-with-a-long-name-{number}", "partitions": 20} for number in range(1_000)]
    state = done(state, {"do": "create_topics", "topics": topics})
    assert all(len(part) <= image.MAX_BYTES for part in image.whole(state))


@pytest.mark.conformance(111)
@pytest.mark.parametrize("place", [5, 6], ids=["directories", "generations"])
def test_each_replica_has_one_directory_and_one_generation(place: int) -> None:
    (text,) = image.whole(cluster(1, t=1))
    content = unpack(text)
    content["topics"][0][3][0][place] = ["", ""]
    with pytest.raises(ValueError, match="partition 0 has"):
        decode(pack(content))


@pytest.mark.parametrize("text", ["", "%%%", "aGVsbG8=", pack({"v": 2}), pack({"v": 1})])
def test_damaged_image_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        decode(text)


def test_state_reads_as_its_own_image() -> None:
    state = cluster(2, t=2)
    (text,) = image.whole(state)
    assert state.message() == decode(text)
