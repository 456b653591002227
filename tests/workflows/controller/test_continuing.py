"""What the controller was asked, or has begun, just when its run continues as new: it comes to the same end as in a run
that never does.

Updates and signals come with any of the workflow tasks around the one that continues, and the server carries out child
starts, signals and cancels as late as it likes; those of a closed run it drops.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from storage_node.model.image import decode
from tests.support.programs.temporal import TemporalServer
from tests.support.runs.activations import DrivenRuns, Sent
from tests.support.runs.hand_activations import Driven, plain, signals_in
from tests.workflows import driven
from tests.workflows.fakes import FakeMember, FakeProber, orchestrator, until_true
from workflows.cluster import NO_RESPONSE, Cluster
from workflows.model import calls, names
from workflows.model.calls import ImageResult, ProbeResult
from workflows.model.controller.carried_runs import CarriedRuns
from workflows.model.controller.outbound import START, Outbox
from workflows.model.metadata.state import ClusterState
from workflows.model.reassignment.request import run_id_of
from workflows.partition_reassignment import PartitionReassignment


def run_id(name: str) -> str:
    """The id of a run, as the server gives it."""
    return str(uuid5(NAMESPACE_URL, name))


NODES = (1, 2, 3)
PARTITIONS = 4
CHILD_STARTED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED
CHILD_REJECTED = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED
CHILD_REQUESTED = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
NEVER, SOON = (1 << 40, 1 << 40), (45, 60)


def do(kind: str, call: Any) -> Any:
    """The nodes' activities: they apply images, and respond to probes."""
    if kind == calls.APPLY_IMAGE:
        known = [decode(text) for text in call["images"]]
        return ImageResult(*(known[-1].pair if known else (0, 0)), f"i{call['node']}")
    assert kind == calls.PROBE_NODE
    return ProbeResult(f"i{call['node']}")


