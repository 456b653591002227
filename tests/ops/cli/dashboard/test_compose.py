"""The board of the sources' facts: rows of silent nodes keep their last figures, and every fact has its age."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ops.cli.dashboard.compose import Composer
from ops.cli.dashboard.facts import (
    BROKERS,
    NODES,
    TEMPORAL,
    BrokersFacts,
    NodeFacts,
    NodesFacts,
    RunFacts,
    TemporalFacts,
)
from ops.cli.moves.open_runs import OpenRun, Step
from ops.cli.moves.view import of_node
from ops.cli.nodes import Reach, Unreachable
from ops.dashboards.live.board import Board, Freshness, Kind, Work
from ops.dashboards.live.hub import Reading
from ops.stack.errors import OpsError
from storage_node.model.moves import StallReason
from tests.support.plan_progress import plan_progress
from workflows.model.plans.running.plan_results import EvacuationProgress

NOW = 1_000.0
DEAD = Unreachable("node 1 does not respond at 127.0.0.1:9092 (refused)", Reach.REFUSED)
COPY = {
    "topic": "orders",
    "partition": 0,
    "owner": "rehome/move/1/orders-0/1",
    "source": "/a",
    "directory": "/b",
    "state": "copying",
    "bytes_total": 1000,
    "bytes_copied": 400,
    "rate": 20.0,
    "stall": "run_limit",
    "stall_message": "held by its limit",
}
RUN = OpenRun(
    "rehome/move/1/orders-0/1", "r", {"topic": "orders", "partition": 0, "node": 1, "directory": "/b"}, Step("copy", 2)
)
#: orders-1 goes from nodes 1, 2 to 1, 3.
MOVING = ["orders", 1, [1, 2, 3], [3], [2], [1, 2], 1]


def node(
    *copies: Mapping[str, Any], at: float = NOW, problem: OpsError | None = None, version: int = 1, **more: Any
) -> NodeFacts:
    moves = {"moves": list(copies), "delete_delays": [], "generation": 1, "version": version, "fenced": []}
    reassignments = {
        "generation": 1, "version": version, "partitions": [], "sizes": [], "catching_up": [], "fenced": [],
    } | more  # fmt: skip
    return NodeFacts(moves, reassignments, at, problem)


def composed(
    nodes: Mapping[int, NodeFacts] | None = None,
    temporal: Reading | None = None,
    composer: Composer | None = None,
    now: float = NOW,
) -> Board:
    readings = {NODES: Reading(NodesFacts(nodes or {}), now), TEMPORAL: temporal or Reading(TemporalFacts(), now)}
    return (composer or Composer("prod")).compose(readings, now)


def only(board: Board) -> Work:
    (row,) = board.work
    return row


def test_move_has_the_nodes_figures_and_both_ages() -> None:
    row = only(composed({1: node(COPY, at=NOW - 0.5)}, Reading(TemporalFacts(moves=(RUN,)), NOW - 1)))
    assert (row.title, row.percent, row.rate, row.phase) == ("orders-0", 40.0, 20.0, "copying")
    assert (row.held_by, row.held_why) == ("its limit", "held by its limit")
    assert (row.eta_low, row.eta_high) == (30.0, 30.0)  # one figure: there are no samples yet
    assert [(fact.source, fact.as_of) for fact in row.facts] == [("node 1", NOW - 0.5), (TEMPORAL, NOW - 1)]


@pytest.mark.parametrize("stall", list(StallReason))
def test_only_a_move_that_comes_nearer_to_its_end_has_an_eta(stall: StallReason) -> None:
    nearer = {"copying", "queued", "run_limit", "node_limit", "slow_disk"}
    row = only(composed({1: node(COPY | {"stall": str(stall), "stall_message": "why"}), 2: node()}))
    assert (row.eta_high is not None) == (stall in nearer)


@pytest.mark.parametrize(
    "temporal", [Reading(TemporalFacts(moves=(RUN,)), NOW), Reading(None, None, "Temporal is down")]
)
def test_move_of_a_dead_node_keeps_its_figures_with_their_age(temporal: Reading) -> None:
    board = composed({1: node(COPY, at=NOW - 9, problem=DEAD), 2: node()}, temporal)
    row = only(board)
    assert (row.percent, row.rate, row.eta_low, row.held_by) == (40.0, 0.0, None, "dead")
    assert "refuses connections" in row.held_why
    assert row.facts[0].as_of == NOW - 9
    states = {source.name: source.state for source in board.sources}
    assert (states["node 1"], states["node 2"]) == (Freshness.STALE, Freshness.FRESH)
    assert str(DEAD) in board.notes


def test_run_of_a_node_that_never_responded_is_shown_by_the_server_alone() -> None:
    row = only(composed({1: NodeFacts(problem=DEAD)}, Reading(TemporalFacts(moves=(RUN,)), NOW - 2)))
    assert (row.title, row.percent, row.held_by) == ("orders-0", None, "dead")
    assert [fact.source for fact in row.facts] == [TEMPORAL]


def test_silent_temporal_is_stale_since_its_last_response_and_its_runs_stay() -> None:
    board = composed({1: node(COPY)}, Reading(TemporalFacts(moves=(RUN,)), NOW - 20, "Temporal is down"))
    temporal = board.sources[0]
    assert (temporal.name, temporal.state, temporal.as_of) == (TEMPORAL, Freshness.STALE, NOW - 20)
    assert "Temporal is down" in board.notes
    assert only(board).facts[-1].as_of == NOW - 20


def test_nothing_left_to_copy_is_no_end_in_sight_of_what_still_waits() -> None:
    """An empty replica waits for a slot and the swap, a copied one for the ISR, a plan for its comparison."""
    empty = COPY | {"bytes_total": 0, "bytes_copied": 0, "state": "queued", "stall": "queued"}
    sizes = [["orders", 1, 1000]]
    in_sync_soon = {each: node(partitions=[MOVING], sizes=sizes) for each in (1, 3)}
    composer = Composer("prod")
    for number in range(6):  # as many samples as a range needs
        at = NOW + 5 * number
        plans = tuple(
            RunFacts(f"prod/plan/{total}", plan_progress(at, bytes_total=total, bytes_copied=total, read_at=at), at)
            for total in (0, 1000)
        )
        temporal = Reading(TemporalFacts(plans=plans), at)
        board = composed({1: node(empty, at=at), **{2: node(at=at)}}, temporal, composer, at)
        assert [(row.kind, row.percent, row.eta_low, row.eta_high) for row in board.work] == [
            (Kind.DISK, None, None, None), (Kind.PLAN, None, None, None), (Kind.PLAN, 100.0, None, None),
        ]  # fmt: skip
        assert (board.as_json()["totals"]["eta_low"], board.as_json()["totals"]["eta_high"]) == (None, None)
        row = only(composed(in_sync_soon, composer=composer, now=at))
        assert (row.kind, row.percent, row.eta_low, row.eta_high) == (Kind.REASSIGNMENT, 100.0, None, None)


def test_eta_is_a_range_once_there_are_samples() -> None:
    composer = Composer("prod")
    copied = 0
    row = None
    for number, step in enumerate([0, 100, 50, 100, 50, 100]):
        copied += step
        at = NOW + 5 * number
        row = only(composed({1: node({**COPY, "bytes_copied": copied}, at=at)}, composer=composer, now=at))
    assert row is not None and row.eta_low is not None and row.eta_high is not None
    assert 600 / 20 <= row.eta_low < row.eta_high <= 600 / 10


def test_reassignment_has_the_age_of_the_node_that_gets_the_replica() -> None:
    sizes = [["orders", 1, 1000]]
    nodes = {
        1: node(partitions=[MOVING], sizes=sizes, version=5),
        2: node(partitions=[MOVING], sizes=sizes, version=5),
        3: node(partitions=[], sizes=[["orders", 1, 250]], version=4, at=NOW - 3),
    }
    row = only(composed(nodes))
    assert (row.kind, row.title, row.percent) == (Kind.REASSIGNMENT, "orders-1", 25.0)
    assert (row.origin, row.target) == ("nodes 1,2", "nodes 1,3")
    assert row.facts[0].source == "node 3" and row.facts[0].as_of == NOW - 3


def test_reassignment_to_a_dead_node_keeps_its_bytes_and_is_held() -> None:
    composer = Composer("prod")
    sizes = [["orders", 1, 1000]]
    whole = {1: node(partitions=[MOVING], sizes=sizes), 3: node(partitions=[MOVING], sizes=[["orders", 1, 250]])}
    assert only(composed(whole, composer=composer)).percent == 25.0
    row = only(composed({1: whole[1], 3: replace(whole[3], problem=DEAD)}, composer=composer))
    assert (row.percent, row.held_by) == (25.0, "dead")
    row = only(composed({each: replace(facts, problem=DEAD) for each, facts in whole.items()}, composer=composer))
    assert (row.percent, row.held_by) == (25.0, "dead")


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, ""),
        ({"reasons": ["6 of 6 slots are taken"]}, "waits"),
        ({"phase": "awaiting_approval"}, "approval"),
        ({"paused": True, "reasons": ["paused"]}, "paused"),
        ({"warning": "the deadline will be missed"}, "deadline"),
    ],
)
def test_plan_says_what_holds_it(changes: Mapping[str, Any], held: str) -> None:
    run = RunFacts("prod/plan/july", plan_progress(NOW, **changes), NOW - 3)
    row = only(composed(temporal=Reading(TemporalFacts(plans=(run,)), NOW)))
    assert (row.kind, row.title, row.percent, row.held_by) == (Kind.PLAN, "july", 25.0, held)
    assert row.detail == "2 of 9 moves ended, 1 under way in 1 lanes"
    assert [(fact.what, fact.as_of) for fact in row.facts] == [("phase, moves", NOW - 3), ("bytes", NOW - 4)]
    assert (row.eta_low, row.eta_high) == ((None, None) if held == "paused" else (75.0, 150.0))


def test_plan_without_a_worker_and_a_drain() -> None:
    progress = EvacuationProgress(
        "prod/evacuate/1/data/b", 1, "/data/b", "moving", False, True, 1, "x/plan-1", 3, 70, [], []
    )
    facts = TemporalFacts(
        plans=(RunFacts("prod/plan/july", silent=True),),
        drains=(RunFacts("prod/evacuate/1/data/b", progress, NOW - 1),),
    )
    waiting, drain = composed(temporal=Reading(facts, NOW)).work
    assert (waiting.held_by, waiting.percent, waiting.facts) == ("no worker", None, ())
    assert (drain.kind, drain.title, drain.phase, drain.bytes_copied) == (Kind.DRAIN, "1/data/b", "moving", 70)
    assert drain.detail == "round 1, 3 moved, plan x/plan-1"


def test_brokers_of_apache_kafka_are_one_source() -> None:
    facts = BrokersFacts(tuple(of_node(1, [COPY])), notes=("broker 2 is not read",))
    board = Composer("kafka").compose({BROKERS: Reading(facts, NOW - 1)}, NOW)
    assert [(source.name, source.state) for source in board.sources] == [(TEMPORAL, "unused"), (BROKERS, "fresh")]
    assert only(board).facts[0].as_of == NOW - 1 and "broker 2 is not read" in board.notes
