"""What activities return, what lanes are started with, and what operators send: read strictly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from storage_node.model.fields import BadField
from tests.workflows.driven import LANE, LANE_ENDED, PLAN, PLANNED, SPECS
from workflows.model.plans import document
from workflows.model.plans.running import book, lane_request, orders, packing, reading, request
from workflows.model.plans.running.calls import CHECK_PLAN, MoveSpec
from workflows.model.plans.running.run import MOST_SKIPPED, PauseMode
from workflows.model.plans.values import Lane

BEGAN = datetime(2026, 11, 20, 10, tzinfo=UTC).timestamp()
CHECK = PLANNED[CHECK_PLAN]({})


def parse(parameter: Any) -> request.PlanRequest:
    return request.parse(parameter, BEGAN)


@pytest.mark.parametrize(
    ("read", "value", "why"),
    [
        (reading.check, {}, "$.cluster_id is missing"),
        (reading.check, CHECK | {"problem_count": 1}, "$.problems is empty, but problem_count is 1"),
        (reading.check, CHECK | {"lanes": 10**9}, "$.lanes is 1000000000"),
        (reading.check, CHECK | {"seconds_low": float("nan")}, "$.seconds_low is nan"),
        (reading.check, CHECK | {"disks": [{"broker": 1}]}, "$.disks[0].path is missing"),
        (reading.check, CHECK | {"newer": 1}, "$.newer is not known"),
        (reading.choice, {"lanes": [{"number": 0, "moves": [SPECS[0]] * 1_001}]}, "moves has 1001 entries"),
        (reading.choice, {"lanes": [{"number": 0, "moves": [SPECS[0]] * 2}]}, "again"),
        (reading.choice, {"closed": ["1"]}, "$.closed[0] must be a whole number"),
        (reading.verified, {}, "$.ok is missing"),
        (reading.throttles, {"rates": {"1": {"rate": 7}}}, "$.rates.1.rate must be a string"),
        (reading.written, {"written": [["broker", "1"]]}, "$.written[0] must be a kind"),
        (lambda value: reading.moved(value, ["a"]), {"rows": []}, "$.rows has no row for a"),
        (lambda value: reading.moved(value, ["a"]), {"rows": [{"key": "a", "outcome": "x"}]}, "must be one of"),
        (lane_request.parse, LANE | {"version": 2}, "$.version is 2"),
        (lane_request.parse, LANE | {"moves": []}, "$.moves has 0 entries"),
        (lane_request.parse, LANE | {"plan": "p" * 1_001}, "$.plan has 1001 bytes"),
        (lane_request.parse, LANE | {"cluster": "c" * 990}, "$.cluster has 990 bytes"),
        (lane_request.parse, LANE | {"moves": [SPECS[0] | {"kind": "x"}]}, "$.moves[0].kind is 'x'"),
        (lane_request.parse, LANE | {"moves": [SPECS[0] | {"topic": "t" * 250}]}, "$.moves[0].topic has 250"),
        (lane_request.parse, LANE | {"moves": [SPECS[0] | {"directories": {"x": "/a"}}]}, "must be the id of a broker"),
        (lane_request.parse, LANE | {"moves": [SPECS[0] | {"reads": [[1]]}]}, "must be a node and a path"),
        (orders.mode, {"mode": "stop"}, "must be one of finish, cancel"),
        (orders.mode, {"modus": "finish"}, "$.modus is not known"),
        (orders.rollback, {"rollback": "yes"}, "$.rollback must be true or false"),
        (orders.person, {"by": "  "}, "$.by must be a name of 1 to 200 characters"),
        (orders.keys, {"moves": []}, "$.moves has 0 entries"),
        (orders.keys, {"moves": ["t-0"] * (MOST_SKIPPED + 1)}, "has 1001 entries"),
        (orders.keys, {"moves": ["t" * 281]}, "$.moves[0] has 281 characters"),
        (orders.lane_rows, {"number": 0}, "$.rows is missing"),
        (parse, {"version": 1}, "$.plan is missing: name a stored plan, or hand in its text"),
        (parse, {"version": 2, "plan": "1"}, "$.version is 2"),
        (parse, "{", "$ is not JSON"),
        (parse, {"version": 1, "text": "x"}, "is not complete"),
        (parse, {"version": 1, "plan": "1", "submitted_by": "x" * 201}, "$.submitted_by has 201 characters"),
        (book.read, "[1]\n", "is not a plan's lanes"),
    ],
)  # fmt: skip
def test_bad_value_is_rejected_with_its_path(read: Callable[[Any], Any], value: Any, why: str) -> None:
    with pytest.raises(BadField) as caught:
        read(value)
    assert why in str(caught.value)


def test_sentences_of_a_worker_are_cut_to_a_messages_length() -> None:
    found = reading.choice({"reasons": ["x" * 1_000_000, "half \ud800"]})
    assert len(found.reasons[0]) == 1_000 and found.reasons[1].isascii()


def test_lanes_come_back_as_they_were_stored() -> None:
    moves = [MoveSpec(**spec).move() for spec in SPECS]
    lanes = (Lane(0, (moves[0],), 0), Lane(1, tuple(moves), 3))
    assert book.read(book.to_text(lanes)) == lanes


def test_lane_request_comes_back() -> None:
    found = lane_request.parse(LANE)
    assert found.as_json().keys() == LANE.keys() and lane_request.parse(found.as_json()) == found


def test_lane_of_which_every_move_is_skipped_is_chosen_with_none() -> None:
    assert reading.choice({"lanes": [{"number": 0, "moves": []}]}).lanes[0].moves == []


def test_kafkas_json_is_a_plan_as_it_is_and_is_named_by_its_text() -> None:
    found = parse(PLAN)
    text = packing.unpack(found.packed)
    assert found.plan == packing.digest(text) and found.options.throttle_between_brokers == 20_000_000
    again = parse({"version": 1, "text": found.packed, "plan": "another"})
    assert (again.plan, again.options) == (found.plan, found.options), "the text governs"
    assert document.parse(text).partitions[0].log_dirs == ("/disk/b",)


def test_sla_of_kafkas_json_is_a_deadline_from_the_start_of_the_run() -> None:
    found = parse({**PLAN, "sla_seconds": 90})
    assert found.options.deadline == "2026-11-20T10:01:30+00:00"
    assert parse(request.continued(found, found.options, {})).options == found.options
    with pytest.raises(BadField, match=r"beside \$\.options\.deadline"):
        parse({**PLAN, "sla_seconds": 90, "options": {"deadline": "2030-01-01T00:00:00Z"}})
    with pytest.raises(BadField, match="sla_seconds"):
        parse({**PLAN, "sla_seconds": 0})


def test_continued_request_is_that_of_the_run_before() -> None:
    first = parse({"version": 1, "text": parse(PLAN).packed, "cluster_id": "k", "submitted_by": "ada"})
    row = request.continued(first, first.options, {"started": 1.0})
    found = parse(row)
    assert (found.plan, found.cluster_id, found.submitted_by, found.carried) == (
        first.plan, "k", "ada", {"started": 1.0},
    )  # fmt: skip


def test_defaults_of_updates() -> None:
    assert orders.mode({}) == PauseMode.FINISH and not orders.rollback({}) and orders.person({"by": " ada "}) == "ada"
    number, rows = orders.lane_rows(LANE_ENDED)
    assert (number, rows[0].key, rows[0].reached) == (0, "t-0@1", True)
