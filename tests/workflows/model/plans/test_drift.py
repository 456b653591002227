"""What may have become of a move between the plan and its turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workflows.model.plans.support import (
    MB,
    cluster,
    directory_move,
    disk,
    tp,
    with_directory,
    with_future,
    with_node,
    with_state,
)
from workflows.model.move.parameter import ANY
from workflows.model.plans.drift import DriftKind, checked
from workflows.model.plans.values import ClusterView, MoveKind, PlannedMove

VIEW = cluster({"t-0": ["1:/a", "2:/a"]}, sizes={"t-0": 10 * MB})
INSIDE = directory_move("t-0", "1:/a", "1:/b", 10 * MB)
ACROSS = PlannedMove(
    MoveKind.REPLICAS,
    tp("t-0"),
    10 * MB,
    before=(1, 2),
    after=(1, 3),
    reads=(disk("1:/a"),),
    writes=(disk("3:/b"),),
)
ANYWHERE = replace(ACROSS, writes=(disk(f"3:{ANY}"),))
OURS = {"replicas": (1, 3, 2), "adding": (3,), "removing": (2,)}
OFFLINE = {"error": "KAFKA_STORAGE_ERROR"}


@pytest.mark.parametrize(
    ("move", "view", "kind", "words"),
    [
        (INSIDE, VIEW, "needed", ""),
        (ACROSS, VIEW, "needed", ""),
        (ANYWHERE, VIEW, "needed", ""),
        (INSIDE, with_future(VIEW, 1, "t-0", "/b"), "needed", ""),
        (ACROSS, with_state(VIEW, "t-0", **OURS), "needed", ""),
        (INSIDE, cluster({"t-0": ["1:/b", "2:/a"]}), "done", ""),
        (ACROSS, cluster({"t-0": ["1:/a", "3:/b"]}), "done", ""),
        (INSIDE, cluster({"t-1": ["1:/a"]}), "topic_deleted", "t-0 no longer exists"),
        (ACROSS, cluster({}), "topic_deleted", "t-0 no longer exists"),
        (INSIDE, cluster({"t-0": ["2:/a", "3:/a"]}), "replicas_changed", "broker 1 no longer has a replica"),
        (INSIDE, cluster({"t-0": ["1:/c", "2:/a"]}), "replicas_changed", "in /c now, not in /a"),
        (ACROSS, cluster({"t-0": ["2:/a", "4:/a"]}), "replicas_changed", "are 2, 4 now, not 1, 2"),
        (ACROSS, cluster({"t-0": ["3:/b", "1:/a"]}), "replicas_changed", "are 3, 1 now, not 1, 2"),
        (ACROSS, with_state(VIEW, "t-0", replicas=(2, 1)), "needed", ""),
        (replace(ACROSS, after=(3, 1)), with_state(VIEW, "t-0", **OURS), "needed", ""),
        (replace(ACROSS, after=(2, 1), writes=()), VIEW, "needed", ""),
        (replace(ACROSS, after=(2, 1), writes=()), with_state(VIEW, "t-0", replicas=(2, 1)), "done", ""),
        (INSIDE, with_future(VIEW, 1, "t-0", "/c"), "foreign_reassignment", "moves the replica of broker 1 to /c"),
        (ACROSS, with_state(VIEW, "t-0", replicas=(1, 2, 4), adding=(4,)), "foreign_reassignment", "to 1, 2, 4"),
        (INSIDE, with_directory(VIEW, "1:/b", **OFFLINE), "target_gone", "/b of broker 1 is offline"),
        (ACROSS, with_directory(VIEW, "3:/b", **OFFLINE), "target_gone", "/b of broker 3 is offline"),
        (ACROSS, cluster({"t-0": ["1:/a", "2:/a"]}, disks=["1:/a", "2:/a", "3:/a"]), "target_gone", "log.dirs"),
        (ANYWHERE, with_node(VIEW, 3, responds=False), "broker_unavailable", "broker 3"),
        (ANYWHERE, cluster({"t-0": ["1:/a", "2:/a"]}, disks=["1:/a", "2:/a"]), "broker_unavailable", "no longer"),
        (INSIDE, replace(VIEW, replicas={}), "target_gone", "does not report"),
        (INSIDE, cluster({"t-0": ["1:/a", "2:/a"]}, sizes={"t-0": 16 * MB}), "grown", "from 10000000 to 16000000"),
        (ACROSS, cluster({"t-0": ["1:/a", "2:/a"]}, sizes={"t-0": 16 * MB}), "grown", "since the plan was made"),
        (ACROSS, cluster({"t-0": ["1:/a", "2:/a"]}, sizes={"t-0": 15 * MB}), "needed", ""),
        (replace(ACROSS, writes=()), cluster({"t-0": ["1:/a", "2:/a"]}, sizes={"t-0": 99 * MB}), "needed", ""),
        (replace(INSIDE, size=1000), cluster({"t-0": ["1:/a", "2:/a"]}), "needed", ""),
    ],
)  # fmt: skip
def test_move_is_checked_before_it_begins(move: PlannedMove, view: ClusterView, kind: str, words: str) -> None:
    verdict = checked(move, view)
    assert verdict.kind == kind and words in verdict.why and bool(words) == bool(verdict.why)
    assert verdict.begins is (kind in ("needed", "grown"))


def test_reassignment_that_only_adds_is_not_done_before_it_ends() -> None:
    under_way = with_state(VIEW, "t-0", replicas=(1, 2, 3), adding=(3,))
    assert checked(replace(ACROSS, after=(1, 2, 3)), under_way).kind == DriftKind.NEEDED


def test_verdict_has_the_current_size() -> None:
    assert checked(replace(INSIDE, size=MB), VIEW).size == 10 * MB
    assert checked(INSIDE, VIEW).kind == DriftKind.NEEDED
