"""What is carried of other runs stays small, and is the same after it was carried."""

from __future__ import annotations

import base64
import json
import random

import pytest

from storage_node.model.fields import BadField
from tests.workflows.model.support import create, registration
from workflows.model.controller import carried_runs, run_requests
from workflows.model.controller.carried_runs import CarriedRuns
from workflows.model.controller.controller import Controller
from workflows.model.controller.outbound import SIGNAL, START, Outbound
from workflows.model.controller.run_requests import ControllerRequest
from workflows.model.metadata.outcome import Reassigned
from workflows.model.reassignment.request import change_row, groups, made_by_controller, summary

TOPICS, EACH = 952, 7  # 20,000 replicas with three of each
#: The server takes 2 MB for a run's parameter, and the cluster's state needs half a megabyte of it.
LARGEST = 1_000_000


def everything_moves() -> list[Reassigned]:
    draw = random.Random(1)
    changes: list[Reassigned] = []
    for topic in range(TOPICS):
        topic_id = base64.urlsafe_b64encode(draw.randbytes(16)).decode().rstrip("=")
        for partition in range(EACH):
            nodes = tuple(draw.sample(range(1, 10), 6))
            original, target = nodes[:3], nodes[3:]
            changes.append(
                Reassigned(f"topic-{topic:04d}", topic_id, partition, original, target, target, original, "an operator")
            )
    return changes


def test_carried_state_of_the_largest_cluster_is_small() -> None:
    it = CarriedRuns()
    for number, group in enumerate(groups(everything_moves())):
        run = (f"c/reassign/{group[0].topic}-{group[0].partition}+{len(group) - 1}", f"{number:036d}")
        changes = [[each.topic, each.partition, list(each.target), None] for each in group]
        request = ControllerRequest.of(
            {"request": 1, "workflow_id": run[0], "run_id": run[1], "changes": changes, "looks": []}
        )
        answer = {"results": [{"value": 17} for _ in group], "made": [change_row(each) for each in group]}
        it.watchers.watch(group, run)
        it.responses.remember(request, answer)
        it.outbox.add(Outbound(START, run[0], "", summary(group), made_by_controller(group, (1, 5000))))
        it.outbox.add(Outbound(SIGNAL, *run, "answered", {"request": 1, **answer, "generation": 1, "version": 5000}))
    for node in range(5_000):
        it.lapsed[node] = f"incarnation-{node}"
    text = json.dumps(it.carry())
    assert len(text) < LARGEST, f"{len(text)} bytes"
    again = CarriedRuns.start(json.loads(text))
    assert again.carry() == it.carry()
    assert len(again.lapsed) == carried_runs.REMEMBERED_LAPSES


def test_responses_are_dropped_if_the_parameter_is_too_large() -> None:
    it = Controller.start("c", {})
    for node in (1, 2):
        it.submit({"node": node, "incarnation": f"i{node}", "number": 1, "commands": [registration(node)]}, str)
    refused = {"node": 1, "incarnation": "i1", "number": 2, "commands": [create("/" * 900)] * 20}
    it.submit(refused, str)
    runs = CarriedRuns()
    request = ControllerRequest.of(
        {"request": 1, "workflow_id": "w", "run_id": "r", "changes": [["t", 0, [1], None]], "looks": []}
    )
    runs.responses.remember(request, {"results": [{"error": 3, "message": "x" * 900}], "made": []})
    more = {"probes": [[1, "i1", "same"]]}
    whole = runs.within(it, more)
    assert whole == {**it.carry(), **runs.carry(), **more}
    less = runs.within(it, more, len(json.dumps(whole)) - 1)
    assert len(json.dumps(less)) < len(json.dumps(whole))
    assert less["runs"] == whole["runs"] and less["state"] == whole["state"]
    ((late,), *_) = Controller.start("c", less).submit(refused, str)["results"]
    assert late["error"] == 7
    least = runs.within(it, more, 1)
    assert "runs" not in least and least["state"] == whole["state"] and least["probes"]


def test_characters_of_remembered_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_requests, "REMEMBERED_CHARACTERS", 10)
    responses = run_requests.Responses()
    for run in ("first", "second", "third"):
        request = ControllerRequest.of({"request": 1, "workflow_id": "w", "run_id": run, "changes": [], "looks": []})
        responses.remember(request, {"results": [{"error": 3, "message": "x" * 5}], "made": []})
    assert [row[0] for row in responses.rows()] == ["second", "third"]
    assert run_requests.Responses.of(responses.rows()).rows() == responses.rows()


@pytest.mark.parametrize("what", ["changes", "looks"])
def test_request_with_a_too_large_response_is_rejected(what: str) -> None:
    rows = {"changes": [], "looks": [], what: [["☃" * 1_000, 0, [1], None][: 4 if what == "changes" else 2]] * 150}
    with pytest.raises(BadField, match="of more than 700000 bytes"):
        ControllerRequest.of({"request": 1, "workflow_id": "w", "run_id": "r", **rows})


def test_idle_controller_carries_no_runs() -> None:
    assert CarriedRuns().carry() == {} and CarriedRuns.start({}).carry() == {} and CarriedRuns.start(None).carry() == {}
