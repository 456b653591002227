"""A cluster of fake nodes under the real controller, for tests of PartitionReassignment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from storage_node.model.image import decode
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.model.reassignments import ReplicaOutcome
from tests.support.programs.temporal import TemporalServer
from tests.workflows.fakes import TICK, FakeMember, FakeNode, FakeProber, orchestrator, until_true
from tests.workflows.model.support import topics_after
from workflows.model import calls, names
from workflows.model.calls import AwaitMovesCall, ReassignCall, ReassignResult, ReplicaRow
from workflows.model.metadata.rules import RULES
from workflows.model.metadata.state import ClusterState
from workflows.model.reassignment.runs import PartitionView, judge

Handle = WorkflowHandle[Any, Any]


class FakeHolder(FakeMember):
    """A node that takes images and follows them at once. `wished` are directories that were noted, `held` where its
    replicas are; `hold_deletion` keeps dropped data on its disks until it is set.
    """

    def __init__(self, node: int, incarnation: str = "") -> None:
        super().__init__(node, incarnation)
        self.topics: dict[str, TopicImage] = {}
        self.wished: dict[tuple[str, int], str] = {}
        self.held: dict[tuple[str, int], str] = {}
        self.lost_wishes = False
        self.taken_away = False  # a later target has taken its replicas away
        self.unknown_directories: set[str] = set()
        self.hold_deletion = asyncio.Event()
        self.hold_deletion.set()
        self.moving: set[tuple[str, int]] = set()  # replicas that are being copied between its directories
        self.awaited: list[list[Any]] = []
        self.seen: list[tuple[str, ReassignCall]] = []

    def take(self, text: str) -> None:
        before = self.pair
        super().take(text)
        if self.pair == before:
            return  # an older one
        found = decode(text)
        self.topics = topics_after(self.topics, found)
        for topic in self.topics.values():
            for partition in topic.partitions:
                key = (topic.name, partition.index)
                if self.node in partition.replicas and key not in self.held:
                    self.held[key] = self.wished.get(key, "/a")
                elif self.node not in partition.replicas:
                    self.held.pop(key, None)

    def standing(self, name: str, index: int) -> PartitionView | None:
        topic = self.topics.get(name)
        if topic is None:
            return None
        row = topic.partitions[index]
        one = row.assignment
        return PartitionView(
            name, index, topic.id, row.replicas, one.adding, one.removing, one.original, row.isr, row.leader
        )

    def names(self) -> list[str]:
        """The names of the reassignment's activities here, in order."""
        return [name for name, _ in self.seen]

    @activity.defn(name=calls.PLACE_REPLICAS)
    async def place_replicas(self, call: ReassignCall) -> ReassignResult:
        self.seen.append((calls.PLACE_REPLICAS, call))
        rows = []
        for one in call.replicas:
            key = (one.topic, one.partition)
            if one.directory in self.unknown_directories:
                rows.append(
                    ReplicaRow(
                        *key, self.node, ReplicaOutcome.FAILED, error="LogDirNotFound", message=f"no {one.directory}"
                    )
                )
            elif not call.wish and self.taken_away:
                rows.append(
                    ReplicaRow(*key, self.node, ReplicaOutcome.FAILED, error="NotHeld", message="holds none any more")
                )
            elif key in self.held:
                rows.append(ReplicaRow(*key, self.node, ReplicaOutcome.HELD, directory=self.held[key]))
            else:
                if not self.lost_wishes:
                    self.wished[key] = one.directory
                rows.append(ReplicaRow(*key, self.node, ReplicaOutcome.PREFERRED, directory=one.directory))
        return ReassignResult(rows)

    @activity.defn(name=calls.CATCH_UP)
    async def catch_up(self, call: ReassignCall) -> ReassignResult:
        self.seen.append((calls.CATCH_UP, call))
        done: dict[tuple[str, int], ReplicaRow] = {}
        while len(done) < len(call.replicas):
            activity.heartbeat()
            await asyncio.sleep(TICK)
            if self.pair < (call.generation, call.version):
                continue
            for one in call.replicas:
                now = self.standing(one.topic, one.partition)
                verdict = judge(one.topic_id, one.target, one.original, now)
                if verdict is not None:
                    done.setdefault(
                        (one.topic, one.partition),
                        ReplicaRow(
                            one.topic,
                            one.partition,
                            self.node,
                            verdict,
                            directory=self.held.get((one.topic, one.partition), ""),
                            replicas=list(now.replicas) if now else [],
                            generation=self.pair[0],
                            version=self.pair[1],
                            bytes_total=1000,
                            bytes_copied=1000,
                            seconds_catching_up=0.5,
                            attempts=1,
                        ),
                    )
        return ReassignResult([done[one.topic, one.partition] for one in call.replicas])

    @activity.defn(name=calls.AWAIT_DELETION)
    async def await_deletion(self, call: ReassignCall) -> ReassignResult:
        self.seen.append((calls.AWAIT_DELETION, call))
        while not self.hold_deletion.is_set():
            activity.heartbeat()
            await asyncio.sleep(TICK)
        return ReassignResult(
            [
                ReplicaRow(one.topic, one.partition, self.node, ReplicaOutcome.DELETED, seconds_deleting=0.1)
                for one in call.replicas
            ]
        )

    @activity.defn(name=calls.AWAIT_MOVES)
    async def await_moves(self, call: AwaitMovesCall) -> None:
        self.awaited.append(call.replicas)
        while any((topic, partition) in self.moving for topic, partition in call.replicas):
            activity.heartbeat()
            await asyncio.sleep(TICK)

    @asynccontextmanager
    async def running(self, client: Client, cluster: str) -> AsyncIterator[FakeMember]:
        mover = FakeNode(self.node)
        async with (
            Worker(
                client,
                task_queue=names.node_queue(cluster, self.node),
                activities=[
                    self.apply_image,
                    self.hold_lease,
                    self.place_replicas,
                    *mover.short,
                ],
            ),
            Worker(
                client,
                task_queue=names.moves_queue(cluster, self.node),
                activities=[mover.copy, self.catch_up, self.await_deletion, self.await_moves],
                max_heartbeat_throttle_interval=timedelta(milliseconds=200),
            ),
        ):
            yield self


