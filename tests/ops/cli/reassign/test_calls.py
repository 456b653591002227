"""A command that waits for a plan sends as many requests for 400 partitions as for 2, and prints a line in time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from activities.temporal import describing
from ops.cli import waits
from ops.cli.kafka_admin import KafkaAdmin, NoResponse
from ops.cli.moves import log_dirs, runs
from ops.cli.moves.waiting import Bars
from ops.cli.plan import throttles as plan_throttles
from ops.cli.plan.leftovers import Leftover
from ops.cli.reassign import comparing, polling, reassign, throttling
from ops.cli.reassign.comparing import Row
from ops.cli.reassign.polling import SnapshotReader
from ops.cli.reassign.reassign import _Reassign
from ops.cli.target import Target
from ops.stack.errors import OpsError
from storage_node.model.ids import TopicPartition
from workflows.model.plans.document import PlannedPartition
from workflows.model.reassignment.request import parse
from workflows.model.run_results import ReassignmentRunResult
from workflows.model.throttles import LISTS

MANY = pytest.mark.parametrize("count", [2, 400])
TARGET = Target("127.0.0.1:1", "", "default", "c")
#: A copy between directories ends in so many reads.
READS = 20


class Cluster:
    """The client of a cluster of two nodes that counts its requests: a topic for each partition, on node 1.

    Reassignments are in progress for three reads, and copies between directories for `READS`.
    """

    def __init__(self, count: int) -> None:
        self.topics = [f"t{number}" for number in range(count)]
        self.requests: Counter[str] = Counter()
        self.changed: dict[str, Any] = {}
        self.deleted: set[str] = set()
        self._reassigning, self._copying = 3, READS
        self.node = 1

    def describe_cluster(self) -> dict[str, Any]:
        self.requests["describe_cluster"] += 1
        return {"cluster_id": "c", "brokers": [{"broker_id": n, "host": "h", "port": n} for n in (1, 2)]}

    def list_topics(self) -> list[str]:
        self.requests["list_topics"] += 1
        return [each for each in self.topics if each not in self.deleted]

    def describe_topics(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        self.requests["describe_topics"] += 1
        row = {"partition_index": 0, "leader_id": 1, "replica_nodes": [self.node], "isr_nodes": [self.node]}
        return [
            {"name": topic, "error_code": 3, "partitions": []}
            if topic in self.deleted
            else {"name": topic, "error_code": 0, "partitions": [row]}
            for topic in topics
        ]

    def list_partition_reassignments(self, _: Any) -> dict[Any, Any]:
        self.requests["list_partition_reassignments"] += 1
        self._reassigning -= 1
        if self._reassigning < 0:
            self.node = 2
            return {}
        row = {"replicas": [2, 1], "adding_replicas": [2], "removing_replicas": [1]}
        return {TopicPartition(topic, 0): row for topic in self.topics}

    def describe_log_dirs(self, _: Any, brokers: Sequence[int]) -> list[dict[str, Any]]:
        self.requests["describe_log_dirs"] += 1
        self._copying -= self._reassigning < 0
        place = "/b" if self._copying < 0 else "/a"
        part = {"partition_index": 0, "partition_size": 9, "offset_lag": 0, "is_future_key": False}
        held = [{"name": topic, "partitions": [part]} for topic in self.topics]
        return [
            {"broker": node, "log_dirs": [{"log_dir": path, "error_code": 0, "topics": held if path == place else []}
                                          for path in ("/a", "/b")]}
            for node in brokers
        ]  # fmt: skip

    def alter_replica_log_dirs(self, moves: Mapping[Any, str]) -> dict[Any, Any]:
        self.requests["alter_replica_log_dirs"] += 1
        return {TopicPartition(t, p): SimpleNamespace(errno=0) for t, p, _ in moves}

    def describe_configs(self, resources: Sequence[Any], **_: Any) -> dict[str, Any]:
        self.requests["describe_configs"] += 1
        return {}

    def alter_configs(self, resources: Sequence[Any], **_: Any) -> dict[str, Any]:
        self.requests["alter_configs"] += 1
        gone = "[Error 3] UnknownTopicOrPartitionError"
        for each in resources:
            if each.name not in self.deleted:
                self.changed[each.name] = each.configs
        return {"kind": {each.name: gone if each.name in self.deleted else "OK" for each in resources}}


def admin_of(cluster: Cluster) -> KafkaAdmin:
    admin = KafkaAdmin("127.0.0.1:1")
    admin._client = cluster
    return admin


class Clock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(reassign, "time", made)
    monkeypatch.setattr(waits, "time", made)
    monkeypatch.setattr(SnapshotReader, "read", lambda self: None)  # as if only Kafka's API were reached
    return made


class Session:
    """A session whose client counts its requests to Temporal's server: no run has started its reassignment yet.

    Runs whose number is in `failed` have ended, the others are open; those in `unlisted` are not in the list yet.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: Counter[str] = Counter()
        self.at_once = self.most = 0
        self.failed: set[int] = set()
        self.unlisted: set[int] = set()
        self.ids: list[str] = []
        for name in ("open_runs", "describe_run"):
            monkeypatch.setattr(describing, name, getattr(self, name))
        for name in ("start_move", "result_of"):
            monkeypatch.setattr(runs, name, getattr(self, name))

    def run(self, work: Callable[[Client], Any]) -> Any:
        return asyncio.run(work(cast(Client, None)))

    async def _request(self, name: str) -> None:
        self.requests[name] += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1

    async def start_move(self, _: Any, __: str, workflow_id: str, *___: Any) -> str:
        self.ids.append(workflow_id)
        await self._request("start")
        return "r"

    async def open_runs(self, *_: Any) -> Any:
        await self._request("list")
        for number, each in enumerate(self.ids):
            if number not in self.failed | self.unlisted:
                yield SimpleNamespace(workflow_id=each)

    async def describe_run(self, _: Any, workflow_id: str) -> Any:
        await self._request("describe")
        ended = self.ids.index(workflow_id) in self.failed
        return SimpleNamespace(ended=WorkflowExecutionStatus.FAILED if ended else None)

    async def result_of(self, _: Any, workflow_id: str, *__: Any) -> Any:
        await self._request("result")
        if self.ids.index(workflow_id) in self.failed:
            raise OpsError(f"{workflow_id} failed")
        return ReassignmentRunResult([], [])


