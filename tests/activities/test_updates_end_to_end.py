"""What people ask of moves that are under way, on a real node: other targets, drops, cancels at every moment."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.service import RPCError

from tests.activities.cluster import SLOW, Cluster, failure, move, until
from workflows.model import names

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

ENDED = (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.CANCELED)

#: Steps of a swap, in order, at which a cancel finds it. From the lock on it goes through.
SWAP_STEPS = (
    "swap.before_lock",
    "swap.after_tail",
    "swap.after_seal",
    "swap.after_source_renamed",
    "swap.after_source_flushed",
    "swap.after_target_renamed",
    "swap.after_target_flushed",
    "swap.after_references",
)


def ended(cluster: Cluster, workflow_id: str) -> WorkflowExecutionStatus:
    """How a run has ended, once it has."""

    def look() -> WorkflowExecutionStatus | None:
        status = cluster.status(workflow_id)
        return None if status == WorkflowExecutionStatus.RUNNING else status

    return until(f"{workflow_id} ends", look)


def settled(cluster: Cluster, topic: str, directory: Path, partition: int = 0) -> None:
    """Until nothing of a replica is left but the one in this directory."""
    only = [f"{directory.name}/{topic}-{partition}"]
    until(f"only {only[0]} is left", lambda: cluster.where(topic, partition) == only)


@pytest.mark.feature("113-08")
def test_set_target_during_the_copy_ends_in_the_new_directory(cluster: Cluster) -> None:
    cluster.create_topic("retarget")
    count = cluster.produce("retarget", 2)
    source = cluster.disk_of("retarget")
    second, third = (path for path in cluster.dirs() if path != source)
    cluster.start_move("retarget", move("retarget", 0, 1, second, throttle=SLOW))
    cluster.wait_copying("retarget", at_least=300_000)
    # The new copy is to be met with less in it than the old one had, whenever it is looked at.
    cluster.with_handle("retarget", lambda handle: handle.execute_update("set_throttle", {"rate": "1000"}))
    order = {"topic": "retarget", "partition": 0, "directory": str(third)}
    cluster.with_handle("retarget", lambda handle: handle.execute_update("set_target", order))
    # The answer means it: the copy in the second directory is none any more, the one in the third is there.
    assert {name.split("/")[0] for name in cluster.where("retarget") if name.endswith(".move")} == {third.name}
    now = cluster.moves()["retarget-0"]
    assert (now["directory"], now["bytes_resumed"]) == (str(third), 0)
    assert cluster.progress("retarget")["replicas"][0]["bytes_copied"] < 300_000
    cluster.unlimited("retarget")
    (row,) = cluster.result("retarget")["rows"]
    assert (row["outcome"], row["directory"], row["source"]) == ("deleted", str(third), str(source))
    assert row["bytes_copied"] == row["bytes_total"]
    settled(cluster, "retarget", third)
    assert cluster.read_numbers("retarget", count) == list(range(count))


def test_set_target_to_an_invalid_directory_is_rejected_and_the_copy_continues(cluster: Cluster) -> None:
    cluster.create_topic("aimless")
    cluster.produce("aimless", 1)
    target = cluster.other_disk("aimless")
    cluster.start_move("aimless", move("aimless", 0, 1, target, throttle=SLOW))
    cluster.wait_copying("aimless")
    for directory in (str(target), "relative/path", ""):
        order = {"topic": "aimless", "partition": 0, "directory": directory}
        with pytest.raises(WorkflowUpdateFailedError):
            cluster.with_handle("aimless", lambda handle, it=order: handle.execute_update("set_target", it))
    cluster.unlimited("aimless")
    assert cluster.result("aimless")["rows"][0]["outcome"] == "deleted"


@pytest.mark.feature("113-05")
def test_drop_of_one_replica_moves_the_others(cluster: Cluster) -> None:
    partitions = range(9)
    cluster.create_topic("some", len(partitions))
    by_disk: dict[Path, list[int]] = {}
    for partition in partitions:
        by_disk.setdefault(cluster.disk_of("some", partition), []).append(partition)
    source, here = max(by_disk.items(), key=lambda item: len(item[1]))
    dropped, others = here[0], here[1:]
    assert len(others) >= 2
    counts = {partition: cluster.produce("some", 0.4, partition) for partition in here}
    target = next(path for path in cluster.dirs() if path != source)
    cluster.start_move("some", *(move("some", partition, 1, target, throttle=SLOW) for partition in here))
    cluster.wait_copying("some", dropped)
    order = {"topic": "some", "partition": dropped}
    answer = cluster.with_handle("some", lambda handle: handle.execute_update("drop", order))
    assert answer["outcome"] == "cancelled"
    assert not any(name.endswith(".move") for name in cluster.where("some", dropped))
    cluster.unlimited("some")
    rows = {row["partition"]: row["outcome"] for row in cluster.result("some")["rows"]}
    assert rows == {dropped: "cancelled"} | {partition: "deleted" for partition in others}
    settled(cluster, "some", source, dropped)
    for partition in others:
        settled(cluster, "some", target, partition)
    for partition, count in counts.items():
        assert cluster.read_numbers("some", count, partition) == list(range(count))


@pytest.mark.feature("113-05", "113-26")
def test_any_over_the_wire_ends_the_run_as_cancelled(cluster: Cluster) -> None:
    cluster.create_topic("anywhere")
    cluster.produce("anywhere", 1)
    source, target = cluster.disk_of("anywhere"), cluster.other_disk("anywhere")
    cluster.start_move("anywhere", move("anywhere", 0, 1, target, throttle=SLOW))
    cluster.wait_copying("anywhere")
    assert cluster.alter_log_dirs(("anywhere", 0, 1, "any")) == ["NoError"]
    assert not any(name.endswith(".move") for name in cluster.where("anywhere")), "the answer means it"
    assert ended(cluster, "anywhere") == WorkflowExecutionStatus.CANCELED
    settled(cluster, "anywhere", source)


@pytest.mark.feature("113-08")
def test_client_request_for_another_directory_starts_another_run(cluster: Cluster) -> None:
    cluster.create_topic("elsewhere")
    cluster.produce("elsewhere", 1)
    source = cluster.disk_of("elsewhere")
    second, third = (path for path in cluster.dirs() if path != source)
    cluster.start_move("elsewhere", move("elsewhere", 0, 1, second, throttle=SLOW))
    claim = cluster.wait_copying("elsewhere")["claim"]
    assert cluster.alter_log_dirs(("elsewhere", 0, 1, third)) == ["NoError"]
    # One claim for the end of the first move, one for the second.
    later = names.move_id(cluster.name, 1, "elsewhere", 0, 1, claim + 2)
    assert until("the later run is there", lambda: cluster.result(later))["rows"][0]["outcome"] == "deleted"
    assert ended(cluster, "elsewhere") in (WorkflowExecutionStatus.CANCELED, WorkflowExecutionStatus.FAILED)
    settled(cluster, "elsewhere", third)


def test_run_with_an_old_generation_changes_nothing(cluster: Cluster) -> None:
    cluster.create_topic("past")
    source, target = cluster.disk_of("past"), cluster.other_disk("past")
    cluster.start_move("past-1", move("past", 0, 1, target))
    (row,) = cluster.result("past-1")["rows"]
    settled(cluster, "past", target)
    cluster.start_move("past-2", move("past", 0, 1, source, generation=row["generation"]))
    error = failure(cluster, "past-2")
    assert error.type == "Superseded" and str(row["generation"]) in error.message
    assert cluster.where("past") == [f"{target.name}/past-0"]


def test_run_with_an_old_claim_changes_nothing(cluster: Cluster) -> None:
    cluster.create_topic("claimed")
    source, target = cluster.disk_of("claimed"), cluster.other_disk("claimed")
    for number, directory in enumerate((target, source)):
        cluster.start_move(f"claimed-{number}", move("claimed", 0, 1, directory))
        cluster.result(f"claimed-{number}")
    cluster.start_move("claimed-late", move("claimed", 0, 1, target, claim=1, generation=9))
    assert failure(cluster, "claimed-late").type == "StaleClaim"
    settled(cluster, "claimed", source)


@pytest.mark.parametrize("step", SWAP_STEPS)
def test_cancel_at_each_step_of_the_swap(cluster: Cluster, step: str) -> None:
    topic = "at-" + step.split(".")[1].replace("_", "-")
    cluster.create_topic(topic)
    count = cluster.produce(topic, 0.05)
    target = cluster.other_disk(topic)
    with cluster.armed({step: "hang"}):
        cluster.start_move(topic, move(topic, 0, 1, target))
        cluster.wait_passed(step)
        cluster.with_handle(topic, lambda handle: handle.cancel())
        until("the run knows of it", lambda: cluster.progress(topic)["cancelling"])
    # The step that runs already is seen to its end: what is in place stays there.
    assert ended(cluster, topic) == WorkflowExecutionStatus.COMPLETED
    assert cluster.result(topic)["rows"][0]["outcome"] == "deleted"
    settled(cluster, topic, target)
    assert cluster.read_numbers(topic, count) == list(range(count))


@pytest.mark.parametrize("step", ["swap.before_lock", "swap.after_tail", "swap.after_references"])
def test_cancel_on_the_node_at_each_step_of_the_swap(cluster: Cluster, step: str) -> None:
    # Nobody sees from outside that the cancel has come to the swap: where it was too late, it gets more time.
    for seconds in (0.2, 1.0, 5.0):
        moved = cancelled_at(cluster, step, seconds)
        if moved == (step == "swap.after_references") or step == "swap.after_tail":
            return
    raise AssertionError(f"the replica was {'' if moved else 'not '}moved")


def cancelled_at(cluster: Cluster, step: str, seconds: float) -> bool:
    """Cancel a move on its node while its swap is held at a step; whether the replica was moved all the same."""
    topic = f"node-{step.split('.')[1].replace('_', '-')}-{int(seconds * 10)}"
    cluster.create_topic(topic)
    cluster.produce(topic, 0.05)
    source, target = cluster.disk_of(topic), cluster.other_disk(topic)
    asking = threading.Thread(target=lambda: cluster.ask("cancel-move", topic=topic, partition=0))
    with cluster.armed({step: "hang"}):
        cluster.start_move(topic, move(topic, 0, 1, target))
        cluster.wait_passed(step)
        asking.start()
        asking.join(seconds)
        assert asking.is_alive(), "it waits for the swap, which answers for one of the two"
    asking.join(60)
    moved = ended(cluster, topic) == WorkflowExecutionStatus.COMPLETED
    settled(cluster, topic, target if moved else source)
    return moved


def test_cancel_at_any_moment_ends_cancelled_or_completed(cluster: Cluster) -> None:
    cluster.create_topic("moment")
    count = cluster.produce("moment", 0.02)
    ways = set()
    for number in range(12):
        run = f"moment-{number}"
        source, target = cluster.disk_of("moment"), cluster.other_disk("moment")
        cluster.start_move(run, move("moment", 0, 1, target))
        time.sleep(number * 0.012)  # no synchronisation: the moment is what is tried out
        with contextlib.suppress(RPCError):  # it has ended already
            cluster.with_handle(run, lambda handle: handle.cancel())
        status = ended(cluster, run)
        assert status in ENDED
        ways.add(status)
        settled(cluster, "moment", target if status == WorkflowExecutionStatus.COMPLETED else source)
    assert cluster.read_numbers("moment", count) == list(range(count))
    assert WorkflowExecutionStatus.CANCELED in ways
