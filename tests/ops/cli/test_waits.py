"""A command that waits prints a line at least every 30 seconds, also while nothing changes or no worker responds."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client

from activities.temporal import describing
from ops.cli import main as cli
from ops.cli import nodes, waits
from ops.cli.kafka_admin import NodeAddress
from ops.cli.moves import runs as move_runs
from ops.cli.moves.runs import Session
from ops.cli.plan import drain, following, runs
from ops.stack.errors import OpsError, StillRunning
from workflows.model.plans.running.run import PlanPhase


class Clock:
    """A clock that sleeping moves; `said` has the printed lines with their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[tuple[float, str]] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def say(self, line: str) -> None:
        self.said.append((self.now, line))

    def client(self, work: Callable[[Client], Any]) -> Any:
        return asyncio.run(work(cast(Client, None)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (waits, drain, following, runs):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(waits.output, "say", made.say)
    return made


@pytest.fixture
def open_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is open for 100 seconds."""

    async def described(*_: Any) -> Any:
        return SimpleNamespace(ended=True if clock.now > 100 else None)

    monkeypatch.setattr(describing, "describe_run", described)


def responds_with(monkeypatch: pytest.MonkeyPatch, name: str, progress: Any) -> None:
    async def found(*_: Any) -> Any:
        return progress

    monkeypatch.setattr(runs, name, found)


def session(clock: Clock) -> Session:
    return cast(Session, SimpleNamespace(run=clock.client))


def test_line_is_due_30_seconds_after_the_last_one(clock: Clock) -> None:
    due, found = waits.Due(), []
    for second in range(100):
        clock.now = float(second)
        if second == 50:
            due.printed()
        if due():
            found.append(second)
    assert found == [30, 80]


def test_blocking_call_is_reported_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "LINE_SECONDS", 0.01)
    said, twice = list[str](), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            twice.set()

    with waits.lines(lambda: f"waiting, {len(said)}", say=say):
        assert twice.wait(60)
    assert [line.rpartition(" (")[0] for line in said[:2]] == ["waiting, 0", "waiting, 1"]
    assert not any(thread.name == "waits" for thread in threading.enumerate())


def test_parts_of_a_command_share_the_time_of_the_last_line(clock: Clock) -> None:
    due = waits.Due()
    clock.now = 29.0
    assert due.left() == 1.0
    with waits.lines("waiting", due, clock.say):
        pass
    assert due.left() == 1.0 and clock.said == []


@pytest.mark.usefixtures("open_for")
@pytest.mark.parametrize(
    ("progress", "line"),
    [("the same", "moving: the same"), (None, "evacuate is open, but no worker responds for it: is one running?")],
)
def test_drain_prints_a_line_while_nothing_changes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, progress: str | None, line: str
) -> None:
    monkeypatch.setattr(drain, "_summary", lambda progress: f"moving: {progress}")
    responds_with(monkeypatch, "progress_of", progress)
    drain._follow(session(clock), "evacuate")
    first = [0.0] if progress else []
    assert [at for at, _ in clock.said] == [*first, 30.0, 60.0, 90.0]
    assert all(each.startswith(line) for _, each in clock.said)


@pytest.mark.usefixtures("open_for")
def test_plan_without_a_worker_is_reported_while_it_is_watched(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    responds_with(monkeypatch, "progress", None)
    following._follow(session(clock), "c/plan/july", json=False)
    assert [at for at, _ in clock.said] == [30.0, 60.0, 90.0]
    assert clock.said[0][1].startswith("c/plan/july is open, but no worker responds for it")


@pytest.mark.usefixtures("open_for")
def test_watched_plan_is_printed_every_30_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    responds_with(monkeypatch, "progress", SimpleNamespace(phase=PlanPhase.CHECKING))
    monkeypatch.setattr(following._Lanes, "shown", lambda *_: f"at {clock.now:g}")
    following._follow(session(clock), "c/plan/july", json=False)
    assert capsys.readouterr().err.split("\n") == ["at 0", "at 30", "at 60", "at 90", ""]


def test_check_of_a_plan_is_reported_and_the_command_ends_after_a_limit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(seconds: float) -> None:
        clock.sleep(seconds)

    async def described(*_: Any) -> Any:
        return SimpleNamespace(ended=None)

    monkeypatch.setattr(runs.asyncio, "sleep", sleep)
    monkeypatch.setattr(describing, "describe_run", described)
    responds_with(monkeypatch, "progress", SimpleNamespace(phase=PlanPhase.CHECKING))
    with pytest.raises(StillRunning, match=r"not compared it with the cluster within 600 s.*rehome plan cancel july"):
        clock.client(lambda client: runs.checked(client, "c/plan/july", "c"))
    times = [0.0, *(at for at, _ in clock.said), clock.now]
    assert max(later - before for before, later in itertools.pairwise(times)) <= 30.5 and len(times) == 21
    assert "with the cluster (30 s); Ctrl-C leaves it: watch it then with: rehome plan watch july" in clock.said[0][1]


@pytest.fixture
def slow_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A node whose response to a change comes after two lines; the lines."""
    monkeypatch.setattr(waits, "LINE_SECONDS", 0.01)
    said, twice = list[str](), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) >= 2:
            twice.set()

    def call(where: NodeAddress, op: str, *_: Any, **__: Any) -> dict[str, Any]:
        if op == "directory-losses":
            return {"replicas": [], "alone": [], "online": True}
        assert twice.wait(60)
        raise OpsError("the disk is bad")

    real = waits.lines
    monkeypatch.setattr(waits, "lines", lambda what: real(what, say=say))
    monkeypatch.setattr(nodes, "address", lambda *_: NodeAddress(1, "127.0.0.1", 1))
    monkeypatch.setattr(nodes, "call", call)
    yield said


@pytest.mark.parametrize("op", ["online", "replace", "add", "remove"])
def test_change_of_a_directory_is_reported_until_the_node_responds(
    op: str, slow_node: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["dirs", op, "1", "/disks/b", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert slow_node[0].startswith(f"waiting for node 1: rehome dirs {op} 1 /disks/b (")


def test_opening_of_replicas_is_reported_until_the_node_responds(
    slow_node: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["replicas", "online", "1", "t-0", "t-1", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert slow_node[0].startswith("node 1 is opening 2 replicas (")


def test_failure_of_one_of_many_requests_ends_the_others() -> None:
    ended: list[int] = []

    async def work(number: int) -> int:
        if number == 3:
            raise OpsError("three")
        await asyncio.sleep(0)
        ended.append(number)
        return number

    assert asyncio.run(move_runs.at_once(work, [1, 2])) == [1, 2]
    with pytest.raises(OpsError, match="three"):
        asyncio.run(move_runs.at_once(work, range(3, 100)))
    assert len(ended) < 97
