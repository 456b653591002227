"""Activities as the workflows see them, in memory: what each answers is scripted by the test.

They are the contract of workflows/model/calls.py: names, parameters and results as on a real node, nothing on disk.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

import workflows
from storage_node.model.error_types import ErrorType
from storage_node.model.image import ClusterImage, decode
from storage_node.model.moves import Outcome
from workflows.model import calls, names
from workflows.model.calls import (
    ExportCall,
    ExportResult,
    ImageCall,
    ImageResult,
    LeaseCall,
    MoveCall,
    MoveResult,
    MoveRow,
    ProbeCall,
    ProbeResult,
    ReplicaMove,
)
from workflows.runner import deciding_as_replays, workflow_runner

Answer = Callable[[MoveCall], Awaitable[MoveResult]]

TICK = 0.01


async def until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    """Wait for something that the test can see."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(TICK)


async def until_true(condition: Callable[[], Awaitable[bool]], seconds: float = 40.0) -> None:
    """The same for something that has to be asked for."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(TICK)


def row(move: ReplicaMove, outcome: Outcome, **facts: Any) -> MoveRow:
    """A row for a replica."""
    known = MoveRow(
        move.topic,
        move.partition,
        outcome,
        source="/disk/a",
        directory=move.directory,
        claim=move.claim,
        generation=move.generation,
    )
    return replace(known, **facts)


class FakeNode:
    """A node's move activities. `script[(activity, partition)]` is a list of outcomes or rows to answer, one per call;
    else all goes well. `hold` makes copies wait (heartbeating) until it is cleared."""

    def __init__(self, node: int = 1, delete_after: float = 0.0) -> None:
        self.node = node
        self.delete_after = delete_after
        self.script: dict[tuple[str, int], list[Any]] = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.hold_swap = asyncio.Event()
        self.hold_swap.set()
        # A copy that says once how far it is, then neither heartbeats nor notices anything, as on a killed node.
        self.silent = False
        self.seen: list[tuple[str, MoveCall]] = []
        self.ended: list[tuple[str, str]] = []
        self.claims = 0
        self.swapped: set[int] = set()

    def calls_of(self, name: str) -> list[MoveCall]:
        """The calls of one activity, in order."""
        return [call for seen, call in self.seen if seen == name]

    @property
    def order(self) -> list[str]:
        """The names of the activities, in order."""
        return [name for name, _ in self.seen]

    def _answer(self, name: str, move: ReplicaMove, well: MoveRow) -> MoveRow:
        planned = self.script.get((name, move.partition))
        if not planned:
            return well
        one = planned.pop(0)
        if isinstance(one, Exception):
            raise one
        if isinstance(one, str):
            one = replace(well, outcome=one)
        if isinstance(one, dict):
            one = replace(well, **one)
        assert isinstance(one, MoveRow)
        return one

    def _each(self, name: str, call: MoveCall, make: Callable[[ReplicaMove], MoveRow]) -> MoveResult:
        return MoveResult([self._answer(name, move, make(move)) for move in call.replicas])

    @activity.defn(name=calls.CREATE_MOVE)
    async def create_move(self, call: MoveCall) -> MoveResult:
        self.seen.append((calls.CREATE_MOVE, call))

        def make(move: ReplicaMove) -> MoveRow:
            self.claims += 1
            return row(
                move,
                Outcome.CREATED,
                claim=move.claim or self.claims,
                generation=move.generation or 1,
                bytes_total=1000,
            )

        return self._each(calls.CREATE_MOVE, call, make)

    @activity.defn(name=calls.COPY)
    async def copy(self, call: MoveCall) -> MoveResult:
        self.seen.append((calls.COPY, call))
        if self.silent:
            activity.heartbeat(
                [asdict(row(move, Outcome.CREATED, bytes_total=1000, bytes_copied=300)) for move in call.replicas]
            )
        try:
            while not self.hold.is_set():
                if not self.silent:
                    activity.heartbeat()
                await asyncio.sleep(TICK)
        except asyncio.CancelledError:
            self.ended.append((calls.COPY, "cancelled"))
            raise
        self.ended.append((calls.COPY, "done"))
        return self._each(
            calls.COPY, call, lambda move: row(move, Outcome.CAUGHT_UP, bytes_total=1000, bytes_copied=1000, attempts=1)
        )

    @activity.defn(name=calls.SWAP)
    async def swap(self, call: MoveCall) -> MoveResult:
        self.seen.append((calls.SWAP, call))
        await self.hold_swap.wait()
        result = self._each(
            calls.SWAP,
            call,
            lambda move: row(move, Outcome.SWAPPED, seconds_locked=0.004, delete_after=self.delete_after),
        )
        self.swapped |= {each.partition for each in result.rows if each.outcome == Outcome.SWAPPED}
        return result

    @activity.defn(name=calls.CANCEL_MOVE)
    async def cancel_move(self, call: MoveCall) -> MoveResult:
        self.seen.append((calls.CANCEL_MOVE, call))

        def make(move: ReplicaMove) -> MoveRow:
            if move.partition in self.swapped:
                return row(move, Outcome.SWAPPED, delete_after=self.delete_after)
            return row(move, Outcome.CANCELLED, message=call.reason)

        return self._each(calls.CANCEL_MOVE, call, make)

    @activity.defn(name=calls.DELETE_REPLICA)
    async def delete_replica(self, call: MoveCall) -> MoveResult:
        self.seen.append((calls.DELETE_REPLICA, call))
        return self._each(calls.DELETE_REPLICA, call, lambda move: row(move, Outcome.DELETED))

    @property
    def short(self) -> list[Callable[..., Any]]:
        return [self.create_move, self.swap, self.cancel_move, self.delete_replica]

    @asynccontextmanager
    async def running(self, client: Client, cluster: str) -> AsyncIterator[FakeNode]:
        """The node's two workers."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                Worker(client, task_queue=names.node_queue(cluster, self.node), activities=self.short)
            )
            await stack.enter_async_context(
                Worker(
                    client,
                    task_queue=names.moves_queue(cluster, self.node),
                    activities=[self.copy],
                    max_heartbeat_throttle_interval=timedelta(milliseconds=100),
                    default_heartbeat_throttle_interval=timedelta(milliseconds=100),
                )
            )
            yield self