@dataclass
class Scene:
    """Three nodes and a topic; nodes send one batch at a time, runs ask one thing at a time."""

    continue_at: tuple[int, int] = SOON
    unacknowledged: bool = False
    numbers: Counter[Any] = field(default_factory=Counter)
    batches: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: int = 0
    continued: list[int] = field(default_factory=list)
    """The tasks that continued as new."""
    at_the_end: Counter[str] = field(default_factory=Counter)
    """What came with them."""
    joined: int = 0
    """Tasks without commands that were joined with the updates behind them."""

    def __post_init__(self) -> None:
        self.runs = DrivenRuns(Cluster, "c", {"continue_at": list(NEVER)}, do)
        for node in NODES:
            self.batch(node, _registration(node))
            self.runs.task()
        self.batch(1, {"do": "create_topics", "topics": [{"name": "t", "partitions": PARTITIONS}]})
        self.runs.settle()
        self.runs.sent.clear()
        self.topic_id = _state(self.runs)["topics"][0][1]
        # What a run carries is where the next one begins: so this cluster is given the figures of the test.
        carried = _carried(self.runs)
        self.runs.close()
        self.runs = DrivenRuns(Cluster, "c", carried | {"continue_at": list(self.continue_at)}, do, seed=1_000)
        self.runs.open = {f"c/lease/{node}/i{node}" for node in NODES}
        self.runs.unacknowledged = self.unacknowledged

    # --- what nodes and runs do

    def batch(self, node: int, *commands: dict[str, Any]) -> None:
        """Send a node's next batch after the response to the last one; until then send that one again."""
        last = self.batches.get(node)
        if last is not None and last[0] not in self.runs.answers:
            self.again(node)
            return
        self.numbers[node] += 1
        number = self.numbers[node]
        batch = {"node": node, "incarnation": f"i{node}", "number": number, "commands": list(commands)}
        self.batches[node] = f"{node}/{number}", batch
        self.again(node)

    def again(self, node: int) -> None:
        """Lose the response: send the same batch under the same id."""
        if node in self.batches:
            self.runs.update("submit", *self.batches[node])

    def create(self, node: int, name: str) -> None:
        self.batch(node, {"do": "create_topics", "topics": [{"name": name, "partitions": 1}]})

    def reassign(self, node: int, partition: int, target: tuple[int, ...]) -> None:
        self.batch(node, {"do": "alter_reassignments", "partitions": [["t", partition, list(target)]]})

    def raise_generation(self, node: int) -> None:
        """A change that the other nodes need not know at once."""
        replicas = [["t", 0, self.topic_id, f"dir-{node}", self.numbers["generation"]]]
        self.numbers["generation"] += 1
        self.batch(node, {"do": "raise_generations", "node": node, "replicas": replicas})

    def run_asks(self, run: int, partition: int, target: tuple[int, ...]) -> None:
        """A run requests a reassignment, and gets the state of the others."""
        name = f"run-{run}"
        self.requests[name] += 1
        self.asked[name] = {
            "request": self.requests[name],
            "changes": [["t", partition, list(target), None]],
            "looks": [["t", each] for each in range(PARTITIONS)],
            "workflow_id": f"c/{name}",
            "run_id": run_id(name),
        }
        self.run_asks_again(run)

    def run_asks_again(self, run: int) -> None:
        if (request := self.asked.get(f"run-{run}")) is not None:
            self.runs.signal("reassign", request)

    def locate(self, node: int) -> None:
        self.runs.signal("locate", {"node": node, "workflow_id": f"c/move-{node}", "run_id": run_id(f"m{node}")})

    def cancel(self, run: int) -> None:
        self.runs.signal("cancel_run", {"workflow_id": f"c/move-{run}", "run_id": run_id(f"m{run}")})

    def directory_failed(self, node: int) -> None:
        self.runs.signal(
            "directory_failed", {"notice": {}, "workflow_id": f"c/failure-{node}", "run_id": run_id(f"f{node}")}
        )

    def lease_ended(self, node: int) -> None:
        self.runs.signal("lease_ended", {"node": node, "incarnation": f"i{node}", "reason": "not renewed"})

    # --- what became of it

    def settle(self) -> None:
        """Repeat the nodes' batches until each has its response; the server carries out everything."""
        self.runs.settle()
        for node, (update, _) in self.batches.items():
            if update not in self.runs.answers:
                self.again(node)
        self.runs.settle()

    def outcome(self) -> dict[str, Any]:
        """Everything that is visible outside, topic ids replaced by names. Of what was sent twice, one; and
        the rows for other runs without the run: what runs are called depends on which of them have ended.
        """
        state = _state(self.runs)
        ids = {row[1]: row[0] for row in state["topics"]}

        def same(value: Any) -> str:
            text = json.dumps(value, sort_keys=True)
            for topic_id, name in ids.items():
                text = text.replace(topic_id, name)
            return text

        sent = [each for each in self.runs.sent if each.name != "NodeLease" and each.content != NO_RESPONSE]
        return {
            "state": same(state),
            "answers": {update: same(_results(found[0])) for update, found in self.runs.answers.items()},
            "runs": {same(each.content) for each in sent if each.kind == "start"},
            "signals": {same([_receiver(each), each.name, each.content]) for each in sent if each.kind == "signal"},
            "cancels": {each.workflow_id for each in sent if each.kind == "cancel"},
        }

    def answers_differ(self) -> list[str]:
        """The batches that got two different responses."""
        return [
            update
            for update, found in self.runs.answers.items()
            if len({json.dumps(_results(one), sort_keys=True) for one in found}) > 1
        ]


def _receiver(each: Sent) -> str:
    return "" if each.name == "retargeted" else each.workflow_id


def _results(answer: dict[str, Any]) -> Any:
    return answer.get("results", answer)


def _registration(node: int) -> dict[str, Any]:
    directories = [[f"dir-{node}", "/a", 1]]
    return {
        "do": "register",
        "node": node,
        "incarnation": f"i{node}",
        "host": "h",
        "port": 1,
        "directories": directories,
    }


def _carried(runs: DrivenRuns) -> dict[str, Any]:
    it: Cluster = runs._instance._object  # type: ignore[attr-defined]
    return it._controller.carry()


def _state(runs: DrivenRuns) -> dict[str, Any]:
    it: Cluster = runs._instance._object  # type: ignore[attr-defined]
    assert it._controller.state is not None
    return it._controller.state.rows()


Action = tuple[str, tuple[Any, ...]]
nodes, partitions = st.sampled_from(NODES), st.integers(0, PARTITIONS - 1)
targets = st.sampled_from([(1,), (2,), (3,), (2, 3), (3, 1)])
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("create"), st.tuples(nodes, st.sampled_from(["u", "v"]))),
    st.tuples(st.just("reassign"), st.tuples(nodes, partitions, targets)),
    st.tuples(st.just("again"), st.tuples(nodes)),
    st.tuples(st.just("run_asks"), st.tuples(st.integers(1, 2), partitions, targets)),
    st.tuples(st.just("run_asks_again"), st.tuples(st.integers(1, 2))),
    st.tuples(st.just("locate"), st.tuples(st.integers(1, 5))),
    st.tuples(st.just("cancel"), st.tuples(st.integers(1, 2))),
    st.tuples(st.just("directory_failed"), st.tuples(nodes)),
    st.tuples(st.just("lease_ended"), st.tuples(nodes)),
    st.tuples(st.just("raise_generation"), st.tuples(nodes)),
)


