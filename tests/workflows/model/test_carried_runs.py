"""What is carried of other runs stays small, and is the same after it was carried."""

from __future__ import annotations

import base64
import json
import random

from workflows.model import carried_runs
from workflows.model.carried_runs import CarriedRuns
from workflows.model.outbound import SIGNAL, START, Outbound
from workflows.model.outcome import Reassigned
from workflows.model.reassignment_request import change_row, groups, made_by_controller, summary
from workflows.model.run_requests import Asked

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


def test_when_every_partition_of_the_largest_cluster_is_reassigned_what_is_carried_is_small() -> None:
    it = CarriedRuns()
    for number, group in enumerate(groups(everything_moves())):
        run = (f"c/reassign/{group[0].topic}-{group[0].partition}+{len(group) - 1}", f"{number:036d}")
        changes = [[each.topic, each.partition, list(each.target), None] for each in group]
        asked = Asked.of({"request": 1, "workflow_id": run[0], "run_id": run[1], "changes": changes, "looks": []})
        answer = {"results": [{"value": 17} for _ in group], "made": [change_row(each) for each in group]}
        it.watchers.watch(group, run)
        it.answers.remember(asked, answer)
        it.outbox.add(Outbound(START, run[0], "", summary(group), made_by_controller(group, (1, 5000))))
        it.outbox.add(Outbound(SIGNAL, *run, "answered", {"request": 1, **answer, "generation": 1, "version": 5000}))
    for node in range(5_000):
        it.lapsed[node] = f"incarnation-{node}"
    text = json.dumps(it.carry())
    assert len(text) < LARGEST, f"{len(text)} bytes"
    again = CarriedRuns.start(json.loads(text))
    assert again.carry() == it.carry()
    assert len(again.lapsed) == carried_runs.REMEMBERED_LAPSES


def test_a_controller_without_anything_under_way_carries_nothing_of_it() -> None:
    assert CarriedRuns().carry() == {} and CarriedRuns.start({}).carry() == {} and CarriedRuns.start(None).carry() == {}
