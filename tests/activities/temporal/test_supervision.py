"""Parts that run for ever: whatever they fail with, they are restarted, and logged at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from activities.temporal import supervision
from activities.temporal.client_state import ClientHealth
from activities.temporal.supervision import CHANGED, REPEAT, Repeats, supervise, until_done


class Panic(BaseException):
    """As the SDK's core raises it: no `Exception`."""


class Seen:
    """Records the calls of an observer, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pauses: list[float] = []

    def started(self, part: str) -> None:
        self.calls.append(f"{part} runs")

    def failed(self, part: str, error: BaseException, pause: float) -> None:
        self.calls.append(f"{part} failed: {type(error).__name__}")
        self.pauses.append(pause)


def failing_with(*errors: BaseException | None) -> tuple[Callable[[], Coroutine[Any, Any, None]], asyncio.Event]:
    """Work that fails with each error in turn (None: it returns), and then runs; and the event that it runs."""
    left, runs = list(errors), asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        if left:
            if (error := left.pop(0)) is not None:
                raise error
            return
        runs.set()
        await asyncio.Event().wait()

    return work, runs


async def run_until(runs: asyncio.Event, work: Callable[[], Coroutine[Any, Any, None]], seen: Seen) -> None:
    """Supervise `work` until it runs; then cancel it, which has to end it."""
    task = asyncio.create_task(supervise("it", work, seen, pause=0.001, longest=0.004))
    await asyncio.wait_for(runs.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "error",
    [
        ValueError("8 is not a valid WorkflowExecutionStatus"),
        RPCError("gone", RPCStatusCode.UNAVAILABLE, b""),
        OSError(5, "I/O error"),
        MemoryError(),
        asyncio.CancelledError(),
        Panic("a panic of the core"),
        ExceptionGroup("several", [KeyError("x")]),
        None,
    ],
    ids=repr,
)
def test_part_that_fails_or_returns_is_restarted(error: BaseException | None) -> None:
    async def scene() -> list[str]:
        seen = Seen()
        work, runs = failing_with(error)
        await run_until(runs, work, seen)
        return seen.calls

    leaf = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
    kind = type(leaf).__name__ if leaf is not None else "PartEnded"
    assert asyncio.run(scene()) == ["it runs", f"it failed: {kind}", "it runs"]


def test_pauses_double_up_to_the_longest() -> None:
    async def scene() -> list[float]:
        seen = Seen()
        work, runs = failing_with(*(ValueError() for _ in range(5)))
        await run_until(runs, work, seen)
        return seen.pauses

    assert asyncio.run(scene()) == [0.001, 0.002, 0.004, 0.004, 0.004]


def test_pauses_start_over_after_a_calm_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "CALM", 0.0)

    async def scene() -> list[float]:
        seen = Seen()
        work, runs = failing_with(*(ValueError() for _ in range(3)))
        await run_until(runs, work, seen)
        return seen.pauses

    assert asyncio.run(scene()) == [0.001, 0.001, 0.001]


@pytest.mark.parametrize("ending", [None, ValueError("while it ends")], ids=repr)
def test_cancel_ends_a_part_that_swallows_it(ending: Exception | None) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ending is not None:
                raise ending from None

    async def scene() -> None:
        task = asyncio.create_task(supervise("it", stubborn, Seen()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)

    asyncio.run(scene())


def test_attempt_is_repeated_whatever_it_raises(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[BaseException] = [
        RPCError("busy", RPCStatusCode.UNAVAILABLE, b""),
        ValueError("odd"),
        ValueError("odd"),
        asyncio.CancelledError(),
        KeyError("k"),
    ]

    async def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(until_done("it was not done", attempt, pause=0.001, longest=0.001)) == "done"
    assert [r.getMessage() for r in caplog.records] == ["it was not done, trying again: ValueError: odd"]


def test_lines_are_written_when_they_change_and_every_minute() -> None:
    limit = Repeats()
    written = []
    now = 0.0
    for step in range(2 * int(REPEAT)):
        now = float(step)
        if limit.passes("gone", now, "unreachable"):
            written.append(now)
    assert written == [0.0, REPEAT]
    assert limit.passes("refused", now, "tls"), "another kind is logged at once"
    assert not limit.passes("refused, request 2", now + 1, "tls")
    assert limit.passes("refused, request 3", now + CHANGED, "tls")


def test_part_that_fails_for_ever_is_shown_and_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    health = ClientHealth("the node", wall=lambda: 1_700_000_000.0 + clock[0], clock=lambda: clock[0])
    with caplog.at_level(logging.ERROR):
        for _ in range(120):
            health.started("serving")
            health.failed("serving", ValueError("odd"), 1.0)
            clock[0] += 1.0
    assert [r.getMessage() for r in caplog.records] == [
        "the node: serving failed (ValueError: odd); restarting in 1.0 s (failure 1)",
        "the node: serving failed (ValueError: odd); restarting in 1.0 s (failure 61)",
    ]
    assert caplog.records[0].exc_info, "an error of ours comes with its stack"
    (row,) = health.state.as_dict()["restarted"]
    assert row == {
        "part": "serving",
        "running": False,
        "restarts": 120,
        "last_error": "ValueError: odd",
        "last_failed": "2023-11-14T22:15:19Z",
    }
    health.started("serving")
    assert health.state.as_dict()["restarted"][0]["running"] is True