@dataclass(frozen=True)
class Task:
    """What comes with one workflow task: actions, so many commands that the server has carried out, whether the nodes'
    activities have ended and whether time has passed until the next timer.
    """

    actions: tuple[Action, ...]
    sent: int
    work: bool
    time: bool


tasks = st.builds(
    Task, st.lists(actions, max_size=3).map(tuple), st.sampled_from([0, 0, 1, 99]), st.booleans(), st.booleans()
)


def play(
    story: Sequence[Task], continue_at: tuple[int, int], *, unacknowledged: bool = False, closed: bool = False
) -> Scene:
    """`closed`: the runs of reassignments end as soon as they were started."""
    it = Scene(continue_at, unacknowledged)
    for task in story:
        it.tasks += 1
        it.runs.carry_out(task.sent)
        if task.work:
            it.runs.finish()
        if task.time:
            it.runs.fire()
        for name, arguments in task.actions:
            getattr(it, name)(*arguments)
        if it.runs.task():
            it.continued.append(it.tasks)
            if closed:
                it.runs.open = {each for each in it.runs.open if "/reassign/" not in each}
            it.at_the_end.update(name for name, _ in task.actions)
    assert not it.runs.timers_left, "a timer that fires with the task that continues has the server refuse it"
    it.settle()
    it.joined = it.runs.check_joined()
    it.runs.close()
    return it


@given(st.lists(tasks, min_size=5, max_size=25))
@settings(max_examples=100)
def test_continued_controller_ends_like_a_single_run(story: list[Task]) -> None:
    ideal, real = play(story, NEVER), play(story, SOON)
    assert real.outcome() == ideal.outcome()
    assert real.answers_differ() == []
    for name in real.at_the_end:
        event(f"with the very task that continued as new came: {name}")


#: Time passes, and the server hardly carries out anything.
slow = st.builds(
    Task, st.lists(actions, max_size=3).map(tuple), st.sampled_from([0] * 9 + [99]), st.booleans(), st.just(True)
)


@given(st.lists(slow, min_size=15, max_size=25), st.booleans())
@settings(max_examples=60)
def test_each_change_gets_one_run_however_late_the_server_acknowledges_its_start(
    story: list[Task], closed: bool
) -> None:
    """Starts whose acknowledgement does not come in time are sent again by the next run; the first may have closed."""
    real = play(story, SOON, unacknowledged=True, closed=closed)
    assert real.outcome() == play(story, NEVER).outcome()
    started = Counter(json.dumps(each.content) for each in real.runs.sent if each.name == "PartitionReassignment")
    assert set(started.values()) <= {1}
    event(f"starts that were sent again: {min(real.runs.repeated, 5)}")


@given(st.lists(tasks, min_size=5, max_size=25))
@settings(max_examples=100)
def test_update_joined_with_an_empty_task_produces_the_same_commands(story: list[Task]) -> None:
    it = play(story, NEVER)
    event(f"pairs: {min(it.joined, 5)}")


def test_update_behind_an_ineffective_timer_is_handled_after_it() -> None:
    quiet = ("raise_generation", (1,))
    nothing, pushed = Task((), 0, True, False), Task((), 0, False, True)
    it = play(
        [
            Task((), 0, False, False),
            Task((quiet,), 0, False, False),
            nothing,
            pushed,
            nothing,
            pushed,
            Task((quiet,), 0, False, False),
        ],
        NEVER,
    )
    assert it.joined


REST = Task((), 99, True, True)
FILLED = Task((("locate", (1,)),), 99, True, False)
#: A run that continues because its history is long, and one that does in a quiet second.
LONG, QUIET = [FILLED] * 10 + [REST] * 4, [FILLED] * 7 + [REST] * 12
EACH = {
    "a reassignment": ("reassign", (1, 0, (2, 3))),
    "a topic": ("create", (1, "u")),
    "a batch that is sent again": ("again", (1,)),
    "a run's request": ("run_asks", (1, 0, (2,))),
    "a run's request for a node": ("locate", (4,)),
    "a run that wants to be cancelled": ("cancel", (1,)),
    "a failed directory": ("directory_failed", (2,)),
    "a lease that ended": ("lease_ended", (2,)),
    "a change that others are told later": ("raise_generation", (1,)),
}


