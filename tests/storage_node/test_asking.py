"""A node's threads ask the controller: what it answers, and that a stop waits for nobody."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storage_node import asking
from storage_node.asking import LONGEST_PAUSE, SHORTEST_PAUSE, Backoff, ReportingThread, ask_controller
from storage_node.errors import RequestTimedOut
from storage_node.node import Node


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def node(loop: asyncio.AbstractEventLoop | None, controller: Any) -> Node:
    return cast(Node, SimpleNamespace(listener=SimpleNamespace(loop=loop), controller=controller))


async def answer(controller: Any) -> Any:
    if isinstance(controller, Exception):
        raise controller
    return controller


async def silence(_: Any) -> None:
    await asyncio.Event().wait()


def test_response_or_error_is_returned(loop: asyncio.AbstractEventLoop) -> None:
    going = threading.Event()
    assert ask_controller(node(loop, "yes"), answer, going) == "yes"
    with pytest.raises(RequestTimedOut, match="busy"):
        ask_controller(node(loop, RequestTimedOut("busy")), answer, going)


def test_no_request_is_sent_without_a_controller_or_a_loop(loop: asyncio.AbstractEventLoop) -> None:
    assert ask_controller(node(loop, None), lambda _: answer("asked"), threading.Event()) is None
    assert ask_controller(node(None, "yes"), lambda _: answer("asked"), threading.Event()) is None


def test_stop_and_the_time_end_the_wait(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = threading.Event()
    threading.Timer(0.05, stopping.set).start()
    with pytest.raises(RequestTimedOut, match="stops"):
        ask_controller(node(loop, "yes"), silence, stopping)
    monkeypatch.setattr(asking, "_LOOK", 20.0)  # the loop's thread may take a moment to come to it
    assert ask_controller(node(loop, "yes"), answer, stopping) == "yes", "what is answered at once is taken"
    monkeypatch.setattr(asking, "ASK_TIMEOUT", -0.9)
    with pytest.raises(TimeoutError):
        ask_controller(node(loop, "yes"), silence, threading.Event())


class Turns:
    """A reporter whose turns can be awaited: each returns the pause, or raises the error, that `then` has."""

    def __init__(self, then: float | Exception = 60.0) -> None:
        self.then, self._taken = then, queue.Queue[None]()
        self.thread = ReportingThread(node(None, None), "turns", self._turn)
        self.inside = lambda: None

    def _turn(self) -> float:
        self.inside()
        self._taken.put(None)
        if isinstance(self.then, Exception):
            raise self.then
        return self.then

    def taken(self, seconds: float = 5.0) -> bool:
        """Whether another turn was taken."""
        try:
            self._taken.get(timeout=seconds)
        except queue.Empty:
            return False
        return True


@pytest.fixture
def turns() -> Iterator[Turns]:
    it = Turns()
    yield it
    it.thread.stop()


def test_reporter_takes_a_turn_at_its_start_and_when_woken(turns: Turns) -> None:
    turns.thread.start()
    assert turns.taken() and not turns.taken(0.1)
    turns.thread.wake()
    assert turns.taken() and not turns.taken(0.1)


def test_reporter_woken_during_a_turn_takes_another(turns: Turns) -> None:
    wakes = iter([True])
    turns.inside = lambda: turns.thread.wake() if next(wakes, False) else None
    turns.thread.start()
    assert turns.taken() and turns.taken() and not turns.taken(0.1)


def test_reporter_takes_turns_after_their_pauses(turns: Turns) -> None:
    turns.then = 0.01
    turns.thread.start()
    assert all(turns.taken() for _ in range(5))


def test_reporter_continues_after_a_failed_turn(turns: Turns, caplog: pytest.LogCaptureFixture) -> None:
    turns.then = OSError("EIO")
    turns.thread.start()
    assert turns.taken()
    turns.thread.wake()
    assert turns.taken() and "turns failed" in caplog.text


def test_stop_ends_the_pause_and_the_request_of_a_reporter(loop: asyncio.AbstractEventLoop) -> None:
    ended: queue.Queue[BaseException] = queue.Queue()

    def turn() -> float:
        try:
            it.ask(silence)
        except RequestTimedOut as error:
            ended.put(error)
        return 60.0

    it = ReportingThread(node(loop, "yes"), "asks", turn)
    it.start()
    it.stop()
    assert it.stopping
    assert "stops" in str(ended.get(timeout=1))


def test_pauses_grow_until_the_controller_responds() -> None:
    it = Backoff()
    pauses = [it.failed() for _ in range(8)]
    assert pauses[:3] == [SHORTEST_PAUSE, 2 * SHORTEST_PAUSE, 4 * SHORTEST_PAUSE] and pauses[-1] == LONGEST_PAUSE
    it.succeeded()
    assert it.failed() == SHORTEST_PAUSE
