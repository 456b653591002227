"""The storage node's port to the controller, over the `Cluster` workflow's update `submit`.

Calls may come from any thread and loop (the listener's, the activities'); all that talks to Temporal happens on one
loop of its own, so that a slow server never slows the listener. Without an answer in time a call raises
RequestTimedOut, which says whether the controller may still do what it was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from activities.batching import GaveUp, Rejected
from activities.cluster_link import ClusterLink
from activities.failing import FailureStarter
from activities.replica_reports import report_rows
from activities.starter import MoveStarter
from activities.supervision import is_being_cancelled
from storage_node.errors import MAY_COME, NOTHING_CHANGED, ErrorCode, RequestTimedOut
from storage_node.ports import (
    ChangeResult,
    ConfigChange,
    DirectoryFailed,
    IsrChange,
    ListChange,
    MorePartitions,
    NewTopic,
    PlannedMove,
    Reassign,
    ReplicaDirectory,
    ReplicaReport,
)
from storage_node.types import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds beyond a caller's own timeout, in case the loop itself does not run.
SLACK = 1.0


class ControllerPort:
    """Implements `storage_node.ports.Controller`; `loop` is the loop that talks to Temporal.

    Until `attach` (the node is up) changes wait for their timeouts and moves for their start.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._link: ClusterLink | None = None
        self._starter: MoveStarter | None = None
        self._failures: FailureStarter | None = None
        self._waiting: list[Callable[[MoveStarter, FailureStarter], None]] = []
        self._asking: set[asyncio.Task[list[Any]]] = set()
        self._closed = False
        self._node = -1

    def attach(self, node: int, link: ClusterLink, starter: MoveStarter, failures: FailureStarter) -> None:
        """Open the port, also after a `close`; call it on its loop."""
        self._closed = False
        self._node, self._link, self._starter, self._failures = node, link, starter, failures
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call(starter, failures)

    async def close(self) -> None:
        """Answer everybody who waits, and from now on at once, that nobody answers; called on the port's loop."""
        self._closed = True
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    # Changes of the metadata

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool,
        timeout: float,
    ) -> list[ChangeResult]:
        """Create topics; one result per topic, in order."""
        command = {"do": "create_topics", "topics": [_topic(one) for one in topics], "validate_only": validate_only}
        return await self._submit(command, timeout, count=len(topics))

    async def delete_topics(self, names: Sequence[str], *, timeout: float) -> list[ChangeResult]:
        """Delete topics by name; one result per name, in order."""
        return await self._submit({"do": "delete_topics", "names": list(names)}, timeout, count=len(names))

    async def create_partitions(
        self,
        topics: Sequence[MorePartitions],
        *,
        validate_only: bool,
        timeout: float,
    ) -> list[ChangeResult]:
        """Add partitions to topics; one result per topic, in order."""
        rows = [
            {
                "name": one.name,
                "count": one.count,
                "assignment": None if one.assignment is None else [list(replicas) for replicas in one.assignment],
            }
            for one in topics
        ]
        command = {"do": "create_partitions", "topics": rows, "validate_only": validate_only}
        return await self._submit(command, timeout, count=len(topics))

    async def alter_configs(
        self,
        kind: str,
        name: str,
        changes: Mapping[str, ConfigChange],
        *,
        timeout: float,
    ) -> ChangeResult:
        """Change dynamic configs of a topic or of brokers."""
        command = {"do": "alter_configs", "kind": kind, "name": name, "changes": _config_changes(changes)}
        return (await self._submit(command, timeout))[0]

    async def next_producer_ids(self, count: int, *, timeout: float) -> int:
        """Reserve `count` producer ids; answers the first."""
        result = (await self._submit({"do": "next_producer_ids", "count": count}, timeout))[0]
        if result.error:
            raise RequestTimedOut(f"the controller gave no producer ids: {result.message}")
        return result.value

    async def raise_generations(
        self,
        replicas: Sequence[ReplicaDirectory],
        *,
        timeout: float,
    ) -> list[ChangeResult]:
        """Record the generation that a move will give each replica."""
        return await self._replicas("raise_generations", replicas, timeout)

    async def assign_directories(
        self,
        replicas: Sequence[ReplicaDirectory],
        *,
        timeout: float,
    ) -> list[ChangeResult]:
        """Tell where replicas now are."""
        return await self._replicas("assign_directories", replicas, timeout)

    async def report_replicas(
        self, reports: Sequence[ReplicaReport], *, broker_epoch: int, timeout: float
    ) -> list[ChangeResult]:
        """Report replicas offline, or online again; one result each."""
        rows = report_rows(reports)
        command = {"do": "report_replicas", "node": self._node, "epoch": broker_epoch, "replicas": rows}
        return await self._submit(command, timeout, count=len(rows))

    async def alter_partitions(self, changes: Sequence[IsrChange], *, timeout: float) -> list[ChangeResult]:
        """Change the in-sync replicas of partitions that this node leads; `value` is the new partition epoch."""
        rows = isr_rows(changes)
        command = {"do": "alter_partitions", "node": self._node, "partitions": rows}
        return await self._submit(command, timeout, count=len(rows))

    async def alter_reassignments(
        self, wanted: Sequence[Reassign], *, may_change_factor: bool, timeout: float, client: str = ""
    ) -> list[ChangeResult]:
        """Begin, change or cancel reassignments; one result per partition, in order. `client`: who asked, for the
        record.
        """
        rows = reassign_rows(wanted)
        command = {"do": "alter_reassignments", "partitions": rows, "may_change_factor": may_change_factor}
        if client:
            command["client"] = client
        return await self._submit(command, timeout, count=len(rows))

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout: float
    ) -> list[ChangeResult]:
        """Make the preferred replica the leader, or, `unclean`, any live one where there is none; one result each."""
        rows = [[tp.topic, tp.partition] for tp in partitions]
        command = {"do": "elect_leaders", "partitions": rows, "unclean": unclean}
        return await self._submit(command, timeout, count=len(rows))

    async def tell_version(self, *, timeout: float) -> ChangeResult:
        """The version of the metadata now; the answer brings the image that has it."""
        return (await self._submit({"do": "tell_version"}, timeout))[0]

    async def leave(self, incarnation: str, timeout: float) -> ChangeResult:
        """Say that this start of the node ends, so that nobody has to wait for its lease to be lost."""
        command = {"do": "lease_ended", "node": self._node, "incarnation": incarnation}
        return (await self._submit(command, timeout, first=True))[0]

    async def _replicas(self, do: str, replicas: Sequence[ReplicaDirectory], seconds: float) -> list[ChangeResult]:
        rows = [
            [one.partition.topic, one.partition.partition, one.topic_id, one.directory_id, one.generation]
            for one in replicas
        ]
        return await self._submit({"do": do, "node": self._node, "replicas": rows}, seconds, count=len(rows))

    async def _submit(
        self, command: dict[str, Any], seconds: float | None, *, count: int = 1, first: bool = False
    ) -> list[ChangeResult]:
        if count == 0:
            return []
        try:
            results = await self._there(self._ask(command, seconds, first), seconds)
        except GaveUp as gave_up:
            raise RequestTimedOut(_late(gave_up, command, sent=gave_up.sent)) from gave_up
        except TimeoutError as error:  # its own loop did not run: nobody knows what became of the command
            late = f"the controller did not answer within {seconds or 0:.1f} s"
            raise RequestTimedOut(_late(late, command, sent=True)) from error
        except Rejected as error:
            raise RequestTimedOut(f"the controller refused: {error}") from error
        found = [_result(row) for row in results]
        if len(found) == 1 and count > 1:
            return found * count  # the command as a whole was refused
        return found

    async def _ask(self, command: dict[str, Any], seconds: float | None, first: bool) -> list[Any]:
        if self._link is None:
            raise GaveUp("the node is still starting", sent=False)
        task = asyncio.ensure_future(self._link.submit(command, seconds, first=first))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise GaveUp("the node stops", sent=True) from None  # for all that is known here
            task.cancel()
            raise

    async def _there(self, work: Coroutine[Any, Any, T], seconds: float | None) -> T:
        """Do `work` on the port's loop, wherever the caller runs."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        if self._closed or self._loop.is_closed():
            work.close()
            raise GaveUp("the node stops", sent=False)
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        try:
            async with asyncio.timeout(None if seconds is None else seconds + SLACK):
                return await future
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            # All tasks of the port's loop were cancelled, since it failed; the caller still needs a response.
            raise GaveUp("the link to the controller failed and is being restarted", sent=True) from None

    # Runs

    def start_moves(self, moves: Sequence[PlannedMove], *, throttle: int | None) -> None:
        """Start the runs of accepted moves; goes on in the background until Temporal takes them."""
        accepted = tuple(moves)
        self._when_attached(lambda starter, _: starter.start(accepted, throttle))

    def directory_failed(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        """Start the run about a failed directory; goes on in the background until Temporal takes it."""
        self._when_attached(lambda _, failures: failures.start(failure, taken))

    def _when_attached(self, call: Callable[[MoveStarter, FailureStarter], None]) -> None:
        def now() -> None:
            if self._starter is None or self._failures is None:
                self._waiting.append(call)
            elif not self._closed:
                call(self._starter, self._failures)

        # Closed meanwhile: the node stops, and what is not told stands on its disks.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(now)


def isr_rows(changes: Sequence[IsrChange]) -> list[list[Any]]:
    """Changes of in-sync replicas as the controller takes them."""
    return [
        [
            one.partition.topic,
            one.partition.partition,
            one.topic_id,
            one.leader_epoch,
            one.partition_epoch,
            [list(member) for member in one.isr],
        ]
        for one in changes
    ]


def reassign_rows(wanted: Sequence[Reassign]) -> list[list[Any]]:
    """Reassignments as the controller takes them; None for a cancel."""
    return [
        [one.partition.topic, one.partition.partition, None if one.replicas is None else list(one.replicas)]
        for one in wanted
    ]


def _late(reason: object, command: Mapping[str, Any], *, sent: bool) -> str:
    """What the client is told of a command without an answer; nothing of a change, where it asked for none."""
    if command["do"] == "tell_version" or command.get("validate_only"):
        return str(reason)
    return f"{reason}; {MAY_COME if sent else NOTHING_CHANGED}"


def _config_changes(changes: Mapping[str, ConfigChange]) -> dict[str, Any]:
    return {
        key: {"append" if change.append else "subtract": list(change.items)}
        if isinstance(change, ListChange)
        else change
        for key, change in changes.items()
    }


def _topic(topic: NewTopic) -> dict[str, Any]:
    """A topic as the controller takes it; with an assignment the two counts follow from it."""
    row: dict[str, Any] = {"name": topic.name, "configs": dict(topic.configs)}
    if topic.assignment:
        return row | {"partitions": -1, "replication_factor": -1, "assignment": [list(one) for one in topic.assignment]}
    return row | {"partitions": topic.partitions, "replication_factor": topic.replication_factor}


def _result(row: Any) -> ChangeResult:
    if not isinstance(row, Mapping):
        return ChangeResult(error=int(ErrorCode.UNKNOWN_SERVER_ERROR), message=f"not understood: {row}")
    return ChangeResult(
        error=int(row.get("error", 0)),
        message=str(row.get("message", "")),
        version=int(row.get("version", 0)),
        topic_id=str(row.get("topic_id", "")),
        value=int(row.get("value", 0)),
    )