@pytest.mark.parametrize("story", [LONG, QUIET], ids=["long", "quiet"])
@pytest.mark.parametrize("before", [3, 2, 1, 0])
@pytest.mark.parametrize("what", EACH)
def test_events_of_the_tasks_around_a_continue_as_new_are_handled(what: str, before: int, story: list[Task]) -> None:
    at = play(story, SOON).continued[0] - 1 - before
    here = story[at]
    played = [*story[:at], Task((EACH[what],), 0, here.work, here.time), *story[at + 1 :]]
    real = play(played, SOON)
    assert real.continued and real.outcome() == play(played, NEVER).outcome()
    if story is LONG and not before:
        put_off = what == "a lease that ended"  # the run serves until its node was probed
        assert (real.continued[0] > at + 1) if put_off else (real.continued[0] == at + 1), "it comes with the very task"


@pytest.mark.parametrize("before", [LONG, QUIET], ids=["long", "quiet"])
def test_fault_of_the_program_fails_the_task_that_would_continue(before: list[Task]) -> None:
    it = Scene()
    at = play(before, SOON).continued[0] - 1
    for task in before[:at]:
        it.runs.carry_out(task.sent)
        if task.work:
            it.runs.finish()
        if task.time:
            it.runs.fire()
        for name, arguments in task.actions:
            getattr(it, name)(*arguments)
        assert not it.runs.task()
    run: Cluster = it.runs._instance._object  # type: ignore[attr-defined]
    run._fault = RuntimeError("a fault of the program")
    it.runs.fire()
    with pytest.raises(AssertionError, match="a fault of the program"):
        it.runs.task()


# --- what runs of reassignments have requested


def with_three_nodes() -> Driven:
    """A controller that serves; only t-0 is being reassigned."""
    it, third = driven.serving(), FakeMember(3)
    it.send(it.update("submit", plain(third.batch(third.registration()))))
    return it


def sent_after(it: Driven, job: Any, name: str) -> list[Any]:
    """What the signals of a name contain that a job leads to; the server carries out all that waits before them."""
    commands = list(it.send(job))
    for _ in range(3):
        commands += it.resolve({})
    found = [(to, content) for to, signal, (content,) in signals_in(commands) if signal == name]
    assert {to for to, _ in found} <= {driven.RUN["workflow_id"]}
    return [content for _, content in found]


def retargeted(it: Driven, target: int) -> list[Any]:
    """A client of a node gives t-1 another target; returns what the controller sends to the run of the earlier one."""
    other = {"do": "alter_reassignments", "partitions": [["t", 1, [target]]]}
    return sent_after(it, it.update("submit", plain(FakeMember(3).batch(other))), "retargeted")


def requested(it: Driven, target: int) -> list[Any]:
    """A run sends its first request, a target for t-1; returns the responses."""
    asked = {"request": 1, "changes": [["t", 1, [target], None]], "looks": [["t", 1]], **driven.RUN}
    return sent_after(it, it.signal("reassign", plain(asked)), "answered")


def target_of(it: Driven) -> tuple[int, ...]:
    """The nodes that are to come to t-1."""
    return ClusterState.of(it.query("state")).topics["t"].partitions[1].assignment.adding


@pytest.mark.parametrize("renewed", [False, True], ids=["same run", "continued as new"])
def test_request_that_is_repeated_after_a_later_target_changes_nothing(renewed: bool) -> None:
    it = with_three_nodes()
    (first,) = requested(it, 2)
    assert not first["results"][0].get("error") and target_of(it) == (2,)
    retargeted(it, 3)
    if renewed:
        it = driven.continued(it)
    before = it.query("state")
    (again,) = requested(it, 2)
    assert it.query("state") == before and target_of(it) == (3,), "the later target holds"
    assert (again["results"], again["made"]) == (first["results"], first["made"])
    assert again["rows"][0][4] == [3], "its rows are the partitions as they are now"


def test_target_after_a_continue_as_new_supersedes_the_earlier_run() -> None:
    it = with_three_nodes()
    (answer,) = requested(it, 2)
    it = driven.continued(it)
    (told,) = retargeted(it, 3)
    assert [row[:2] for row in told["rows"]] == [["t", 1]]
    # The run that receives this waits for the node of its own target.
    run = Driven(PartitionReassignment, plain({**driven.MADE, "made": answer["made"]}))
    run.send(run.signal("retargeted", plain(told)))
    for _ in range(5):
        if run.ended is None:
            run.resolve(driven.WELL, timers=True)
    assert run.ended is not None
    (row,) = json.loads(run.ended.complete_workflow_execution.result.data)["rows"]
    assert row["outcome"] == "superseded"


