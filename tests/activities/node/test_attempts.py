"""The journal of running attempts survives a kill, says what was open, and does not grow."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.node import attempts
from activities.node.attempts import Attempt, AttemptJournal, fail_dead_attempts, parse, started_by
from tests.support.programs.temporal import TemporalServer


def attempt(number: int) -> Attempt:
    return Attempt(f"w{number}", f"r{number}", str(number))


def journal_in(*paths: Path) -> AttemptJournal:
    return AttemptJournal(lambda: paths)


def test_journal_returns_attempts_that_did_not_end(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    assert journal.left_behind() == frozenset()
    for number in range(3):
        journal.began(attempt(number))
    journal.ended(attempt(1))
    journal.close()
    assert journal_in(tmp_path).left_behind() == {attempt(0), attempt(2)}


def test_journal_keeps_left_attempts_until_they_end(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    first.began(attempt(1))
    first.close()
    second = journal_in(tmp_path)
    assert second.left_behind() == {attempt(1)}
    second.began(attempt(2))
    second.close()
    third = journal_in(tmp_path)
    assert third.left_behind() == {attempt(1), attempt(2)}
    third.ended(attempt(1))
    third.ended(attempt(2))
    third.close()
    assert journal_in(tmp_path).left_behind() == frozenset()


def test_result_may_be_lost_for_a_while_after_an_activity_has_returned(tmp_path: Path) -> None:
    """A node that is killed a moment after the end of a step ends the attempt at its start: the server waits for it."""
    now = [0.0]
    journal = AttemptJournal(lambda: [tmp_path], lambda: now[0])

    def left() -> frozenset[Attempt]:
        journal._writer.submit(lambda: None).result()
        for file in journal._files.values():
            file._writer.submit(lambda: None).result()
        return journal_in(tmp_path).left_behind()

    journal.began(attempt(1))
    journal.returned(attempt(1))
    assert left() == {attempt(1)}
    now[0] += attempts.IN_FLIGHT - 1
    journal.began(attempt(2))
    assert left() == {attempt(1), attempt(2)}
    now[0] += 2
    journal.began(attempt(3))
    assert left() == {attempt(2), attempt(3)}
    # The server has it tried again: what returned before says nothing of this one.
    journal.returned(attempt(3))
    journal.began(attempt(3))
    now[0] += 2 * attempts.IN_FLIGHT
    journal.returned(attempt(2))
    assert left() == {attempt(2), attempt(3)}
    journal.close()
    assert journal_in(tmp_path).left_behind() == {attempt(3)}


def test_torn_and_foreign_lines_are_skipped() -> None:
    lines = ['["+", "w", "r", "1"]', "garbage", "[]", '["+", "w"]', '"text"', "{}", '["+", "w", "r"']
    assert parse(lines) == {Attempt("w", "r", "1")}


def test_journal_is_rewritten_above_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "COMPACT_BYTES", 1000)
    journal = journal_in(tmp_path)
    journal.began(attempt(9999))
    for number in range(500):
        journal.began(attempt(number))
        journal.ended(attempt(number))
    journal.close()
    assert (tmp_path / attempts.FILE).stat().st_size < 1200
    assert journal_in(tmp_path).left_behind() == {attempt(9999)}


def test_journal_is_in_every_directory(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.mkdir()
    journal = AttemptJournal(lambda: [path for path in paths if path.exists()])
    journal.began(attempt(1))
    journal._writer.submit(lambda: None).result()
    paths[0].rename(tmp_path / "pulled-out")
    journal.began(attempt(2))
    journal._writer.submit(lambda: None).result()
    (tmp_path / "pulled-out").rename(paths[0])
    journal.began(attempt(3))
    journal.close()
    for path in paths:
        assert journal_in(path).left_behind() == {attempt(1), attempt(2), attempt(3)}
    assert journal_in(tmp_path / "missing", paths[1]).left_behind() == {attempt(1), attempt(2), attempt(3)}


def test_journal_write_error_is_ignored(tmp_path: Path) -> None:
    journal = journal_in(tmp_path / "missing")
    journal.began(attempt(1))
    journal.ended(attempt(1))
    journal.close()


@activity.defn
async def answer() -> str:
    return "from the next start"


@workflow.defn(sandboxed=False)
class Asking:
    """One activity with a long timeout, tried again when it fails."""

    @workflow.run
    async def run(self, queue: str) -> str:
        return await workflow.execute_activity(answer, task_queue=queue, start_to_close_timeout=timedelta(minutes=2))


@pytest.mark.temporal
def test_attempt_lost_in_flight_to_a_killed_worker_is_failed(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        client = await temporal_server.client()
        decide = Worker(
            client, task_queue=f"{task_queue}-w", workflows=[Asking], workflow_runner=UnsandboxedWorkflowRunner()
        )
        async with decide:
            handle = await client.start_workflow(Asking.run, task_queue, id=task_queue, task_queue=f"{task_queue}-w")
            # Taken by a worker that never tells anybody: it was killed before the first line of the activity.
            taken = await client.workflow_service.poll_activity_task_queue(
                PollActivityTaskQueueRequest(
                    namespace="default", task_queue=TaskQueue(name=task_queue), identity="rehome-node-3-77@there"
                )
            )
            lost = Attempt(task_queue, str(handle.first_execution_run_id), taken.activity_id)
            assert await started_by(client, task_queue, "rehome-node-3-") == {lost}
            assert await started_by(client, task_queue, "rehome-node-30-") == frozenset()
            assert await started_by(client, f"{task_queue}-nobody", "rehome-node-3-") == frozenset()
            journal = journal_in(tmp_path)
            assert await fail_dead_attempts(client, {lost}, journal) == 1
            journal.close()
            async with Worker(client, task_queue=task_queue, activities=[answer]):
                assert await handle.result() == "from the next start"  # and not after the timeout

    asyncio.run(scenario())
