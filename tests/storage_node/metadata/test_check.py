"""A node whose metadata is not the controller's logs it, and requests a whole image, though not again and again."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise

import pytest

from storage_node.metadata.cache import MetadataCache
from storage_node.metadata.check import LONGEST_PAUSE, PATIENCE, PAUSE, MetadataCheck
from storage_node.model.ids import TopicPartition
from storage_node.model.image import BadImage, ClusterImage
from storage_node.model.metadata import NodeImage

OURS = ClusterImage("c", 1, 5, nodes={1: NodeImage(1, "i", 1, "h", 9)})
THEIRS = ClusterImage("c", 1, 5, nodes={1: NodeImage(1, "i", 1, "h", 10)})


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.requests = 0
        self.metadata = MetadataCache(OURS)
        self.check = MetadataCheck(self.metadata, lambda: self.now)
        self.check.request_whole = self.requested

    def requested(self) -> None:
        self.requests += 1

    def differs(self) -> bool:
        return not self.check.look(1, 5, THEIRS.digest)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_equal_metadata_is_nothing_to_speak_of(scene: Scene) -> None:
    assert scene.check.look(1, 5, OURS.digest)
    assert not scene.check.expects_whole and scene.requests == 0
    assert scene.check.status() == {"differs": False, "differences": 0, "last_difference": None}


@pytest.mark.parametrize(
    ("generation", "version", "digest"),
    [(1, 4, THEIRS.digest), (1, 6, THEIRS.digest), (2, 5, THEIRS.digest), (1, 5, "2:" + THEIRS.digest[2:]), (1, 5, "")],
)
def test_metadata_of_another_version_and_digests_of_another_format_are_not_compared(
    scene: Scene, generation: int, version: int, digest: str
) -> None:
    assert scene.check.look(generation, version, digest)
    assert scene.requests == 0


def test_difference_is_logged_and_shown_and_the_whole_image_requested(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    assert scene.differs()
    assert scene.check.expects_whole and scene.requests == 1
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "generation 1, version 5 is not the controller's" in record.getMessage()
    assert OURS.digest in record.getMessage() and THEIRS.digest in record.getMessage()
    assert scene.check.status() == {
        "differs": True,
        "differences": 1,
        "last_difference": {
            "generation": 1,
            "version": 5,
            "digest": OURS.digest,
            "controller_digest": THEIRS.digest,
        },
    }


def test_delta_that_does_not_fit_is_a_difference_for_which_the_whole_image_is_requested(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.check.misfit(OURS, (1, 6), BadImage("a delta changes partitions of t"))
    scene.check.misfit(OURS, (1, 7), BadImage("a delta changes partitions of t"))
    assert scene.check.pair == (0, 0) and scene.requests == 1, "another one only after the pause"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "partitions of t" in record.getMessage()
    assert scene.check.status() == {
        "differs": True,
        "differences": 2,
        "last_difference": {
            "generation": 1,
            "version": 5,
            "digest": OURS.digest,
            "misfit": "a delta changes partitions of t",
        },
    }


def test_difference_that_lasts_is_followed_up_without_a_reply_that_shows_it(scene: Scene) -> None:
    scene.check.request_again()
    assert scene.requests == 0, "nothing differs"
    scene.differs()
    asked = []
    for second in range(1, 300):
        scene.now, before = float(second), scene.requests
        scene.check.request_again()
        if scene.requests > before:
            asked.append(second)
    assert asked == [30, 90, 210]
    assert scene.check.look(1, 5, OURS.digest)
    scene.now += LONGEST_PAUSE
    scene.check.request_again()
    assert scene.requests == 4, "the metadata agrees"


def test_batch_makes_the_controller_collect_where_its_image_goes_back(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.differs()
    assert scene.check.pair == (0, 0)
    scene.check.contradicted(OURS, [TopicPartition("t", index) for index in range(7)])
    assert scene.check.pair == (2, 0) and scene.requests == 2, "above the controller's, at once"
    assert "t-0, t-1, t-2, t-3, t-4 and 2 more" in caplog.records[-1].getMessage()
    status = scene.check.status()
    assert status["differs"] and status["last_difference"]["contradicted"].endswith("and 2 more")
    scene.metadata.publish(replace(OURS, cluster_generation=2))
    assert scene.check.pair == (2, 5), "it has collected: nothing is above what came of it"


def test_controller_that_goes_back_again_and_again_collects_ever_less_often(scene: Scene) -> None:
    asked = []
    for second in range(300):
        scene.now, before = float(second), scene.requests
        scene.check.contradicted(OURS, [TopicPartition("t", 0)])
        if scene.requests > before:
            asked.append(second)
    assert asked == [0, 30, 90, 210]
    assert scene.check.status()["differs"], "for as long as the image is not taken"
    assert scene.check.pair == (1, 5), "the request has lapsed"


def test_metadata_that_agrees_again_is_logged_and_shown(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.differs()
    assert scene.check.look(1, 5, OURS.digest)
    assert "the controller's again" in caplog.records[-1].getMessage()
    assert not scene.check.expects_whole and scene.check.status()["differs"] is False
    assert scene.check.status()["differences"] == 1, "that it happened stays to be seen"


def test_whole_image_is_expected_until_it_came_or_for_a_while(scene: Scene) -> None:
    scene.differs()
    scene.check.replaced()
    assert not scene.check.expects_whole
    scene.now += PAUSE
    scene.differs()
    scene.now += PATIENCE
    assert not scene.check.expects_whole


def test_whole_images_that_do_not_help_are_requested_ever_less_often(scene: Scene) -> None:
    requested = []
    for second in range(int(4 * LONGEST_PAUSE)):
        scene.now = float(second)
        before = scene.requests
        assert scene.differs()
        scene.check.replaced()
        if scene.requests > before:
            requested.append(scene.now)
    pauses = [after - before for before, after in pairwise(requested)]
    assert pauses[:4] == [PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE]
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST_PAUSE
    scene.now += 3 * LONGEST_PAUSE
    scene.differs()
    scene.now += PAUSE
    before = scene.requests
    scene.differs()
    assert scene.requests == before + 1, "long after, it starts over"
