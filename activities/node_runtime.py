"""Temporal's side of a storage node: a thread with an event loop of its own, which the listener never waits for.

The node serves whether or not Temporal is there. This side connects (for as long as it takes), ends what the last
start of the node left running, keeps the node registered, serves its two queues, reports and looks after moves that
nobody drives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities import connection, orphans
from activities.attempts import AttemptJournal, JournalInterceptor, fail_dead_attempts, started_by
from activities.cluster_link import ClusterLink
from activities.controller_port import ControllerPort
from activities.failing import FailureStarter
from activities.node import NodeActivities
from activities.starter import MoveStarter
from storage_node.errors import RequestTimedOut
from workflows.model import names

if TYPE_CHECKING:
    from storage_node.directories.directory import LogDirectory
    from storage_node.node import Node

log = logging.getLogger(__name__)

#: Copies that may queue on the node, whose own scheduler lets a few of them copy, and reassignments that look on.
MOVE_SLOTS = 512
SHORT_SLOTS = 200
LEASE_THROTTLE = timedelta(seconds=0.5)  # between heartbeats that reach the server
MOVES_THROTTLE = timedelta(seconds=2)
GRACE = timedelta(seconds=3)  # for activities under way when the node stops
GOODBYE = 1.0  # seconds for telling the controller that the node stops
JOIN = 6.0  # seconds that `stop` waits for the thread; more than GRACE and GOODBYE together
PAUSE = 1.0


class NodeRuntime:
    """One per node process. Make it, make the node with `controller`, start the node, then `start` this."""

    def __init__(self, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> None:
        self._profile, self._overrides = profile, overrides
        self._loop = asyncio.new_event_loop()
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.controller = ControllerPort(self._loop)

    def start(self, node: Node) -> None:
        """Begin, on a thread of its own; returns at once."""
        self._thread = threading.Thread(target=self._main, args=(node,), name="temporal", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = JOIN) -> None:
        """Say goodbye to the controller, leave what is under way and end; the node still serves while this happens."""
        thread = self._thread
        if thread is None:
            self._loop.close()
            return
        if thread.is_alive():
            self._loop.call_soon_threadsafe(lambda: self._stopping.set() if self._stopping else None)
            thread.join(timeout)
        if thread.is_alive():
            log.warning("Temporal's side did not end within %s s and is left behind", timeout)

    def _main(self, node: Node) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._run(node))
        except Exception:
            log.exception("Temporal's side of the node ended; moves and changes of the metadata stand still")
        finally:
            self._loop.close()

    async def _run(self, node: Node) -> None:
        self._stopping = asyncio.Event()
        session = _Session(node, self.controller, self._profile, self._overrides)
        work = asyncio.create_task(session.run())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not work.done():
            await session.say_goodbye()
            work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            log.debug("Temporal's side has ended")


class _Session:
    """What happens between start and stop."""

    def __init__(
        self, node: Node, port: ControllerPort, profile: str | None, overrides: Mapping[str, Any] | None
    ) -> None:
        self._node, self._port = node, port
        self._profile, self._overrides = profile, overrides
        self._cluster = node.cluster_id
        self._role = f"node-{node.id}"
        self._connected: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._journal = AttemptJournal(Path(node.config.metadata_log_dir))
        self._activities = NodeActivities(node, port, self._pushed)
        blocking = self._activities.blocking
        engine = node.engine
        self._starter = MoveStarter(
            self._cluster,
            node.id,
            self._client,
            lambda tp, claim, reason: blocking(engine.cancel, tp, claim, reason),
            lambda tp: blocking(engine.next_claim, tp),
        )
        self._failures = FailureStarter(self._cluster, node.id, self._client)
        # What the metadata says of where replicas are may be out of date; the node compares and reports.
        self._link = ClusterLink(self._cluster, node, self._client, node.directories_changed)

        loop = asyncio.get_running_loop()

        def tell(directory: LogDirectory, reason: str) -> None:
            """On whatever thread met the failure. Closed: the node stops, and the next start registers anew."""
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._link.register_again)

        # The controller takes the leader from partitions whose only replica is offline; other directories go on.
        node.on_directory_failure(tell)

    async def run(self) -> None:
        self._port.attach(self._node.id, self._link, self._starter, self._failures)
        dead = self._journal.left_behind()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._connect())
                group.create_task(self._link.run())
                group.create_task(self._serve(dead))
        finally:
            await self._port.close()
            await self._starter.close()
            await self._failures.close()
            self._activities.close()
            await asyncio.to_thread(self._journal.close)

    async def _connect(self) -> None:
        self._connected.set_result(await connection.connect_forever(self._role, self._profile, self._overrides))

    async def _client(self) -> Client:
        return await asyncio.shield(self._connected)

    def _pushed(self, register: bool) -> None:
        if register:
            self._link.register_again()
        else:
            self._link.heard()

    async def _serve(self, dead: Iterable[Any]) -> None:
        client = await self._client()
        await self._end_dead(client, list(dead))
        watch = asyncio.create_task(orphans.watch(self._node.engine.statuses, self._activities.attached, self._starter))
        try:
            while True:
                try:
                    await self._work(client)
                except Exception:
                    log.exception("the node's workers failed and are started again")
                await asyncio.sleep(PAUSE)
        finally:
            watch.cancel()

    async def _end_dead(self, client: Client, dead: Sequence[Any]) -> None:
        """Fail what the last start left running, so that its next attempts come at once.

        The controller tells a node nothing new while a push to it is under way: one that was lost with the process
        would hold up all that follow until its timeout.
        """
        while True:
            try:
                lost = await started_by(client, self._cluster, connection.name_of(self._role))
                left = {*dead, *lost}
                ended = await fail_dead_attempts(client, left, self._journal) if left else 0
            except RPCError as error:
                log.info("the attempts of the last start are not ended yet: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            if left:
                log.info("%d activities of the last start were ended, %d of them still open", len(left), ended)
            return

    async def _work(self, client: Client) -> None:
        """Serve both queues until cancelled or one of the workers fails."""
        workers = self._workers(client)
        running = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await asyncio.gather(*(worker.shutdown() for worker in workers), return_exceptions=True)
            ended = await asyncio.gather(*running, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def _workers(self, client: Client) -> list[Worker]:
        interceptors = [JournalInterceptor(self._journal)]
        node = self._node.id
        short = Worker(
            client,
            task_queue=names.node_queue(self._cluster, node),
            activities=self._activities.short,
            max_concurrent_activities=SHORT_SLOTS,
            max_heartbeat_throttle_interval=LEASE_THROTTLE,
            graceful_shutdown_timeout=GRACE,
            interceptors=interceptors,
        )
        moves = Worker(
            client,
            task_queue=names.moves_queue(self._cluster, node),
            activities=self._activities.moves,
            max_concurrent_activities=MOVE_SLOTS,
            max_heartbeat_throttle_interval=MOVES_THROTTLE,
            graceful_shutdown_timeout=GRACE,
            interceptors=interceptors,
        )
        return [short, moves]

    async def say_goodbye(self) -> None:
        """Tell the controller that this start of the node ends, if it can be told."""
        if not self._connected.done():
            return
        try:
            await self._port.leave(self._node.incarnation, GOODBYE)
        except RequestTimedOut:
            log.debug("the controller did not hear that the node stops")
