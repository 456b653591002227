"""The digest of the metadata: the same at the controller and at a node that took its images, another one for anything
that images convey.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model import digest
from storage_node.model.assignment import Assignment
from storage_node.model.image import ClusterImage, decode
from storage_node.model.metadata import OfflineReplica, PartitionImage, TopicImage
from storage_node.model.packing import pack, unpack
from tests.golden.make_image import example
from tests.workflows.model.metadata.test_image import GOLDEN, image_of_any
from tests.workflows.model.support import cluster, create, done, lost, raising_rows, registration
from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState

SECONDS = 2.0  # of CPU for the digest of the largest cluster: a tenth of it on a machine that is free


def taken(known: ClusterImage, texts: list[str]) -> ClusterImage:
    """What a node knows after these images."""
    for text in texts:
        message = decode(text)
        assert message.since <= known.version
        known = known.after(message)
    return known


def test_digests_are_the_recorded_ones() -> None:
    recorded = json.loads(GOLDEN.read_text())
    assert {name: state.digest for name, state, _ in example()} == {name: recorded[name]["digest"] for name in recorded}


COMMANDS = [
    lost(1),
    registration(1),
    registration(2, "again"),
    registration(1) | {"rack": "r", "unclean": True},
    {"do": "delete_topics", "names": ["t"]},
    create("t", 2),
    create("u", 3),
    raising_rows(2),
    {"do": "alter_configs", "kind": "topic", "name": "t", "changes": {"retention.ms": "7", "segment.ms": "9"}},
    {"do": "alter_configs", "kind": "broker", "name": "", "changes": {"log.retention.ms": "7"}},
    {"do": "alter_configs", "kind": "broker", "name": "", "changes": {"log.retention.ms": None}},
    {"do": "next_producer_ids", "count": 5},
]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), limit=st.sampled_from([300, 800, 1_000_000]))
def test_node_that_applies_the_images_computes_the_controllers_digest(data: st.DataObject, limit: int) -> None:
    state, known = cluster(2, t=3), ClusterImage()
    for command in data.draw(st.lists(st.sampled_from(COMMANDS), max_size=8)):
        state = image_of_any(state, command)
        if data.draw(st.booleans()):
            known = taken(known, image.since(state, *known.pair, limit=limit))
            assert (known.pair, known.digest) == (state.pair, state.digest)
    known = taken(known, image.since(state, *known.pair, limit=limit))
    assert known.digest == state.digest == taken(ClusterImage(), image.whole(state, limit=limit)).digest
    assert ClusterState.of(unpack(pack(state.rows()))).digest == state.digest, "as it was carried to another run"


def test_every_part_of_a_split_image_is_a_base_for_the_next_delta() -> None:
    states = [cluster(2, t=3)]
    story = [raising_rows(2), create("u", 2), lost(1), create("v"), registration(1), lost(2), registration(2),
             {"do": "delete_topics", "names": ["u"]}, create("u")]  # fmt: skip
    for command in story:
        states.append(image_of_any(states[-1], command))
    partial = 0
    for at, state in enumerate(states):
        for known in [ClusterImage(), *(taken(ClusterImage(), image.whole(each)) for each in states[:at])]:
            parts = image.since(state, *known.pair, limit=1)
            for count in range(1, len(parts)):
                held, partial = taken(known, parts[:count]), partial + 1
                for later in states[at:]:
                    after = taken(held, image.since(later, *held.pair))
                    assert (after.pair, after.digest) == (later.pair, later.digest), (known.pair, held.pair, later.pair)
    assert partial > 150


def offline(reason: str) -> PartitionImage:
    return replace(PARTITION, offline=(OfflineReplica(1, reason, "/d/t-0"),))


PARTITION = PartitionImage(0, Assignment((1, 2)), ("a", "b"), (0, 0), (1, 2), 1, 3, 4)
TOPIC = TopicImage("t", "T" * 22, {"retention.ms": "1"}, (PARTITION, replace(PARTITION, index=1, leader=2)))


def with_partition(**changes: Any) -> Callable[[ClusterState], ClusterState]:
    return lambda state: state.with_topics(
        replace(TOPIC, partitions=(replace(PARTITION, **changes), TOPIC.partitions[1]))
    )


def with_node(**changes: Any) -> Callable[[ClusterState], ClusterState]:
    return lambda state: state.with_node(replace(state.nodes[1], **changes))


DIFFERENCES: dict[str, Callable[[ClusterState], ClusterState]] = {
    "nothing but the version": lambda state: replace(state, version=state.version + 7),
    "the order of replicas": with_partition(
        assignment=Assignment((2, 1)), directories=("a", "b"), generations=(0, 0), isr=(1, 2)
    ),
    "adding": with_partition(assignment=Assignment((1, 2), adding=(2,), original=(1,))),
    "removing": with_partition(assignment=Assignment((1, 2), removing=(2,), original=(1, 2))),
    "original": with_partition(assignment=Assignment((1, 2), removing=(2,), original=(2, 1))),
    "a directory": with_partition(directories=("a", "c")),
    "a generation": with_partition(generations=(0, 1)),
    "the ISR": with_partition(isr=(1,)),
    "the leader": with_partition(leader=2),
    "the leader epoch": with_partition(leader_epoch=4),
    "the partition epoch": with_partition(partition_epoch=5),
    "an offline replica": with_partition(offline=(OfflineReplica(1, "gone", "/d/t-0"),)),
    "why it is offline": with_partition(offline=(OfflineReplica(1, "göne\u2028\U0001f4be", "/d/t-0"),)),
    "partitions that change places": lambda state: state.with_topics(
        replace(TOPIC, partitions=(replace(TOPIC.partitions[1], index=0), replace(TOPIC.partitions[0], index=1)))
    ),
    "a partition less": lambda state: state.with_topics(replace(TOPIC, partitions=TOPIC.partitions[:1])),
    "a topic's id": lambda state: state.with_topics(replace(TOPIC, id="U" * 22)),
    "a topic's configs": lambda state: state.with_topics(replace(TOPIC, configs={"retention.ms": "2"})),
    "a topic less": lambda state: state.without_topic("t"),
    "a topic more": lambda state: state.with_topics(replace(TOPIC, name="u", id="U" * 22)),
    "an incarnation": with_node(incarnation="another"),
    "a broker epoch": with_node(broker_epoch=9),
    "a host": with_node(host="elsewhere"),
    "a port": with_node(port=9),
    "a fenced node": with_node(fenced=True),
    "a rack": with_node(rack="r"),
    "unclean": with_node(unclean=True),
    "configs of a broker": lambda state: state.with_configs("broker", "1", {"log.retention.ms": "2"}),
    "no configs of a broker": lambda state: state.with_configs("broker", "1", {}),
}


def test_digest_depends_on_everything_in_images() -> None:
    state = cluster(2).with_topics(TOPIC)
    digests = {what: change(state).digest for what, change in DIFFERENCES.items()}
    assert digests.pop("nothing but the version") == state.digest
    assert len({state.digest, *digests.values()}) == len(digests) + 1
    for what, change in DIFFERENCES.items():
        assert taken(ClusterImage(), image.whole(change(state))).digest == change(state).digest, what


def test_digest_is_the_same_in_every_version_of_python_and_with_every_hash_seed() -> None:
    assert digest.text(offline("göne\u2028\U0001f4be").digest) == "1:92c87b847dbfdb09e549a88f11677dd2"


def test_digest_ignores_deletions_and_producer_ids() -> None:
    state = done(cluster(1, t=1), {"do": "delete_topics", "names": ["t"]})
    assert replace(state, gone={}, next_producer_id=77).digest == state.digest


def largest() -> ClusterState:
    """A cluster at the stated limits: 9 nodes, 952 topics, 19,992 replicas."""
    state = cluster(9)
    topics = [{"name": f"a-topic-{number}", "partitions": 7, "replication_factor": 3} for number in range(952)]
    return done(state, {"do": "create_topics", "topics": topics})


def test_only_what_has_changed_is_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = largest()
    began = time.process_time()
    assert state.digest
    assert time.process_time() - began < SECONDS
    known = taken(ClusterImage(), image.whole(state))
    began = time.process_time()
    assert known.digest == state.digest
    assert time.process_time() - began < SECONDS

    hashed: list[tuple[object, ...]] = []
    of_row = digest.of_row

    def count(row: tuple[object, ...]) -> int:
        hashed.append(row)
        return of_row(row)

    monkeypatch.setattr(digest, "of_row", count)
    topic = state.topics["a-topic-77"]
    after = state.with_topics(
        replace(topic, partitions=(replace(topic.partitions[0], leader_epoch=9), *topic.partitions[1:]))
    )
    assert after.digest != state.digest
    assert len(hashed) == 2, "the partition, and what its topic consists of"
    hashed.clear()
    assert after.digest and replace(after, next_producer_id=9).digest
    assert not hashed
