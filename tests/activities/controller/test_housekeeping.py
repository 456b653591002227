"""What the controller's process keeps in order, when the server responds with something unexpected."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.controller import cluster_run, housekeeping
from activities.controller.cluster_run import ClusterRun
from activities.controller.housekeeping import Housekeeper
from activities.temporal.supervision import supervise
from tests.activities.temporal.test_supervision import Seen

RUN = ClusterRun("first", "run", 10)


class Server:
    """A client whose health is good, and that counts starts."""

    def __init__(self) -> None:
        self.service_client = self
        self.started: list[str] = []

    async def check_health(self, **more: object) -> bool:
        return True

    async def start_workflow(self, workflow: str, *arguments: object, id: str, **more: object) -> Any:
        self.started.append(id)
        return type("Handle", (), {"id": id})


def keep_house(
    monkeypatch: pytest.MonkeyPatch, *looks: ClusterRun | BaseException | None
) -> tuple[list[str], list[str]]:
    """Keep house while the server has `looks` in turn, the last one for ever: what was started, and what was done."""
    server, done, left, seen, enough = Server(), list[str](), list(looks), list[int](), asyncio.Event()

    async def current(client: object, cluster: str) -> ClusterRun | None:
        found = left.pop(0) if len(left) > 1 else left[0]
        if len(left) == 1:
            seen.append(1)
        if len(seen) == 3:
            enough.set()
        if isinstance(found, BaseException):
            raise found
        return found

    async def rest(*arguments: object) -> bool:
        done.append("rest")
        return True

    async def client() -> Client:
        return cast(Client, server)

    monkeypatch.setattr(cluster_run, "current", current)
    monkeypatch.setattr(housekeeping, "_keep_rest", rest)
    monkeypatch.setattr(housekeeping, "WATCH", 0.0)

    async def scene() -> None:
        house = Housekeeper(client, "c", "export", 0, lambda: done.append("renew"))
        task = asyncio.create_task(supervise("house", house.run, Seen(), pause=0.0, longest=0.0))
        await asyncio.wait_for(enough.wait(), 60)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(asyncio.wait_for(scene(), 60))
    return server.started, done


def test_paused_controller_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started, _ = keep_house(monkeypatch, RUN, ClusterRun("first", "run", 12, paused=True))
    assert started == []


def test_known_run_survives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    older = ClusterRun("first", "run", 5)
    started, done = keep_house(monkeypatch, RUN, ValueError("odd"), older, older)
    assert started == [] and done.count("renew") == 1, "the database was restored between two looks"


def test_outage_renews_the_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    unavailable = RPCError("unavailable", RPCStatusCode.UNAVAILABLE, b"")
    started, done = keep_house(monkeypatch, RUN, unavailable, unavailable, RUN, RUN)
    assert started == [] and done.count("renew") == 1


def test_missing_controller_is_started_after_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    started, _ = keep_house(monkeypatch, ValueError("odd"), None, RUN)
    assert started == ["c"]