# --- on a real server


class Numbering(FakeMember):
    """A node that numbers its batches."""

    sent = 0

    def batch(self, *commands: dict[str, Any]) -> dict[str, Any]:
        self.sent += 1
        return super().batch(*commands) | {"number": self.sent}


@pytest.mark.temporal
def test_every_reassignment_gets_its_run_however_often_the_controller_continues(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    members = [Numbering(node) for node in NODES]
    prober, each = FakeProber(*members), 12

    async def scene(stack: AsyncExitStack) -> None:
        client = await temporal_server.client()
        await stack.enter_async_context(orchestrator(client, task_queue, prober.probe_node))
        for member in members:
            await stack.enter_async_context(member.running(client, task_queue))
        parameter = {"continue_at": [50, 60]}
        cluster = await client.start_workflow("Cluster", parameter, id=task_queue, task_queue=task_queue)
        for member in members:
            await member.submit(cluster, _registration(member.node))
        first = (await cluster.describe()).run_id
        topics = {member.node: [f"t-{member.node}-{number}" for number in range(each)] for member in members}
        rows = [{"name": name, "assignment": [[node]]} for node, found in topics.items() for name in found]
        await members[0].submit(cluster, {"do": "create_topics", "topics": rows})

        async def sends(member: FakeMember) -> None:
            for name in topics[member.node]:
                rows = [[name, 0, [member.node % len(NODES) + 1]]]
                reply = await member.submit(cluster, {"do": "alter_reassignments", "partitions": rows})
                assert not reply["results"][0][0].get("error"), reply

        await asyncio.gather(*(sends(member) for member in members))
        assert (await cluster.describe()).run_id != first
        wanted = {f"{names.reassign_id(task_queue, name, 0, 1)}/" for found in topics.values() for name in found}

        async def begun() -> bool:
            return {each.rpartition("/")[0] + "/" for each in await _reassignments(client, task_queue)} == wanted

        await until_true(begun, 30)
        assert len(await _reassignments(client, task_queue)) == len(wanted)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await asyncio.wait_for(scene(stack), 80)

    asyncio.run(main())


async def _reassignments(client: Client, cluster: str) -> list[str]:
    """The workflow ids of all runs of reassignments that the server lists."""
    query = f'TaskQueue="{cluster}" AND WorkflowType="PartitionReassignment"'
    return [each.id async for each in client.list_workflows(query)]


@pytest.mark.temporal
@pytest.mark.parametrize("first", ["open", "closed"])
def test_repeated_start_begins_no_second_run(first: str, temporal_server: TemporalServer, task_queue: str) -> None:
    """A controller's run whose start was carried out, and not acknowledged, is followed by one that sends it again."""

    async def scene(stack: AsyncExitStack) -> None:
        client = await temporal_server.client()
        await stack.enter_async_context(orchestrator(client, task_queue, FakeProber().probe_node))
        run = run_id_of(task_queue, driven.MADE)
        carried = CarriedRuns(outbox=Outbox.of([[START, run, "", "t-0: 1 -> 2", driven.MADE]])).carry()
        for end in (True, False):
            cluster = await client.start_workflow("Cluster", carried, id=task_queue, task_queue=task_queue)

            async def decided(cluster: WorkflowHandle[Any, Any] = cluster) -> bool:
                """Whether the controller has had a workflow task for what came of its start."""
                found = [event.event_type async for event in cluster.fetch_history_events()]
                at = [place for place, each in enumerate(found) if each in (CHILD_STARTED, CHILD_REJECTED)]
                return bool(at) and TASK_COMPLETED in found[at[0] :]

            await until_true(decided, 30)
            if end:
                await cluster.terminate()
                if first == "closed":
                    await client.get_workflow_handle(run).terminate()
        found = [event.event_type async for event in cluster.fetch_history_events()]
        assert found.count(CHILD_REQUESTED) == found.count(CHILD_REJECTED) == 1
        described = await client.get_workflow_handle(run).describe()
        assert described.status is not None and described.status.name == (
            "RUNNING" if first == "open" else "TERMINATED"
        )

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await asyncio.wait_for(scene(stack), 60)

    asyncio.run(main())