class Cluster:
    """Nodes 1 to 3 and the topic `t`, whose partitions are all on node 1."""

    def __init__(self, client: Client, name: str, stack: AsyncExitStack, nodes: int = 3) -> None:
        self.client, self.name, self.stack = client, name, stack
        self.members = [FakeHolder(node) for node in range(1, nodes + 1)]
        self.workers: dict[int, AsyncExitStack] = {}
        self.prober = FakeProber(*self.members)
        self.handle: Handle
        self._runs: dict[str, str] = {}

    def node(self, number: int) -> FakeHolder:
        return self.members[number - 1]

    async def up(self, partitions: int = 1, replicas: tuple[int, ...] = (1,)) -> None:
        await self.stack.enter_async_context(orchestrator(self.client, self.name, self.prober.probe_node))
        self.handle = await self.client.start_workflow("Cluster", {"rules": RULES}, id=self.name, task_queue=self.name)
        for member in self.members:
            await self.serve(member)
            await member.submit(self.handle, member.registration())
        topic = {
            "name": "t",
            "partitions": -1,
            "replication_factor": -1,
            "configs": {},
            "assignment": [list(replicas)] * partitions,
        }
        reply = await self.node(1).submit(
            self.handle, {"do": "create_topics", "topics": [topic], "validate_only": False}
        )
        assert not reply["results"][0][0].get("error"), reply

    async def serve(self, member: FakeHolder) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(member.running(self.client, self.name))
        self.workers[member.node] = stack
        self.stack.push_async_callback(stack.aclose)

    async def away(self, number: int) -> None:
        """A node's worker stops; its probe is still answered, so that it is not fenced."""
        await self.workers.pop(number).aclose()

    async def reassign(self, *rows: tuple[int, list[int] | None], by: int = 2) -> list[dict[str, Any]]:
        """AlterPartitionReassignments through a node; its results."""
        command = {
            "do": "alter_reassignments",
            "partitions": [["t", partition, target] for partition, target in rows],
            "may_change_factor": True,
        }
        results: list[dict[str, Any]] = (await self.node(by).submit(self.handle, command))["results"][0]
        return results

    async def partition(self, index: int = 0) -> PartitionImage:
        state = ClusterState.of(await self.handle.query("state"))
        return state.topics["t"].partitions[index]

    async def in_sync(self, *partitions: int, nodes: tuple[int, ...] = ()) -> None:
        """The leaders take all replicas, or those on these nodes, into the ISR."""
        state = ClusterState.of(await self.handle.query("state"))
        rows: dict[int, list[Any]] = {}
        for index in partitions or (0,):
            row = state.topics["t"].partitions[index]
            isr = [[node, state.nodes[node].broker_epoch] for node in row.replicas if not nodes or node in nodes]
            rows.setdefault(row.leader, []).append(
                ["t", index, state.topics["t"].id, row.leader_epoch, row.partition_epoch, isr]
            )
        for leader, changes in rows.items():
            command = {"do": "alter_partitions", "node": leader, "partitions": changes}
            for result in (await self.node(leader).submit(self.handle, command))["results"][0]:
                assert result.get("error", 0) in (0, 108), result

    async def run(self, partition: int = 0, count: int = 1) -> Handle:
        """The first run that the controller started for these, once the server lists it."""
        base = f"{names.reassign_id(self.name, 't', partition, count)}/"
        query = f'TaskQueue="{self.name}" AND WorkflowType="PartitionReassignment"'

        async def listed() -> bool:
            if base not in self._runs:
                found = [each async for each in self.client.list_workflows(query) if each.id.startswith(base)]
                self._runs |= {base: min(found, key=lambda each: each.start_time).id} if found else {}
            return base in self._runs

        await until_true(listed)
        return self.client.get_workflow_handle(self._runs[base])

    async def runs(self, kind: str, least: int) -> set[str]:
        """The ids of all runs of a type, once there are so many: the list may lag behind."""
        found: set[str] = set()

        async def listed() -> bool:
            query = f'TaskQueue="{self.name}" AND WorkflowType="{kind}"'
            found.update([run.id async for run in self.client.list_workflows(query)])
            return len(found) >= least

        await until_true(listed)
        return found

    async def begun(self, handle: Handle) -> None:
        """Wait until the server has the run: the controller's command to start it is carried out a moment later."""

        async def there() -> bool:
            try:
                return bool((await handle.describe()).run_id)
            except RPCError:
                return False

        await until_true(there)

    async def open(self, handle: Handle, phase: str) -> None:
        """Wait until a run is in a phase."""

        async def reached() -> bool:
            try:
                return bool((await handle.query("progress"))["phase"] == phase)
            except Exception:
                return False

        await until_true(reached)

    async def start(self, parameter: Any, name: str = "mine") -> Handle:
        """A run by hand."""
        return await self.client.start_workflow(
            names.PARTITION_REASSIGNMENT, parameter, id=f"{self.name}/{name}", task_queue=self.name
        )


def run(
    server: TemporalServer, name: str, scene: Callable[[Cluster], Coroutine[Any, Any, None]], seconds: float = 60
) -> None:
    async def main() -> None:
        client = await server.client()
        async with AsyncExitStack() as stack:
            await asyncio.wait_for(scene(Cluster(client, name, stack)), seconds)

    asyncio.run(main())


def failure(error: BaseException) -> ApplicationError:
    cause = error.__cause__
    assert isinstance(cause, ApplicationError)
    return cause