def entries_of(cluster: Cluster, directory: str = "/b") -> list[PlannedPartition]:
    return [PlannedPartition(topic, 0, (2,), (directory,)) for topic in cluster.topics]


def begun(entries: Sequence[PlannedPartition]) -> list[Row]:
    return [Row(comparing.partition_of(each), (1,), (2,), comparing.STARTED) for each in entries]


def waited(clock: Clock, count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], list[tuple[float, str]]]:
    """Wait for a plan: the requests, and the lines with their times."""
    cluster, said = Cluster(count), list[tuple[float, str]]()
    monkeypatch.setattr(reassign, "Bars", lambda due: Bars(lambda line: said.append((clock.now, line)), due))
    entries = entries_of(cluster)
    work = _Reassign(admin_of(cluster), cast(runs.Session, None), TARGET, entries)
    assert {row.outcome for row in work.wait(begun(entries))} == {comparing.DONE}
    return cluster.requests, said


def test_wait_sends_as_many_requests_for_many_partitions(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = waited(clock, 2, monkeypatch)[0], waited(clock, 400, monkeypatch)[0]
    assert few == many and few["describe_log_dirs"] >= READS


@MANY
def test_wait_without_directories_reads_no_log_directories_afterwards(clock: Clock, count: int) -> None:
    cluster = Cluster(count)
    entries = entries_of(cluster, "any")
    work = _Reassign(admin_of(cluster), cast(runs.Session, None), TARGET, entries)
    final = {row.partition: comparing.replaced(row, comparing.DONE) for row in begun(entries)}
    assert work._reach(final) == {} and not cluster.requests


def test_wait_for_directories_prints_a_line_every_30_seconds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassign, "POLL_SECONDS", 10.0)
    _, said = waited(clock, 2, monkeypatch)
    times = [0.0, *(at for at, _ in said), clock.now]
    assert max(later - before for before, later in itertools.pairwise(times)) <= 30.0
    assert said[-1][1].startswith("0 of 2 done: 2 not_moved")


def test_wait_prints_a_line_while_no_node_responds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def down() -> Any:
        raise NoResponse("no node responds")

    said: list[str] = []
    monkeypatch.setattr(reassign, "Bars", lambda due: Bars(said.append, due))
    entries = entries_of(Cluster(2))
    work = _Reassign(admin_of(Cluster(2)), cast(runs.Session, None), TARGET, entries)
    monkeypatch.setattr(work, "_read_nodes", down)
    with pytest.raises(OpsError, match="no node responds; the reassignment continues"):
        work.wait(begun(entries))
    assert len(said) == 2


@MANY
def test_one_request_describes_all_topics(clock: Clock, count: int) -> None:
    cluster = Cluster(count)
    cluster.deleted = {"t1"}
    work = _Reassign(admin_of(cluster), cast(runs.Session, None), TARGET, entries_of(cluster))
    held, _ = work._read_cluster()
    assert len(held) == count - 1 and cluster.requests["describe_topics"] == 1
    found = polling.by_kafka(admin_of(cluster))
    assert len(found.held) == count - 1 and cluster.requests["describe_topics"] == 2


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(monkeypatch)


