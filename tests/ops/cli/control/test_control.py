"""The commands that control runs, on a real Temporal server: what they change, and that doing it twice is no error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.temporal.describing import ListedRun
from ops.cli import main as cli
from ops.cli.control import sending
from ops.cli.moves import runs
from ops.cli.moves.open_runs import OpenRuns
from ops.stack.errors import ExitCode
from tests.support.no_cluster import no_cluster_around
from tests.support.programs.temporal import TemporalServer, task_queue, temporal_server
from tests.workflows.fakes import until_true
from tests.workflows.move.scene import Scene, one, play

__all__ = ["play", "task_queue", "temporal_server"]

pytestmark = pytest.mark.temporal


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cluster_around(monkeypatch, tmp_path)


class Commands:
    """Runs commands beside the workers of a scene."""

    def __init__(self, address: str, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._options = ["--temporal-address", address, "--cluster", cluster, "--json"]
        self._capsys = capsys

    async def runs(self, *arguments: str) -> list[tuple[str, str]]:
        """The id and status of each run that a command has changed, or left as it was."""
        code, out, err = await self._run(*arguments)
        assert code == 0, err
        return [(row["id"], row["status"]) for row in json.loads(out)["runs"]]

    async def fails(self, *arguments: str) -> tuple[ExitCode, str]:
        code, _, err = await self._run(*arguments)
        said = json.loads(err.strip().splitlines()[-1])
        assert said["exit_code"] == code
        return ExitCode(code), said["message"]

    async def rows(self, *arguments: str, code: ExitCode) -> tuple[dict[str, tuple[str, str]], list[str], str]:
        """The status and code of each run, by its id, the runs that were not read, and the error's sentence."""
        found, out, err = await self._run(*arguments)
        assert found == code, err
        shown = json.loads(out)
        message = json.loads(err.strip().splitlines()[-1])["message"]
        return {row["id"]: (row["status"], row["code"]) for row in shown["runs"]}, shown["unread"], message

    async def _run(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = await asyncio.to_thread(cli.run, [*arguments, *self._options])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err


@pytest.fixture
def commands(temporal_server: TemporalServer, task_queue: str, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(temporal_server.address, task_queue, capsys)


async def throttle(handle: Any) -> int | None:
    return (await handle.query("progress"))["throttle"]  # type: ignore[no-any-return]


def test_runs_are_paused_throttled_and_cancelled_by_partition_and_prefix(
    play: Callable[..., None], commands: Commands
) -> None:
    async def scene(it: Scene) -> None:
        lane = await it.copying([one(0), one(1)])
        code, message = await commands.fails("pause", "t-0")
        assert code is ExitCode.REFUSED and "it also moves t-1; pause all of it by its id" in message
        assert await commands.runs("pause", "t-") == [(lane.id, "paused")]
        assert await commands.runs("pause", lane.id) == [(lane.id, "unchanged")], "twice is no error"
        assert await commands.runs("resume", "t-") == [(lane.id, "resumed")]
        assert await commands.runs("resume", "t-") == [(lane.id, "unchanged")]
        assert await commands.runs("throttle", "t*", "5MB") == [(lane.id, "throttled")]
        assert await throttle(lane) == 5_000_000
        assert await commands.runs("throttle", lane.id, "none") == [(lane.id, "unthrottled")]
        assert await throttle(lane) is None
        assert await commands.runs("retarget", "t-0", "--to", "/disk/c") == [(lane.id, "to /disk/c")]
        assert await commands.runs("retarget", "t-0", "--to", "/disk/c") == [(lane.id, "unchanged")]
        assert await commands.runs("cancel", "t-1") == [(lane.id, "cancelled")], "the lane's other move goes on"

        async def dropped() -> bool:
            rows = (await lane.query("progress"))["replicas"]
            return [row["outcome"] for row in rows] == ["", "cancelled"]

        await until_true(dropped)
        assert await commands.runs("cancel", "t-1") == [(lane.id, "unchanged")]
        other = await it.client.start_workflow("MoveReplica", one(2), id=f"{it.id}-2", task_queue=it.cluster)
        await it.phase(other, "copying")
        code, message = await commands.fails("cancel", "t-")
        assert (code, message) == (
            ExitCode.USAGE,
            "--yes is required without a terminal to cancel 2 runs; nothing was changed",
        )
        assert await commands.runs("cancel", "t-", "--yes") == [(lane.id, "cancelled"), (other.id, "cancelled")]
        assert await commands.runs("cancel", other.id) == [(other.id, "cancelled")], "twice is no error"
        alone = await it.client.start_workflow("MoveReplica", one(3), id=f"{it.id}-3", task_queue=it.cluster)
        await it.phase(alone, "copying")
        for what in ("t-", "t*"):  # one run that nobody has named
            code, message = await commands.fails("cancel", what)
            assert (code, message) == (
                ExitCode.USAGE,
                "--yes is required without a terminal to cancel 1 run; nothing was changed",
            )
        assert await commands.runs("cancel", "t-3") == [(alone.id, "cancelled")]
        code, message = await commands.fails("cancel", "t-")
        assert code is ExitCode.FAILED and "no open run moves t-; see: rehome moves" in message
        code, message = await commands.fails("pause", other.id)
        assert code is ExitCode.REFUSED and message.endswith("it has ended")

    play(scene)


def test_run_that_cannot_do_it_says_so(play: Callable[..., None], commands: Commands) -> None:
    async def scene(it: Scene) -> None:
        await it.controller()
        code, message = await commands.fails("pause", it.cluster)
        assert (code, message) == (ExitCode.REFUSED, f"{it.cluster}: a run of Cluster has no pause")
        code, _ = await commands.fails("cancel", it.cluster)
        assert code is ExitCode.REFUSED, "the controller is not cancelled by mistake"
        code, message = await commands.fails("retarget", "t-0", "--to", "disk-b")
        assert code is ExitCode.USAGE and "--to disk-b is a relative path" in message
        code, message = await commands.fails("throttle", "t-0", "fast")
        assert code is ExitCode.USAGE and "'fast' is not a valid rate" in message

    play(scene)


def test_run_that_is_not_cancelled_hides_no_other(
    play: Callable[..., None], commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel that lasts, one that Temporal does not accept, and one that takes effect."""

    async def scene(it: Scene) -> None:
        it.node.hold.clear()
        queues = (f"{it.cluster}/nobody", it.cluster, it.cluster)
        lasts, lost, done = [
            await it.client.start_workflow("MoveReplica", one(number), id=f"{it.id}-{number}", task_queue=queue)
            for number, queue in enumerate(queues)
        ]
        await it.phase(lost, "copying")
        await it.phase(done, "copying")
        rows, _, message = await commands.rows("cancel", lasts.id, "--timeout", "0.2", code=ExitCode.RUNNING)
        assert rows == {lasts.id: ("cancelling", "running")} and "the run is still open" in message
        await lasts.terminate()
        cancel = runs.cancel

        async def cancel_or_lose(client: Client, workflow_id: str, *, wait_seconds: float | None) -> str:
            if workflow_id == lost.id:
                raise RPCError("connection reset", RPCStatusCode.UNAVAILABLE, b"")
            return await cancel(client, workflow_id, wait_seconds=wait_seconds)

        with monkeypatch.context() as patched:
            patched.setattr(runs, "cancel", cancel_or_lose)
            rows, _, message = await commands.rows("cancel", "t-", "--yes", code=ExitCode.TIMEOUT)
        assert rows == {lost.id: ("unknown", "timeout"), done.id: ("cancelled", "ok")}
        assert f"{lost.id}: Temporal did not carry out the request: connection reset" in message
        assert await commands.runs("cancel", lost.id) == [(lost.id, "cancelled")]

    play(scene)


def test_run_that_was_not_read_is_no_success(
    play: Callable[..., None], commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(it: Scene) -> None:
        first = await it.copying(one(0))
        second = await it.client.start_workflow("MoveReplica", one(1), id=f"{it.id}-1", task_queue=it.cluster)
        await it.phase(second, "copying")
        read = OpenRuns._parameter

        async def not_of_second(mine: OpenRuns, run: ListedRun) -> Any:
            if run.workflow_id == second.id:
                raise RPCError("deadline exceeded", RPCStatusCode.DEADLINE_EXCEEDED, b"")
            return await read(mine, run)

        async def none_of(*_: object) -> None:
            return None

        why = f"Temporal did not return which partitions are moved by {second.id}; try again, or pass a run's id"
        with monkeypatch.context() as patched:
            patched.setattr(OpenRuns, "_parameter", not_of_second)
            rows, unread, message = await commands.rows("pause", "t-", code=ExitCode.PARTIAL)
            assert (rows, unread) == ({first.id: ("paused", "ok")}, [second.id])
            assert message == f"the result is partial: {why}"
            code, message = await commands.fails("cancel", "t-1")
            assert (code, message) == (ExitCode.PARTIAL, f"the result is partial: {why}"), "it may be the one"
        with monkeypatch.context() as patched:
            patched.setattr(sending, "parameter_of", none_of)
            code, message = await commands.fails("retarget", second.id, "--to", "/disk/c")
            assert code is ExitCode.REFUSED and "Temporal did not return which partitions it moves" in message
        await commands.runs("cancel", "t-", "--yes")

    play(scene)
