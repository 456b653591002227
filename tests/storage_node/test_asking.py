"""A node's threads ask the controller: what it answers, and that a stop waits for nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storage_node import asking
from storage_node.asking import ask_controller
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


def test_what_is_answered_or_raised_comes_back(loop: asyncio.AbstractEventLoop) -> None:
    going = threading.Event()
    assert ask_controller(node(loop, "yes"), answer, going) == "yes"
    with pytest.raises(RequestTimedOut, match="busy"):
        ask_controller(node(loop, RequestTimedOut("busy")), answer, going)


def test_nobody_is_asked_without_a_controller_or_a_loop(loop: asyncio.AbstractEventLoop) -> None:
    assert ask_controller(node(loop, None), lambda _: answer("asked"), threading.Event()) is None
    assert ask_controller(node(None, "yes"), lambda _: answer("asked"), threading.Event()) is None


def test_a_stop_and_the_time_end_the_wait(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = threading.Event()
    threading.Timer(0.05, stopping.set).start()
    began = time.monotonic()
    with pytest.raises(RequestTimedOut, match="stops"):
        ask_controller(node(loop, "yes"), silence, stopping)
    assert time.monotonic() - began < asking.ASK_TIMEOUT
    monkeypatch.setattr(asking, "_LOOK", 20.0)  # the loop's thread may take a moment to come to it
    assert ask_controller(node(loop, "yes"), answer, stopping) == "yes", "what is answered at once is taken"
    monkeypatch.setattr(asking, "ASK_TIMEOUT", -0.9)
    with pytest.raises(TimeoutError):
        ask_controller(node(loop, "yes"), silence, threading.Event())