def started(session: Session, count: int) -> tuple[_Reassign, dict[TopicPartition, Row]]:
    cluster = Cluster(count)
    entries = entries_of(cluster)
    work = _Reassign(admin_of(cluster), cast(runs.Session, session), TARGET, entries)
    work._start_runs(entries, None)
    return work, {row.partition: row for row in begun(entries)}


def test_sla_goes_to_the_runs_that_start_the_reassignment(
    session: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    async def start_move(*arguments: Any) -> str:
        given.append(arguments[3])
        return "r"

    monkeypatch.setattr(runs, "start_move", start_move)
    cluster = Cluster(2)
    entries = entries_of(cluster, "any")
    rows = [comparing.replaced(row, comparing.TO_CHANGE) for row in begun(entries)]
    target = replace(TARGET, temporal_address="127.0.0.1:2")
    work = _Reassign(admin_of(cluster), cast(runs.Session, session), target, entries, sla=90.0)
    assert {row.outcome for row in work._begin(rows, None)} == {comparing.STARTED}
    (parameter,) = given
    request = parse(parameter)
    assert [part.key for part in request.parts] == [("t0", 0), ("t1", 0)] and request.sla_seconds == 90
    assert not cluster.requests, "the run requests the change"


@MANY
def test_one_request_finds_the_runs_that_are_open(session: Session, count: int) -> None:
    work, going = started(session, count)
    session.requests.clear()
    assert work._failed_runs(going) == {} and session.requests == {"list": 1}
    assert work._failed_runs({}) == {} and session.requests == {"list": 1}, "all reassignments have started"


def test_runs_that_the_server_does_not_list_are_described(session: Session) -> None:
    work, going = started(session, 150)
    session.requests.clear()
    session.failed, session.unlisted = {1}, {2}
    found = work._failed_runs(going)
    assert session.requests == {"list": 1, "describe": 2, "result": 1}
    assert len(found) == 50 and {row.message for row in found.values()} == {f"{session.ids[1]} failed"}


def test_runs_are_started_and_awaited_several_at_a_time(session: Session) -> None:
    work, going = started(session, 2_000)
    assert session.requests["start"] == 40 and session.most == runs.AT_ONCE
    assert set(work._by_run) == set(session.ids) and len(work._directing) == 40
    session.most = 0
    session.failed = {7}
    found = work._results({tp: comparing.replaced(row, comparing.DONE) for tp, row in going.items()})
    assert session.requests["result"] == 40 and session.most == runs.AT_ONCE
    assert {row.outcome for row in found.values()} == {comparing.FAILED} and len(found) == 50


@MANY
def test_throttles_of_all_topics_are_removed_by_one_request(tmp_path: Path, count: int) -> None:
    cluster, file = Cluster(count), tmp_path / "plan.json"
    lists = {topic: {LISTS[0]: ["0:1"]} for topic in cluster.topics}
    throttling._note(file, throttling.Throttles(lists))
    assert throttling.remove(admin_of(cluster), file)
    assert cluster.requests["alter_configs"] == 1 and set(cluster.changed) == set(cluster.topics)


def test_throttles_of_a_deleted_topic_do_not_keep_those_of_others(tmp_path: Path) -> None:
    cluster, file = Cluster(3), tmp_path / "plan.json"
    cluster.deleted = {"t0"}
    throttling._note(file, throttling.Throttles({topic: {LISTS[0]: ["0:1"]} for topic in cluster.topics}))
    assert throttling.remove(admin_of(cluster), file)
    assert set(cluster.changed) == {"t1", "t2"} and not throttling.note_of(file).exists()


@MANY
def test_leftovers_of_all_topics_are_removed_by_one_request(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(count)

    class Pool:
        async def run(self, call: Callable[[KafkaAdmin], Any]) -> Any:
            return call(admin_of(cluster))

    monkeypatch.setattr(plan_throttles, "with_pool", lambda _, work: asyncio.run(work(Pool())))
    plan_throttles._remove(cast(Any, None), [Leftover("topic", topic, LISTS[0], "0:1") for topic in cluster.topics])
    assert cluster.requests == {"alter_configs": 1} and len(cluster.changed) == count


def test_directories_are_requested_from_each_node_once_a_round() -> None:
    cluster = Cluster(400)
    moves = [move for entry in entries_of(cluster) for move in comparing.requested_moves(entry)]
    log_dirs.request_moves(admin_of(cluster), moves, patience=0.0)
    assert cluster.requests == {"alter_replica_log_dirs": 1}
