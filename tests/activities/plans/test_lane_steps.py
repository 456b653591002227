"""A lane's steps where a real cluster shows nothing at will: lost responses, silent brokers, refusals."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from typing import Any, cast

import pytest

from activities.kafka_admin import reader
from activities.kafka_admin.errors import NoResponse
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans import lane_steps, requests, stalled_moves
from activities.plans.lane_steps import LaneSteps
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from tests.support.kafka_in_memory import KafkaInMemory
from tests.workflows.driven import SPECS
from workflows.model.plans.running import stalls
from workflows.model.plans.running.calls import MovesCall, MoveSpec, PlanMoveRow
from workflows.model.plans.under_way import LaneReport
from workflows.model.plans.values import Disk
from workflows.model.throttles import LISTS, RATES

DISK, BROKERS = "t-0@1", "t-1"
FIRST, SECOND = (TopicPartition("t", number) for number in range(2))
CALL = MovesCall("c", "c/plan/p/lane-0", [MoveSpec(**spec).row() for spec in SPECS])
WITH_DIRECTORY = MovesCall("c", "lane", [MoveSpec(**{**SPECS[1], "directories": {"2": "/disk/b"}}).row()])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SURE", 0.03),
        ("QUICK", 0.1),
        ("QUICKEST_READ", 0.01),
        ("SLOWEST_READ", 0.02),
        ("CANCEL_PATIENCE", 0.1),
    ):
        monkeypatch.setattr(lane_steps, name, value)
    monkeypatch.setattr(reader, "SPACING", 0.0)


def play(work: Callable[[KafkaInMemory, LaneSteps], Coroutine[Any, Any, None]]) -> None:
    async def scene() -> None:
        kafka = KafkaInMemory({FIRST: {1: "/disk/a"}, SECOND: {1: "/disk/a"}})
        pool = cast(AdminPool, kafka)
        await work(kafka, LaneSteps(pool, ClusterReader(pool)))

    asyncio.run(scene())


def after(call: MovesCall, row: PlanMoveRow) -> MovesCall:
    """The call of the next step of a lane of one move, which has its row."""
    return replace(call, requested=time.time(), stalled=[row.row()])


def outcomes(rows: list[PlanMoveRow]) -> dict[str, str]:
    return {row.key: row.outcome for row in rows}


def reasons(rows: list[PlanMoveRow]) -> str:
    return " ".join(row.reason for row in rows)


def test_request_whose_response_was_lost_is_adopted_by_the_next_attempt() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held, kafka.lost = True, ["reassign"]
        with pytest.raises(NoResponse):
            await steps.request(CALL)
        sent = kafka.requests.count("reassign")
        found = await steps.request(CALL, first=False)
        assert kafka.requests.count("reassign") == sent, "it is under way: nothing is requested again"
        assert outcomes(found.rows) == {DISK: "", BROKERS: ""}
        kafka.held = False
        assert outcomes((await steps.follow(CALL)).rows) == {DISK: "moved", BROKERS: "moved"}

    play(work)


def test_move_that_ended_before_the_repeated_request_is_moved_and_not_in_place() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.lost = ["reassign"]
        with pytest.raises(NoResponse):
            await steps.request(CALL)
        kafka.reassignments()  # The copies end.
        assert outcomes((await steps.request(CALL, first=False)).rows) == {DISK: "moved", BROKERS: "moved"}
        assert outcomes((await steps.request(CALL)).rows) == {DISK: "in_place", BROKERS: "in_place"}

    play(work)


@pytest.mark.parametrize(
    ("request_", "code", "key", "outcome", "why"),
    [
        ("alter_log_dirs", ErrorCode.KAFKA_STORAGE_ERROR, DISK, "failed",
         "broker 1 rejected the request to move t-0 to /disk/b: KAFKA_STORAGE_ERROR"),
        ("alter_log_dirs", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, DISK, "topic_deleted", "broker 1 knows no such"),
        ("reassign", ErrorCode.INVALID_REPLICA_ASSIGNMENT, BROKERS, "failed",
         "the controller rejected the reassignment of t-1 to 2: INVALID_REPLICA_ASSIGNMENT"),
        ("reassign", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, BROKERS, "topic_deleted", "t-1 does not exist any more"),
    ],
)  # fmt: skip
def test_rejected_move_ends_with_the_clusters_reason_and_the_others_go_on(
    request_: str, code: ErrorCode, key: str, outcome: str, why: str
) -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.refused[request_], kafka.held = code, True
        rows = (await steps.request(CALL)).rows
        assert outcomes(rows) == {DISK: "", BROKERS: ""} | {key: outcome}
        assert why in reasons(rows)

    play(work)


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER])
@pytest.mark.parametrize(("request_", "key"), [("alter_log_dirs", DISK), ("reassign", BROKERS)])
def test_move_whose_request_gets_no_answer_is_adopted_or_requested_again(
    request_: str, key: str, code: ErrorCode, carried_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_steps, "QUICK", 0.0)

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        answers = kafka.doubted if carried_out else kafka.refused
        answers[request_] = code
        call = replace(CALL, moves=[each for each in CALL.moves if MoveSpec(**each).move().key == key])
        (row,) = (await steps.request(call)).rows
        assert row.outcome == "" and (carried_out or code.name in row.reason)
        sent = kafka.requests.count(request_)
        answers.clear()
        kafka.held = False
        (row,) = (await steps.follow(after(call, row))).rows
        assert row.outcome == "moved"
        assert (kafka.requests.count(request_) == sent) == carried_out

    play(work)


def test_move_whose_requests_get_no_answer_for_long_fails_with_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_steps, "BROKER_PATIENCE", 0.05)

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.refused["reassign"] = ErrorCode.REQUEST_TIMED_OUT
        (row,) = (await steps.request(replace(CALL, moves=CALL.moves[1:]))).rows
        assert row.outcome == "failed" and row.reason.endswith("REQUEST_TIMED_OUT")
        assert kafka.requests.count("reassign") > 1

    play(work)


def test_directory_that_a_broker_does_not_answer_for_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_steps, "SLICE", 0.1)

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        await steps.request(WITH_DIRECTORY)
        kafka.noted.clear()
        kafka.held = False
        kafka.refused["alter_log_dirs"] = ErrorCode.REQUEST_TIMED_OUT
        (row,) = (await steps.follow(WITH_DIRECTORY)).rows
        assert (row.outcome, row.state) == ("", "directing") and "REQUEST_TIMED_OUT" in row.reason
        kafka.refused.clear()
        (row,) = (await steps.follow(after(WITH_DIRECTORY, row))).rows
        assert row.outcome == "moved" and kafka.placed[SECOND] == {2: "/disk/b"}

    play(work)


def test_directory_of_a_replica_that_the_broker_does_not_have_yet_is_noted_first() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        await steps.request(WITH_DIRECTORY)
        assert [each for each in kafka.requests if each != "cluster"] == ["alter_log_dirs", "reassign"]
        assert outcomes((await steps.follow(WITH_DIRECTORY)).rows) == {BROKERS: "moved"}
        assert kafka.placed[SECOND] == {2: "/disk/b"}

    play(work)


def test_directory_that_the_broker_has_forgotten_is_requested_again() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        await steps.request(WITH_DIRECTORY)
        kafka.noted.clear()  # It was restarted before the controller assigned the replica.
        assert outcomes((await steps.follow(WITH_DIRECTORY)).rows) == {BROKERS: "moved"}
        assert kafka.placed[SECOND] == {2: "/disk/b"}

    play(work)


def test_directory_that_the_broker_rejects_after_all_fails_the_move() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        await steps.request(WITH_DIRECTORY)
        kafka.noted.clear()
        kafka.held = False
        kafka.refused["alter_log_dirs"] = ErrorCode.KAFKA_STORAGE_ERROR
        rows = (await steps.follow(WITH_DIRECTORY)).rows
        assert outcomes(rows) == {BROKERS: "failed"}
        assert "broker 2 rejected the request to move t-1 to /disk/b: KAFKA_STORAGE_ERROR" in reasons(rows)

    play(work)


def test_silent_broker_holds_up_only_the_directories_of_its_own_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_steps, "SLICE", 0.5)
    first = {**SPECS[1], "topic": "t", "partition": 0, "after": [2], "directories": {"2": "/disk/b"}}
    second = {**SPECS[1], "after": [3], "directories": {"3": "/disk/b"}}
    call = MovesCall("c", "lane", [MoveSpec(**each).row() for each in (first, second)])

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        await steps.request(call)
        kafka.noted.clear()
        kafka.held = False
        kafka.reassignments()  # They complete, in other directories.
        kafka.silent = {2}
        silent, moved = (await steps.follow(call)).rows
        assert (moved.outcome, silent.outcome) == ("moved", "")
        assert silent.state == "unknown" and "broker 2 does not respond" in silent.reason

    play(work)


def test_replica_that_is_elsewhere_now_is_superseded_and_not_moved() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        disk = replace(CALL, moves=[MoveSpec(**{**SPECS[0], "source": "/disk/gone"}).row()])
        rows = (await steps.request(disk)).rows
        while not rows[0].outcome:
            rows = (await steps.follow(disk)).rows
        assert outcomes(rows) == {DISK: "superseded"} and "make a new plan for it" in reasons(rows)
        assert "alter_log_dirs" not in kafka.requests and not kafka.futures

    play(work)


def test_cancel_leaves_the_replica_where_it_is_and_not_where_the_plan_found_it() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        disk = replace(CALL, moves=[MoveSpec(**{**SPECS[0], "source": "/disk/gone"}).row()])
        kafka.held = True
        kafka.futures[1, FIRST] = "/disk/b"  # It is under way, from where another client had moved it.
        (row,) = (await steps.cancel(disk)).rows
        assert row.outcome == "cancelled"
        assert not kafka.futures and kafka.placed[FIRST] == {1: "/disk/a"}

    play(work)


def test_copy_that_a_broker_forgets_is_requested_again_and_fails_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    call = MovesCall("c", "lane", CALL.moves[:1])

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        forgets = kafka.alter_log_dirs

        def forgotten(*given: Any) -> Any:
            found = forgets(*given)
            kafka.futures.clear()
            return found

        monkeypatch.setattr(kafka, "alter_log_dirs", forgotten)
        await steps.request(call)
        (row,) = (await steps.follow(call)).rows
        assert row.outcome == "failed" and "accepted the move of t-0 4 times" in row.reason
        assert kafka.requests.count("alter_log_dirs") > lane_steps.REPEATS

    play(work)


def test_reassignment_that_somebody_cancels_is_superseded() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        await steps.request(CALL)
        kafka.reassign({SECOND: None})
        kafka.holding, kafka.held = {SECOND}, False
        rows = (await steps.follow(CALL)).rows
        assert outcomes(rows) == {DISK: "moved", BROKERS: "superseded"}
        assert "another client cancelled the reassignment of t-1" in reasons(rows)

    play(work)


def test_step_that_follows_returns_once_few_moves_are_left() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.holding, kafka.held = {SECOND}, True
        await steps.request(CALL)
        kafka.held = False
        rows = (await steps.follow(replace(CALL, finishing_at=1))).rows
        assert outcomes(rows) == {DISK: "moved", BROKERS: ""}

    play(work)


def test_silent_broker_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_steps, "SLICE", 0.1)

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        await steps.request(CALL)
        kafka.silent = {1}
        rows = (await steps.follow(CALL)).rows
        assert outcomes(rows) == {DISK: "", BROKERS: ""}
        assert {row.key: row.state for row in rows}[DISK] == "unknown" and "broker 1 does not respond" in reasons(rows)
        kafka.silent, kafka.held = set(), False
        assert outcomes((await steps.follow(CALL)).rows) == {DISK: "moved", BROKERS: "moved"}

    play(work)


def test_cancel_takes_back_what_is_under_way_and_keeps_what_is_done() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.holding = {SECOND}
        await steps.request(CALL)
        assert FIRST not in kafka.targets
        rows = (await steps.cancel(CALL)).rows
        assert outcomes(rows) == {DISK: "moved", BROKERS: "cancelled"}
        assert kafka.placed == {FIRST: {1: "/disk/b"}, SECOND: {1: "/disk/a"}} and not kafka.targets

    play(work)


def test_cancel_that_a_broker_does_not_take_stays_open_with_the_reason() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        await steps.request(CALL)
        kafka.refused["alter_log_dirs"] = ErrorCode.KAFKA_STORAGE_ERROR
        rows = (await steps.cancel(CALL)).rows
        assert outcomes(rows) == {DISK: "", BROKERS: "cancelled"}
        assert "broker 1 rejected the cancel: KAFKA_STORAGE_ERROR" in reasons(rows)
        del kafka.refused["alter_log_dirs"]
        assert outcomes((await steps.cancel(CALL)).rows) == {DISK: "cancelled", BROKERS: "cancelled"}

    play(work)


def test_requests_of_many_moves_are_one_for_each_broker_and_one_for_the_controller() -> None:
    async def scene() -> None:
        partitions = [TopicPartition("t", number) for number in range(50)]
        kafka = KafkaInMemory({partition: {1: "/disk/a"} for partition in partitions})
        disks = [MoveSpec(**{**SPECS[0], "partition": number}).move() for number in range(25)]
        brokers = [MoveSpec(**{**SPECS[1], "partition": number}).move() for number in range(25, 50)]
        assert await requests.request_all(cast(AdminPool, kafka), [*disks, *brokers]) == {}
        assert kafka.requests == ["alter_log_dirs", "reassign"]

    asyncio.run(scene())


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "STALLED_AFTER", 0.1)
    monkeypatch.setattr(lane_steps, "MEND_AFTER", 0.2)
    monkeypatch.setattr(stalled_moves, "EVIDENCE_AGE", 0.03)


@pytest.mark.usefixtures("_impatient")
def test_step_returns_once_a_move_has_stalled_and_the_next_one_knows_since_when() -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.held = True
        kafka.configs["broker", "2"] = {RATES[1]: "1000"}
        kafka.configs["topic", "t"] = {LISTS[1]: "1:2"}
        await steps.request(CALL)
        rows = {row.key: row for row in (await steps.follow(CALL)).rows}
        assert rows[BROKERS].stalled == "throttled" and "broker 2 is throttled: at 1000 bytes/s" in rows[BROKERS].reason
        assert rows[BROKERS].since > 1e9 and not rows[BROKERS].outcome
        # The next step goes on from there, and returns once the moves have ended.
        kafka.holding, kafka.held = {SECOND}, False
        asyncio.get_running_loop().call_later(0.3, kafka.holding.clear)
        again = await steps.follow(replace(CALL, stalled=[asdict(row) for row in rows.values() if row.stalled]))
        assert outcomes(again.rows) == {DISK: "moved", BROKERS: "moved"}
        assert {row.stalled for row in again.rows} == {""}

    play(work)


@pytest.mark.usefixtures("_impatient")
def test_copy_that_does_not_advance_is_cancelled_and_requested_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = MovesCall("c", "lane", CALL.moves[:1])

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        asked: list[str] = []
        alter = kafka.alter_log_dirs

        def noted(node: int, moves: Any) -> Any:
            asked.extend(moves.values())
            return alter(node, moves)

        monkeypatch.setattr(kafka, "alter_log_dirs", noted)
        kafka.held = True
        await steps.request(call)
        monkeypatch.setattr(lane_steps, "SLICE", 0.5)
        found, known = None, call
        for _ in range(8):
            (found,) = (await steps.follow(known)).rows
            known = replace(call, stalled=[asdict(found)])
        assert asked == ["/disk/b", *["/disk/a", "/disk/b"] * lane_steps.MOST_MENDS], (
            "the copy that it was asked for stays"
        )
        assert found is not None and (found.stalled, found.repeats) == ("not_advancing", lane_steps.MOST_MENDS)
        assert "KAFKA-9087" in found.reason and "restart the broker" in found.reason
        kafka.held = False
        assert outcomes((await steps.follow(known)).rows) == {DISK: "moved"}

    play(work)


@pytest.mark.usefixtures("_impatient")
def test_copy_that_waits_behind_another_one_is_not_repeated() -> None:
    call = MovesCall("c", "lane", CALL.moves[:1])
    other = TopicPartition("a", 0)

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.placed[other] = {1: "/disk/a"}
        kafka.futures[1, other] = "/disk/b"
        kafka.held = True
        await steps.request(call)
        (row,) = (await steps.follow(call)).rows
        assert row.stalled == "queued" and "broker 1 copies a-0 first" in row.reason, row

    play(work)


@pytest.mark.usefixtures("_impatient")
def test_copy_beside_others_of_which_it_is_not_known_yet_whether_they_advance_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = MovesCall("c", "lane", CALL.moves[:1])
    other = TopicPartition("z", 0)

    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        kafka.placed[other] = {1: "/disk/a"}
        kafka.futures[1, other] = "/disk/b"
        kafka.held = True
        (row,) = (await steps.request(call)).rows
        known = [asdict(row) | {"stalled": "queued", "since": time.time() - 1}]
        monkeypatch.setattr(lane_steps, "SLICE", 0.0)
        requested = kafka.requests.count("alter_log_dirs")
        (row,) = (await steps.follow(replace(call, stalled=known))).rows
        assert row.stalled == "not_advancing" and row.repeats == 0
        assert kafka.requests.count("alter_log_dirs") == requested, "each step reads the other copies anew"

    play(work)


def test_move_waits_for_the_broker_that_it_writes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        monkeypatch.setattr(lane_steps, "SLICE", 0.1)
        kafka.silent = {2}
        found = (await steps.request(CALL)).rows
        assert outcomes(found) == {DISK: "moved", BROKERS: ""} and "reassign" not in kafka.requests
        waiting = found[1]
        assert waiting.state == "awaiting_broker"
        assert waiting.reason == "t-1: broker 2, the target, does not return its log directories"
        call = after(replace(CALL, moves=CALL.moves[1:]), waiting)
        (still,) = (await steps.follow(call)).rows
        assert (still.outcome, still.state, still.stalled) == ("", "awaiting_broker", "")
        monkeypatch.setattr(lane_steps, "STALLED_AFTER", 0.0)
        (still,) = (await steps.follow(call)).rows
        assert still.stalled == "target_silent" and still.since == waiting.since
        call = replace(call, stalled=[still.row()])
        kafka.silent, kafka.lost = set(), ["reassign"]  # The response to the first request is lost.
        (moved,) = (await steps.follow(call)).rows
        assert (moved.outcome, moved.stalled) == ("moved", "") and kafka.requests.count("reassign") == 1

    play(work)


def test_move_whose_broker_stays_away_fails_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        monkeypatch.setattr(lane_steps, "BROKER_PATIENCE", 0.1)
        kafka.silent = {2}
        (found,) = (await steps.request(replace(CALL, moves=CALL.moves[1:]))).rows
        assert found.outcome == "failed" and "broker 2, the target, does not return" in found.reason
        assert "reassign" not in kafka.requests

    play(work)


@pytest.mark.parametrize("stale", [1, 5])
def test_move_that_waits_does_not_end_by_one_stale_read(monkeypatch: pytest.MonkeyPatch, stale: int) -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        monkeypatch.setattr(lane_steps, "SLICE", 0.3)
        monkeypatch.setattr(lane_steps, "QUICK", 0.0)
        kafka.silent = {2}
        one = replace(CALL, moves=CALL.moves[1:])
        (row,) = (await steps.request(one)).rows
        known, reads = kafka.partitions, 0

        def partitions(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return {} if reads == stale else known(*arguments)

        monkeypatch.setattr(kafka, "partitions", partitions)
        while reads <= stale:
            (row,) = (await steps.follow(after(one, row))).rows
            assert (row.outcome, row.state) == ("", "awaiting_broker")

    play(work)


def test_move_waits_on_over_an_outage_of_the_whole_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kafka: KafkaInMemory, steps: LaneSteps) -> None:
        monkeypatch.setattr(lane_steps, "SLICE", 0.1)
        monkeypatch.setattr(stalls, "STALLED_AFTER", 0.0)
        kafka.silent = {2}
        one = replace(CALL, moves=CALL.moves[1:])
        (row,) = (await steps.request(one)).rows

        def silent() -> Any:
            raise NoResponse("no broker responds")

        with monkeypatch.context() as outage:
            outage.setattr(kafka, "cluster", silent)
            (row,) = (await steps.follow(after(one, row))).rows
        assert row.state == "awaiting_broker"
        (row,) = (await steps.follow(after(one, row))).rows
        assert (row.outcome, row.state) == ("", "awaiting_broker")
        kafka.silent = set()
        (row,) = (await steps.follow(after(one, row))).rows
        assert row.outcome == "moved"

    play(work)


def test_step_reports_how_far_each_open_move_is_and_its_rate_once_reads_have_shown_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_steps, "SLICE", 0.2)
    clock = itertools.count(1_000.0, 5.0)

    async def scene(kafka: KafkaInMemory, _: LaneSteps) -> None:
        pool = cast(AdminPool, kafka)
        steps = LaneSteps(pool, ClusterReader(pool), wall=lambda: next(clock))
        kafka.held = True
        await steps.request(replace(CALL, requested=900.0))
        reports: list[LaneReport] = []

        def note(report: LaneReport) -> None:
            reports.append(report)
            kafka.size += 200  # the copy is as far as before, and the source grows: half of that is left

        await steps.follow(replace(CALL, requested=900.0), note)
        first, last = (next(each for each in report.moves if each.key == DISK) for report in (reports[0], reports[-1]))
        assert (first.state, first.copied, first.total, first.rate) == ("copying", 500, 1_000, None)
        assert (first.reads, first.writes) == ((Disk(1, "/disk/a"),), (Disk(1, "/disk/b"),))
        assert last.rate is not None and last.slow is not None and last.rate < 0, "what is left grows"
        assert {each.key for each in reports[-1].moves} == {DISK, BROKERS}

    play(scene)