class FakeMember:
    """A node as the controller sees it: takes images, holds its lease, answers probes, keeps the newest image."""

    def __init__(self, node: int, incarnation: str = "") -> None:
        self.node = node
        self.incarnation = incarnation or f"i{node}"
        self.pair = (0, 0)
        self.images: list[str] = []
        self.metadata = ClusterImage()
        self.register_again = 0
        self.alive = True

    @activity.defn(name=calls.APPLY_IMAGE)
    async def apply_image(self, call: ImageCall) -> ImageResult:
        self.register_again += call.register
        for text in call.images:
            self.take(text)
        self.compare(call.generation, call.version, call.digest)
        return ImageResult(*self.pair, self.incarnation)

    def take(self, text: str) -> None:
        """Keep an image as a node does: newer only, and a delta only for what it knows."""
        found = decode(text)
        if found.pair > self.pair and (
            found.since == 0 or (found.cluster_generation == self.pair[0] and self.pair[1] >= found.since)
        ):
            self.pair = found.pair
            self.images.append(text)
            self.metadata = self.metadata.after(decode(text))

    def compare(self, generation: int, version: int, digest: str) -> None:
        """At the same version the member knows what the controller knows."""
        if digest and self.metadata.pair == (generation, version):
            assert self.metadata.digest == digest

    @activity.defn(name=calls.HOLD_LEASE)
    async def hold_lease(self, call: LeaseCall) -> None:
        if call.incarnation != self.incarnation:
            raise ApplicationError("another incarnation", type=ErrorType.WRONG_INCARNATION, non_retryable=True)
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.1)

    def registration(self, known: str = "") -> dict[str, Any]:
        """The command by which it registers."""
        return {
            "do": "register",
            "node": self.node,
            "incarnation": self.incarnation,
            "host": "127.0.0.1",
            "port": 9092 + self.node,
            "directories": [[f"dir-{self.node}-a", "/a", 1], [f"dir-{self.node}-b", "/b", 1]],
            "image": known,
        }

    def batch(self, *commands: dict[str, Any]) -> dict[str, Any]:
        """Its next update."""
        return {
            "node": self.node,
            "incarnation": self.incarnation,
            "generation": self.pair[0],
            "version": self.pair[1],
            "commands": list(commands),
        }

    async def submit(self, cluster: WorkflowHandle[Any, Any], *commands: dict[str, Any]) -> dict[str, Any]:
        """Send commands as one update, and take the image of the answer."""
        update, batch = uuid.uuid4().hex, self.batch(*commands)
        deadline = asyncio.get_running_loop().time() + 30
        while True:
            try:
                reply: dict[str, Any] = await cluster.execute_update(
                    "submit", batch, id=update, result_type=dict[str, Any]
                )
                break
            except RPCError as error:  # as a node does: the same update again
                assert asyncio.get_running_loop().time() < deadline, error
                await asyncio.sleep(TICK)
        if reply["image"]:
            self.take(reply["image"])
        self.compare(reply["generation"], reply["version"], reply["digest"])
        return reply

    @asynccontextmanager
    async def running(self, client: Client, cluster: str) -> AsyncIterator[FakeMember]:
        """The node's worker for short activities."""
        async with Worker(
            client,
            task_queue=names.node_queue(cluster, self.node),
            activities=[self.apply_image, self.hold_lease],
            max_heartbeat_throttle_interval=timedelta(milliseconds=500),
        ):
            yield self


class FakeProber:
    """The controller's own activity, answering for nodes of the test."""

    def __init__(self, *members: FakeMember) -> None:
        self.members = {member.node: member for member in members}
        self.asked: list[int] = []

    @activity.defn(name=calls.PROBE_NODE)
    async def probe_node(self, call: ProbeCall) -> ProbeResult:
        self.asked.append(call.node)
        member = self.members.get(call.node)
        if member is None or not member.alive:
            return ProbeResult("", "connection refused")
        return ProbeResult(member.incarnation)


class FakeExporter:
    """The history queue's activity."""

    def __init__(self) -> None:
        self.seen: list[ExportCall] = []

    @activity.defn(name=calls.EXPORT_HISTORIES)
    async def export(self, call: ExportCall) -> ExportResult:
        self.seen.append(call)
        return ExportResult(f"{call.directory}/manifest.json", 3, 1, 120, 9000)


@asynccontextmanager
async def orchestrator(
    client: Client, cluster: str, *activities: Callable[..., Any], cached: int = 1000
) -> AsyncIterator[Worker]:
    """The controller's worker: all workflows, and what activities the test gives it; `cached` runs stay in memory."""
    runner = workflow_runner()
    worker = Worker(
        client,
        task_queue=names.cluster_queue(cluster),
        workflows=workflows.ALL,
        activities=list(activities),
        workflow_runner=runner,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        max_cached_workflows=cached,
    )
    async with deciding_as_replays(worker, runner):
        yield worker
