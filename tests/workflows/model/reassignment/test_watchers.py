"""Who sees which reassignment through, and what runs may ask the controller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from storage_node.model.assignment import Assignment
from storage_node.model.metadata import DirectoryRegistration, NodeImage, PartitionImage, TopicImage
from workflows.model.controller import run_requests
from workflows.model.controller.controller import Controller
from workflows.model.controller.run_requests import ControllerRequest, Responses, carry_out, under_way
from workflows.model.messages import answered
from workflows.model.metadata.outcome import Reassigned
from workflows.model.metadata.state import ClusterState
from workflows.model.reassignment.watchers import Watchers
from workflows.model.throttles import MOVE_RATE

RUN, OTHER = ("run", ""), ("other", "2")


def partition(index: int, held: Assignment) -> PartitionImage:
    count = len(held.replicas)
    first = (held.original or held.replicas)[:1]
    return PartitionImage(index, held, ("",) * count, (0,) * count, first, first[0])


def state(*held: Assignment) -> ClusterState:
    nodes = {n: NodeImage(n, f"i{n}", n, "h", 9092, (DirectoryRegistration(f"d{n}", "/a"),)) for n in (1, 2, 3)}
    topic = TopicImage("t", "id", {}, tuple(partition(at, each) for at, each in enumerate(held)))
    return ClusterState("c", topics={"t": topic}, nodes=nodes, version=5)


def change(index: int, target: tuple[int, ...] = (2,)) -> Reassigned:
    return Reassigned("t", "id", index, (1,), target, target, (1,))


HOME = Assignment((1,))
AWAY = HOME.reassign((2,))


def test_watchers_get_cancels_later_targets_and_deletions_once() -> None:
    watchers = Watchers()
    watchers.watch([change(0), change(1), change(2)], RUN)
    watchers.watch([change(1)], OTHER)
    assert watchers.has(change(0)) and not watchers.has(change(0, (3,)))
    assert watchers.changed(state(AWAY, AWAY, AWAY)) == {}
    told = watchers.changed(state(HOME, HOME.reassign((3,)), Assignment((2,))))
    # The first was cancelled, the second has another target, the third is done, which its node tells.
    assert [row[1] for row in told[RUN]] == [0, 1] and [row[1] for row in told[OTHER]] == [1]
    assert len(watchers) == 0 and watchers.changed(state()) == {}
    watchers.watch([change(0)], RUN)
    assert watchers.changed(None) == {}, "while the controller collects, nobody knows"
    assert watchers.changed(replace(state(), topics={})) == {RUN: [["t", 0]]}


def test_watchers_survive_a_continue_as_new() -> None:
    watchers = Watchers()
    watchers.watch([change(0), change(1)], RUN)
    watchers.watch([change(1)], OTHER)
    again = Watchers.of(watchers.rows())
    assert again.rows() == watchers.rows() and again.has(change(1))
    assert set(again.changed(state(HOME, HOME))) == {RUN, OTHER}


def request_of(*changes: Any, looks: Any = (), request: int = 1, run: str = "r") -> ControllerRequest:
    told = {"request": request, "workflow_id": "w", "run_id": run, "changes": list(changes), "looks": list(looks)}
    return ControllerRequest.of(told)


def controller(*held: Assignment) -> Controller:
    it = Controller.start("c", None)
    it.state, it.collecting = state(*held), None
    return it


def test_request_of_a_run_gets_the_results_of_its_changes() -> None:
    it = controller(HOME, HOME)
    answer = carry_out(request_of(["t", 0, [2], None], ["t", 9, [2], None], looks=[["t", 1], ["no", 0]]), it)
    assert [bool(each.get("error")) for each in answer["results"]] == [False, True]
    assert [row[:7] for row in answer["made"]] == [["t", "id", 0, [1], [2], [2], [1]]]
    assert [len(row) for row in answer["rows"]] == [9, 2]
    assert answer["version"] == it.pair[1] > 5
    assert [each.partition for each in under_way(answer, it.state)] == [0]
    assert it.reassigned == [], "no run is started for what a run asks itself"


def test_response_to_a_lease_names_unregistered_nodes() -> None:
    it, responses = controller(HOME), Responses()
    nodes = {"1": {MOVE_RATE: "5"}, "77": {MOVE_RATE: "5"}, "9": {}}
    leased = ControllerRequest.of({"request": 1, "workflow_id": "w", "run_id": "r", "changes": [], "looks": [],
                       "hold": {"nodes": nodes}})  # fmt: skip
    answer = carry_out(leased, it)
    assert answered(answer)["left_out"] == [9, 77] and it.state is not None
    responses.remember(leased, answer)
    again = responses.repeat(leased, it.state)
    assert again is not None and again["left_out"] == [9, 77]
    assert answered(carry_out(request_of(), it))["left_out"] == []


def test_cancel_of_another_target_is_rejected() -> None:
    it = controller(AWAY, HOME.reassign((3,)), HOME)
    answer = carry_out(request_of(*(["t", at, None, [2]] for at in range(3))), it)
    assert [each.get("error", 0) for each in answer["results"]] == [0, 85, 85]
    assert it.state is not None
    held = [each.assignment for each in it.state.topics["t"].partitions]
    assert held == [HOME, HOME.reassign((3,)), HOME] and answer["made"] == []


def test_request_while_collecting_gets_an_error() -> None:
    assert carry_out(request_of(["t", 0, [2], None]), Controller.start("c", None))["error"]


def test_repeated_request_gets_its_response_from_memory_also_after_a_continue_as_new() -> None:
    it, responses = controller(HOME, HOME), Responses()
    first = request_of(["t", 0, [2], None], looks=[["t", 0]])
    assert not responses.applied(first)
    answer = carry_out(first, it)
    responses.remember(first, answer)
    carry_out(request_of(["t", 0, [3], None], run="another"), it)
    responses = Responses.of(responses.rows())
    again = responses.repeat(first, it.state)
    assert responses.applied(first) and again is not None
    assert (again["results"], again["made"]) == (answer["results"], answer["made"])
    # The partitions are as they are now: the later target holds.
    assert again["rows"][0][3:5] == [[1, 2, 3], [3]] or again["rows"][0][4] == [3]
    assert again["version"] == it.pair[1] > answer["version"]


def test_earlier_request_of_a_run_and_one_while_collecting_get_no_response() -> None:
    it, responses = controller(HOME, HOME), Responses()
    for request in (1, 2):
        one = request_of(["t", 0, [2], None], request=request)
        responses.remember(one, carry_out(one, it))
    assert responses.applied(request_of(request=1)) and responses.repeat(request_of(request=1), it.state) is None
    assert responses.repeat(request_of(request=2), None) is None, "the run repeats it"
    assert not responses.applied(request_of(request=3)) and not responses.applied(request_of(run="another"))
    refused = request_of(request=3)
    responses.remember(refused, carry_out(refused, Controller.start("c", None)))
    assert not responses.applied(refused), "what was put off is carried out when the request is repeated"


def test_remembered_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_requests, "REMEMBERED_ROWS", 5)
    it, responses = controller(HOME, HOME), Responses()
    for run in ("a", "b", "c"):
        one = request_of(["t", 0, [2], None], run=run)
        responses.remember(one, carry_out(one, it))
    assert [responses.applied(request_of(run=run)) for run in ("a", "b", "c")] == [False, True, True]
    assert len(Responses.of(responses.rows()).rows()) == 2
