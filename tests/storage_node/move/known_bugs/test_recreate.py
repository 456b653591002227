"""Apache Kafka's bugs when a topic is deleted and made again, and with replicas that are taken for strays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import Harness, until

TP = TopicPartition("t", 0)


def test_topic_deleted_and_made_again_while_the_node_was_down(harness: Harness) -> None:
    # KAFKA-14616: the stray replica confused the start, and the new replica was never made.
    harness.create_topic("t")
    harness.produce("t", [b"old"] * 50)
    harness.settle()
    harness.stop()
    image = harness.controller.image
    topic = image.topics["t"]
    row = topic.partitions[0]
    new = replace(topic, id="B" * 21 + "A", partitions=(replace(row, directories=("",), generations=(0,)),))
    harness.controller.image = replace(
        image, topics={"t": new}, gone={**image.gone, topic.id: "t"}, version=image.version + 1
    )
    harness.node = harness._new(0)
    harness.start()
    until(lambda: (p := harness.node.partition(TP)) is not None and p.topic_id == "B" * 21 + "A")
    harness.produce("t", [b"new"])
    assert [m.value() for m in harness.consume("t", 1)] == [b"new"]
    until(lambda: sum(len(list(Path(path).glob("t-0*"))) for path in harness.paths) == 1, what="the old one is gone")


@pytest.mark.conformance(93)
@pytest.mark.parametrize("known", [True, False])
def test_start_deletes_nothing_that_is_assigned_or_unknown(harness: Harness, known: bool) -> None:
    # KAFKA-13127: an inverted condition deleted every replica that was NOT a stray.
    harness.create_topic("t", 6)
    harness.create_topic("other", 3)
    harness.produce("t", [b"x"] * 10)
    harness.settle()
    harness.stop()
    if not known:
        image = harness.controller.image
        harness.controller.image = replace(image, topics={}, version=image.version + 1)
    harness.node = harness._new(0)
    harness.start()
    found = sorted(path.name for root in harness.paths for path in Path(root).glob("*-[0-9]"))
    assert found == [f"other-{part}" for part in range(3)] + [f"t-{part}" for part in range(6)]


@pytest.mark.conformance(91, 95)
def test_replica_without_its_topic_id_is_served_as_what_its_name_says(harness: Harness) -> None:
    # KAFKA-16814: a missing partition.metadata after an unclean stop kept the broker from starting.
    harness.create_topic("t")
    harness.produce("t", [b"x"] * 10)
    harness.settle()
    path = Path(harness.directory_of("t")) / "t-0" / "partition.metadata"
    harness.stop(clean=False)
    path.unlink()
    harness.node = harness._new(0)
    harness.start()
    assert [m.offset() for m in harness.consume("t", 10)] == list(range(10))


def test_images_again_and_older_ones_do_not_disturb_a_move(harness: Harness) -> None:
    # KAFKA-13790: a partition update of the same or an older epoch reset the fetchers of a move.
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"x" * 1000] * 200, batch_num_messages=1)
    harness.settle()
    target = harness.other_directory("t")
    older = harness.controller.image.encode()
    harness.controller.change(configs={("broker", ""): {"log.retention.ms": "100000000"}})
    claim = harness.node.engine.create(TP, target, owner="run", throttle=50_000).claim
    harness.node.engine.start_copy(TP, claim, 50_000)
    until(lambda: harness.node.engine.statuses()[0].bytes_copied > 0)
    same = harness.controller.image.encode()
    for text in (same, older, same, older):
        harness.node.apply_images([text])
    status = harness.node.engine.statuses()[0]
    assert status.state.under_way and status.attempt == 1, status
    harness.node.engine.set_throttle(TP, claim, None)
    until(lambda: not harness.node.engine.wait(TP, claim, 1).state.under_way)
    until(lambda: harness.node.engine.swap(TP, claim).outcome == "swapped")
    assert harness.directory_of("t") == target and len(harness.consume("t", 200)) == 200
