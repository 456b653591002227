"""Who a node says that it is: to its lease, and to the controller that asks before it fences."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.controller import probing
from activities.node.activities import NodeActivities
from storage_node.node import Node
from storage_node.ports import Controller
from storage_node.wire.client import private_client
from workflows.model.calls import ImageCall, LeaseCall, ProbeCall


def activities(**more: Any) -> NodeActivities:
    node = SimpleNamespace(id=1, incarnation="mine", engine=None, **more)
    return NodeActivities(cast(Node, node), cast(Controller, None))


def test_lease_of_another_incarnation_fails_without_retry() -> None:
    with pytest.raises(ApplicationError) as caught:
        asyncio.run(ActivityEnvironment().run(activities().hold_lease, LeaseCall("c", 1, "another")))
    assert caught.value.type == "WrongIncarnation" and caught.value.non_retryable


def test_lease_heartbeats_until_cancelled() -> None:
    async def scenario() -> None:
        environment = ActivityEnvironment()
        beats: list[tuple[Any, ...]] = []
        beaten = asyncio.Event()

        def beat(*details: Any) -> None:
            beats.append(details)
            beaten.set()

        environment.on_heartbeat = beat
        held = asyncio.create_task(environment.run(activities().hold_lease, LeaseCall("c", 1, "mine")))
        await asyncio.wait_for(beaten.wait(), 60)
        assert set(beats) == {("mine",)} and not held.done()
        environment.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held

    asyncio.run(scenario())


def test_apply_image_returns_the_applied_pair() -> None:
    pushed: list[bool] = []
    node = SimpleNamespace(
        id=1, incarnation="mine", engine=None, apply_images=lambda images, patience: (3, 40 + len(images))
    )
    bound = NodeActivities(cast(Node, node), cast(Controller, None), pushed.append)
    result = asyncio.run(ActivityEnvironment().run(bound.apply_image, ImageCall(1, ["a", "b"], register=True)))
    assert (result.generation, result.version, result.incarnation) == (3, 42, "mine")
    assert pushed == [True]


def test_probe_returns_silence_and_refusal_as_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        refused = asyncio.run(ActivityEnvironment().run(probing.probe_node, ProbeCall(1, "127.0.0.1", port, 0.3)))
        silent.listen()
        unheard = asyncio.run(ActivityEnvironment().run(probing.probe_node, ProbeCall(1, "127.0.0.1", port, 0.3)))
    for result in (refused, unheard):
        assert result.incarnation == "" and result.reason


def test_probe_of_another_node_has_no_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_client, "call", lambda *a, **k: {"node": 2, "incarnation": "theirs"})
    result = asyncio.run(ActivityEnvironment().run(probing.probe_node, ProbeCall(1, "127.0.0.1", 1)))
    assert result.incarnation == "" and "node 2" in result.reason
    result = asyncio.run(ActivityEnvironment().run(probing.probe_node, ProbeCall(2, "127.0.0.1", 1)))
    assert result.incarnation == "theirs"
