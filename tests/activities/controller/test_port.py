"""What a client reads when the controller does not answer in time: whether its change may still be made."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from activities.controller import port
from activities.controller.batching import Batcher, Reply
from activities.controller.cluster_link import ClusterLink
from activities.controller.port import ControllerPort
from storage_node import admin
from storage_node.model.command_rows import name_of
from storage_node.model.commands import Command
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.nodes.reassigning import results, wanted_topics
from tests.support.wire import Client

SOON = timedelta(seconds=0.5)
LATE = r"the controller did not respond within 0\.\d s"


#: What a line holds back; what the node asks for by itself meanwhile goes through.
HELD = {"create_topics", "alter_reassignments", "delete_topics", "tell_version"}


class Line:
    """A port whose updates wait, one at a time, until `go_on`; `carried_out` is what the controller then does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.port = ControllerPort(self.loop)
        self.carried_out: list[str] = []
        self.under_way = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._may = asyncio.Event()
        self._batcher = Batcher(self._send)
        link = SimpleNamespace(submit=self._submit)
        self.port.attach(1, cast(ClusterLink, link), cast(Any, None), cast(Any, None))
        self._sending = self.loop.create_task(self._batcher.run())
        self.loop.run_forever()

    async def _submit(self, command: Command, seconds: float | None, *, first: bool = False) -> list[Any]:
        return list((await self._batcher.submit(command, seconds, first=first))["results"])

    async def _send(self, number: int, commands: list[Command]) -> list[Reply]:
        asked = [name_of(command) for command in commands]
        if HELD.intersection(asked):
            self.under_way.set()
            await self._may.wait()
        self.carried_out += asked
        return [{"results": [{}]} for _ in commands]

    def occupy(self) -> None:
        """Have an update under way, so that what comes now waits."""
        call = self.port.delete_topics(["another"], timeout=600)
        asyncio.run_coroutine_threadsafe(call, self.loop)
        assert self.under_way.wait(60)

    def go_on(self) -> None:
        """Let the updates through; returns when one that comes now is done."""
        self.loop.call_soon_threadsafe(self._may.set)
        asyncio.run_coroutine_threadsafe(self.port.query_version(timeout=60), self.loop).result(60)

    def close(self) -> None:
        async def end() -> None:
            self._sending.cancel()
            await asyncio.gather(self._sending, self.port.close(), return_exceptions=True)
            self.loop.call_soon(self.loop.stop)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(60)
        self._thread.join(60)
        self.loop.close()


@contextmanager
def line_of(harness: Harness) -> Iterator[Line]:
    """The node asks over a line of its own for as long as the block runs."""
    line = Line()
    harness.node.controller, before = line.port, harness.node.controller
    try:
        yield line
    finally:
        harness.node.controller = before
        line.close()


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    # However long the machine stands still, who knows what became of the command is who says it.
    monkeypatch.setattr(port, "SLACK", 120.0)
    monkeypatch.setattr(admin, "ANSWER_SLACK", 240.0)
    with running(tmp_path) as made:
        made.create_topic("t")
        yield made


def reassign(client: Client) -> list[str]:
    answer = client.call("AlterPartitionReassignments", 1, topics=wanted_topics({("t", 0): [2]}), timeout=SOON)
    assert int(answer.error_code) == 7 and [code for code, _ in results(answer).values()] == [7]
    return [answer.error_message, *(message for _, message in results(answer).values())]


def create(client: Client, validate_only: bool = False) -> list[str]:
    topic = {"name": "u", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    answer = client.call("CreateTopics", 5, topics=[topic], timeout=SOON, validate_only=validate_only)
    (row,) = answer.topics
    assert int(row.error_code) == 7
    return [row.error_message]


ASKED: dict[str, tuple[Callable[[Client], list[str]], str]] = {
    "reassign": (reassign, "alter_reassignments"),
    "create": (create, "create_topics"),
}


@pytest.mark.parametrize("name", ASKED)
def test_timeout_of_an_unsent_change_reports_that_nothing_changed(harness: Harness, name: str) -> None:
    ask, do = ASKED[name]
    client = Client(harness)
    with line_of(harness) as line:
        line.occupy()
        for message in ask(client):
            assert re.fullmatch(rf"{LATE}; nothing was changed", message), message
        line.go_on()
        assert do not in line.carried_out
    client.close()


@pytest.mark.parametrize("name", ASKED)
def test_timeout_of_a_sent_change_reports_that_it_may_apply(harness: Harness, name: str) -> None:
    ask, do = ASKED[name]
    client = Client(harness)
    with line_of(harness) as line:
        for message in ask(client):
            again = "check before you send the request again"
            assert re.fullmatch(rf"{LATE}; it may still be applied: {again}", message), message
        line.go_on()
        until(lambda: do in line.carried_out)
    client.close()


def test_timeout_of_a_read_does_not_mention_changes(harness: Harness) -> None:
    client = Client(harness)
    with line_of(harness):
        (message,) = create(client, validate_only=True)
        assert re.fullmatch(LATE, message), message
        listed = client.call("ListPartitionReassignments", 0, topics=None, timeout=SOON)
        assert int(listed.error_code) == 7 and re.fullmatch(LATE, listed.error_message), listed
    client.close()
