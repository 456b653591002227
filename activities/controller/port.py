"""The storage node's port to the controller, over the `Cluster` workflow's update `submit`.

Calls may come from any thread and loop (the listener's, the activities'); all requests to Temporal are sent on one loop
of its own, so that a slow server never delays the listener. Without a response in time a call raises RequestTimedOut,
whose message has whether the controller may still apply the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from activities.controller.batching import GaveUp, Rejected
from activities.controller.cluster_link import ClusterLink
from activities.controller.failing import FailureStarter
from activities.moves.starter import MoveStarter
from activities.temporal.supervision import is_being_cancelled
from storage_node.errors import MAY_COME, NOTHING_CHANGED, RequestTimedOut
from storage_node.model.commands import (
    AlterConfigs,
    AlterPartitions,
    AlterReassignments,
    AssignDirectories,
    Command,
    ConfigChange,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DirectoryFailed,
    ElectLeaders,
    IsrChange,
    LeaseEnded,
    MorePartitions,
    NewTopic,
    NextProducerIds,
    QueryVersion,
    RaiseGenerations,
    Reassign,
    ReplicaDirectory,
    ReplicaReport,
    ReportReplicas,
)
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.ports import ChangeResult, PlannedMove

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds beyond a caller's own timeout, in case the port's loop does not run.
SLACK = 1.0


class ControllerPort:
    """Implements `storage_node.ports.Controller`; `loop` is the loop of the Temporal client.

    Before `attach` (the node has started) changes wait for their timeouts, and moves for the start of their runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._link: ClusterLink | None = None
        self._starter: MoveStarter | None = None
        self._failures: FailureStarter | None = None
        self._waiting: list[Callable[[MoveStarter, FailureStarter], None]] = []
        self._requests: set[asyncio.Task[list[Any]]] = set()
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
        """Fail all waiting calls, and later ones at once, since the controller cannot respond; call it on the port's
        loop.
        """
        self._closed = True
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    # Changes of the metadata

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool,
        timeout: float,
    ) -> list[ChangeResult]:
        """Create topics; one result per topic, in order."""
        return await self._submit(CreateTopics(tuple(topics), validate_only), timeout, count=len(topics))

    async def delete_topics(self, names: Sequence[str], *, timeout: float) -> list[ChangeResult]:
        """Delete topics by name; one result per name, in order."""
        return await self._submit(DeleteTopics(tuple(names)), timeout, count=len(names))

    async def create_partitions(
        self,
        topics: Sequence[MorePartitions],
        *,
        validate_only: bool,
        timeout: float,
    ) -> list[ChangeResult]:
        """Add partitions to topics; one result per topic, in order."""
        return await self._submit(CreatePartitions(tuple(topics), validate_only), timeout, count=len(topics))

    async def alter_configs(
        self,
        kind: str,
        name: str,
        changes: Mapping[str, ConfigChange],
        *,
        timeout: float,
    ) -> ChangeResult:
        """Change dynamic configs of a topic or of brokers."""
        return (await self._submit(AlterConfigs(kind, name, dict(changes)), timeout))[0]

    async def next_producer_ids(self, count: int, *, timeout: float) -> int:
        """Allocate `count` producer ids; return the first."""
        result = (await self._submit(NextProducerIds(count), timeout))[0]
        if result.error:
            raise RequestTimedOut(f"the controller allocated no producer ids: {result.message}")
        return result.value

    async def raise_generations(
        self,
        replicas: Sequence[ReplicaDirectory],
        *,
        timeout: float,
    ) -> list[ChangeResult]:
        """Record the generation that a move will give each replica."""
        return await self._submit(RaiseGenerations(self._node, tuple(replicas)), timeout, count=len(replicas))

    async def assign_directories(
        self,
        replicas: Sequence[ReplicaDirectory],
        *,
        timeout: float,
    ) -> list[ChangeResult]:
        """Record the replicas' directories."""
        return await self._submit(AssignDirectories(self._node, tuple(replicas)), timeout, count=len(replicas))

    async def report_replicas(
        self, reports: Sequence[ReplicaReport], *, broker_epoch: int, timeout: float
    ) -> list[ChangeResult]:
        """Report replicas offline, or online again; one result each."""
        command = ReportReplicas(self._node, broker_epoch, tuple(reports))
        return await self._submit(command, timeout, count=len(reports))

    async def alter_partitions(self, changes: Sequence[IsrChange], *, timeout: float) -> list[ChangeResult]:
        """Change the in-sync replicas of partitions that this node leads; `value` is the new partition epoch."""
        return await self._submit(AlterPartitions(self._node, tuple(changes)), timeout, count=len(changes))

    async def alter_reassignments(
        self, wanted: Sequence[Reassign], *, may_change_factor: bool, timeout: float, client: str = ""
    ) -> list[ChangeResult]:
        """Begin, change or cancel reassignments; one result per partition, in order. `client` is the requester, for the
        runs.
        """
        command = AlterReassignments(tuple(wanted), may_change_factor, client)
        return await self._submit(command, timeout, count=len(wanted))

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout: float
    ) -> list[ChangeResult]:
        """Elect the preferred replicas, or, if `unclean`, any live one where there is no leader; one result each."""
        return await self._submit(ElectLeaders(tuple(partitions), unclean), timeout, count=len(partitions))

    async def query_version(self, *, timeout: float) -> ChangeResult:
        """Return the current version of the metadata; the reply brings the image that has it."""
        return (await self._submit(QueryVersion(), timeout))[0]

    async def leave(self, incarnation: str, timeout: float) -> ChangeResult:
        """Report that this incarnation ends, so that the controller fences it without waiting for the lease."""
        return (await self._submit(LeaseEnded(self._node, incarnation), timeout, first=True))[0]

    async def _submit(
        self, command: Command, seconds: float | None, *, count: int = 1, first: bool = False
    ) -> list[ChangeResult]:
        if count == 0:
            return []
        try:
            results = await self._on_loop(self._request(command, seconds, first), seconds)
        except GaveUp as gave_up:
            raise RequestTimedOut(_late(gave_up, command, sent=gave_up.sent)) from gave_up
        except TimeoutError as error:  # The port's loop did not run: the outcome of the command is unknown.
            late = f"the controller did not respond within {seconds or 0:.1f} s"
            raise RequestTimedOut(_late(late, command, sent=True)) from error
        except Rejected as error:
            raise RequestTimedOut(f"the controller rejected the request: {error}") from error
        found = [_result(row) for row in results]
        if len(found) == 1 and count > 1:
            return found * count  # The command as a whole was rejected.
        return found

    async def _request(self, command: Command, seconds: float | None, first: bool) -> list[Any]:
        if self._link is None:
            raise GaveUp("the node is still starting", sent=False)
        task = asyncio.ensure_future(self._link.submit(command, seconds, first=first))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise GaveUp("the node stops", sent=True) from None  # It may have been sent.
            task.cancel()
            raise

    async def _on_loop(self, work: Coroutine[Any, Any, T], seconds: float | None) -> T:
        """Run `work` on the port's loop, whichever loop the caller is on."""
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
        """Start the runs of accepted moves, in the background until Temporal accepts them."""
        accepted = tuple(moves)
        self._when_attached(lambda starter, _: starter.start(accepted, throttle))

    def register_again(self) -> None:
        """Register again, once Temporal can be reached; a node that starts registers anyway."""

        def now() -> None:
            if self._link is not None:
                self._link.register_again()

        with contextlib.suppress(RuntimeError):  # the loop was closed: the node stops
            self._loop.call_soon_threadsafe(now)

    def directory_failed(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        """Start the run of a failed directory, in the background until Temporal accepts it."""
        self._when_attached(lambda _, failures: failures.start(failure, taken))

    def _when_attached(self, call: Callable[[MoveStarter, FailureStarter], None]) -> None:
        def now() -> None:
            if self._starter is None or self._failures is None:
                self._waiting.append(call)
            elif not self._closed:
                call(self._starter, self._failures)

        # If the loop was closed meanwhile the node stops; its disks have what was not reported.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(now)


def _late(reason: object, command: Command, *, sent: bool) -> str:
    """Return the client's message for a command without a response; about changes only if it requested one."""
    if isinstance(command, QueryVersion) or getattr(command, "validate_only", False):
        return str(reason)
    return f"{reason}; {MAY_COME if sent else NOTHING_CHANGED}"


def _result(row: Any) -> ChangeResult:
    if not isinstance(row, Mapping):
        return ChangeResult(
            error=int(ErrorCode.UNKNOWN_SERVER_ERROR), message=f"the controller's result is malformed: {row}"
        )
    return ChangeResult(
        error=int(row.get("error", 0)),
        message=str(row.get("message", "")),
        version=int(row.get("version", 0)),
        topic_id=str(row.get("topic_id", "")),
        value=int(row.get("value", 0)),
    )
