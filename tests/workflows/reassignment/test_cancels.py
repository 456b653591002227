"""Cancels of PartitionReassignment: by whichever way, refused, while a node is away, after a later target."""

from __future__ import annotations

from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from tests.support.programs.temporal import TemporalServer
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until, until_true
from tests.workflows.reassignment.scene import Cluster, run
from workflows import options
from workflows.model import calls

pytestmark = pytest.mark.temporal


@pytest.mark.parametrize("way", ["api", "temporal"])
@pytest.mark.feature("455-17", "455-28")
def test_cancel_of_the_run_and_through_the_api_end_alike(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, way: str
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up(replicas=(1, 3))
        await it.reassign((0, [2, 3]))
        await it.open(await it.run(), "catching_up")
        await until(lambda: bool(it.node(2).seen))
        if way == "api":
            assert (await it.reassign((0, None)))[0].get("error", 0) == 0
        else:
            await (await it.run()).cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await (await it.run()).result()
        assert isinstance(caught.value.cause, CancelledError)
        (row,) = (await (await it.run()).query("progress"))["partitions"]
        assert (row["outcome"], row["phase"]) == ("cancelled", "cancelled")
        partition = await it.partition()
        assert (partition.replicas, partition.assignment.reassigning) == ((1, 3), False)
        # What was added is gone from its disks before the run says that it is over.
        assert it.node(2).names() == [calls.CATCH_UP, calls.AWAIT_DELETION]
        assert not it.node(1).seen
        await recorded(f"reassign-cancelled-by-{way}", it.client, (await it.run()).id)

    run(temporal_server, task_queue, scene)


def test_cancel_while_the_new_node_is_unavailable_is_applied_at_once(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        await it.reassign((0, [2]))
        await it.away(2)
        await it.open(await it.run(), "catching_up")
        await it.reassign((0, None), by=3)
        await it.open(await it.run(), "deleting")
        assert (await (await it.run()).describe()).status == WorkflowExecutionStatus.RUNNING
        await it.serve(it.node(2))
        with pytest.raises(WorkflowFailureError) as caught:
            await (await it.run()).result()
        assert isinstance(caught.value.cause, CancelledError)

    run(temporal_server, task_queue, scene)


@pytest.mark.feature("455-28")
def test_rejected_cancel_has_the_reason_and_is_retried_after_growing_pauses(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "CANCEL_AGAIN_AFTER", timedelta(milliseconds=1100))

    async def scene(it: Cluster) -> None:
        await it.up()
        await it.reassign((0, [2, 3]))
        await it.open(await it.run(), "catching_up")
        await it.in_sync(nodes=(1, 2))
        # None of the original set is in sync any more.
        await it.node(1).submit(it.handle, {"do": "lease_ended", "node": 1, "incarnation": "i1"})
        await (await it.run()).cancel()

        async def refused() -> bool:
            found = await (await it.run()).query("progress")
            return bool(found["cancelling"] and "unclean leader election" in found["partitions"][0]["message"])

        await until_true(refused)
        waits: list[float] = []

        async def three_times() -> bool:
            waits.clear()
            async for event in (await it.run()).fetch_history_events():
                if event.HasField("timer_started_event_attributes"):
                    waits.append(
                        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
                    )
            return len([each for each in waits if each < 5]) >= 3

        await until_true(three_times)
        first, *_, last = [each for each in waits if each < 5]
        assert first <= 1.1 and last > 1.8
        assert (await it.partition()).assignment.reassigning, "it goes on"
        await it.in_sync(nodes=(2, 3))
        row = (await (await it.run()).result())["rows"][0]
        assert (row["outcome"], row["replicas"]) == ("done", [2, 3])
        assert row["message"].startswith("The cancel is refused for now: Unable to revert")
        await recorded("reassign-cancel-refused", it.client, (await it.run()).id)

    run(temporal_server, task_queue, scene)


def test_cancel_of_a_run_keeps_a_later_target(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await it.up(2)
        await it.reassign((0, [2]), (1, [2]))
        handle = await it.run(count=2)
        await it.open(handle, "catching_up")
        await it.reassign((0, [3]))
        await handle.cancel()
        # Its second partition is cancelled; the first, which is another's now, is not.
        result = await handle.result()
        assert [row["outcome"] for row in result["rows"]] == ["superseded", "cancelled"]
        assert (await it.partition(0)).assignment.target == (3,)
        assert not (await it.partition(1)).assignment.reassigning

    run(temporal_server, task_queue, scene)
