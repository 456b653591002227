"""Temporal's side of a storage node: a thread with an event loop of its own, which the listener never waits for.

The node serves whether or not Temporal is available. This side connects (however long that takes), ends the attempts of
the node's last incarnation, keeps the node registered, serves its two queues, and starts runs for moves without one.
Each of these is a part that is restarted when it fails (`activities/temporal/supervision.py`), and so is the whole; the
node's private API shows their state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.controller.cluster_link import ClusterLink
from activities.controller.cluster_run import ClusterRun, paused_sentence
from activities.controller.failing import FailureStarter
from activities.controller.port import ControllerPort
from activities.moves import orphans
from activities.moves.starter import MoveStarter
from activities.node.activities import NodeActivities
from activities.node.attempts import Attempt, AttemptJournal, JournalInterceptor, fail_dead_attempts, started_by
from activities.temporal import connection
from activities.temporal.client import TemporalClient
from activities.temporal.client_state import ClientHealth
from activities.temporal.serving import serve
from activities.temporal.supervision import innermost, supervise
from storage_node.errors import RequestTimedOut
from workflows.model import names

if TYPE_CHECKING:
    from storage_node.directories.directory import LogDirectory
    from storage_node.node import Node

log = logging.getLogger(__name__)

#: Activities at once on the queue of moves: copies, which the node's scheduler runs a few at a time, and steps that
#: observe reassignments.
MOVE_SLOTS = 512
SHORT_SLOTS = 200
LEASE_THROTTLE = timedelta(seconds=0.5)  # between heartbeats that reach the server
MOVES_THROTTLE = timedelta(seconds=2)
GRACE = timedelta(seconds=3)  # for activities in progress when the node stops
STOP_REPORT_TIMEOUT = 1.0  # seconds to report to the controller that the node stops
JOIN = 6.0  # seconds that `stop` waits for the thread; more than GRACE and STOP_REPORT_TIMEOUT together
PAUSE = 1.0  # seconds before a retry
LONGEST_PAUSE = 30.0  # before the whole side is restarted
THREAD = "Temporal's thread"


class NodeRuntime:
    """Temporal's side of one node process. Create it, create the node with `controller`, start the node, then this."""

    def __init__(self, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> None:
        self._profile, self._overrides = profile, overrides
        self._loop = asyncio.new_event_loop()
        self._stop = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.controller = ControllerPort(self._loop)
        self.health = ClientHealth("the node")

    def start(self, node: Node) -> None:
        """Start the thread, and return at once."""
        node.controller_client = lambda: self.health.state.as_dict()
        self._thread = threading.Thread(target=self._main, args=(node,), name="temporal", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = JOIN) -> None:
        """Report the stop to the controller, abandon activities and end the thread; the node still serves meanwhile."""
        self._stop.set()
        thread = self._thread
        if thread is None:
            self._loop.close()
            return
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(lambda: self._stopping.set() if self._stopping else None)
        thread.join(timeout)
        if thread.is_alive():
            log.warning("Temporal's thread did not end within %s s and is abandoned", timeout)

    def _main(self, node: Node) -> None:
        """Run Temporal's side until it is stopped; restart it after any error before that."""
        asyncio.set_event_loop(self._loop)
        pause = PAUSE
        while not self._stop.is_set():
            self.health.started(THREAD)
            try:
                self._loop.run_until_complete(self._run(node))
            except BaseException as error:
                self.health.failed(THREAD, innermost(error), pause)
                self._cancel_left_tasks()
            self._stop.wait(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
        self._loop.close()

    def _cancel_left_tasks(self) -> None:
        """Cancel the tasks that a failed side has left on the loop."""
        try:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=STOP_REPORT_TIMEOUT))
        except BaseException:
            log.exception("the tasks that Temporal's side left on its loop could not be cancelled")

    async def _run(self, node: Node) -> None:
        self._stopping = asyncio.Event()
        if self._stop.is_set():
            return
        session = _Session(node, self.controller, self.health, self._profile, self._overrides)
        work = asyncio.create_task(session.run())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not work.done():
            await session.report_stop()
            work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            log.debug("Temporal's side has ended")


class _Session:
    """One session between start and stop; each part is restarted by itself when it fails."""

    def __init__(
        self,
        node: Node,
        port: ControllerPort,
        health: ClientHealth,
        profile: str | None,
        overrides: Mapping[str, Any] | None,
    ) -> None:
        self._node, self._port, self._health = node, port, health
        self._cluster = node.cluster_id
        self._role = f"node-{node.id}"
        self._temporal = TemporalClient(self._role, health, profile, overrides)
        self._journal = AttemptJournal(lambda: [directory.path for directory in node.dirs.online()])
        self._dead: frozenset[Attempt] | None = None
        """The attempts of the last incarnation; None once they have been ended."""
        self._activities = NodeActivities(node, port, self._pushed)
        blocking = self._activities.blocking
        engine = node.engine
        self._starter = MoveStarter(
            self._cluster,
            node.id,
            self._temporal.get,
            lambda tp, claim, reason: blocking(engine.cancel, tp, claim, reason),
            lambda tp, claim: blocking(engine.claim_orphan, tp, claim),
        )
        self._failures = FailureStarter(self._cluster, node.id, self._temporal.get)
        # The replicas' directories in the metadata may be out of date: the node compares them, and reports.
        self._link = ClusterLink(self._cluster, node, self._temporal.get, node.directories_changed, self._saw)

        loop = asyncio.get_running_loop()

        def report(directory: LogDirectory, reason: str) -> None:
            """Register again, from any thread. If the loop is closed the node stops, and its next start registers."""
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._link.register_again)

        # The controller then elects other leaders for the directory's replicas; other directories are not affected.
        node.on_directory_failure(report)

    async def run(self) -> None:
        """Run all parts until cancelled."""
        self._port.attach(self._node.id, self._link, self._starter, self._failures)
        self._dead = self._journal.left_behind()
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "the client": self._temporal.run,
            "sending updates": self._link.send_updates,
            "registering": self._link.keep_registered,
            "comparing metadata": self._link.keep_metadata_equal,
            "serving the queues": self._serve,
            "looking after moves without a run": self._watch_orphans,
        }
        try:
            async with asyncio.TaskGroup() as group:
                for part, work in parts.items():
                    group.create_task(supervise(part, work, self._health))
        finally:
            await self._port.close()
            await self._starter.close()
            await self._failures.close()
            self._activities.close()
            await asyncio.to_thread(self._journal.close)

    def _pushed(self, register: bool) -> None:
        if register:
            self._link.register_again()
        else:
            self._link.retry_registration()

    def _saw(self, run: ClusterRun | None) -> None:
        self._health.note("controller", paused_sentence(self._cluster, run))

    async def _watch_orphans(self) -> None:
        await self._temporal.get()
        await orphans.watch(self._node.engine.statuses, self._activities.attached, self._starter)

    async def _serve(self) -> None:
        """Serve both queues with the current client, until cancelled or until a worker fails."""
        while True:
            client = await self._temporal.get()
            if self._dead is not None:
                await self._end_dead(client, self._dead)
                self._dead = None
            await serve(self._workers(client), self._temporal.replaced(client))

    async def _end_dead(self, client: Client, dead: Iterable[Attempt]) -> None:
        """Fail the attempts that the last incarnation left running, so that the server retries them at once.

        The controller has at most one push per node in flight: one that was lost with the process would delay the next
        until its timeout.
        """
        while True:
            try:
                lost = await started_by(client, self._cluster, connection.name_of(self._role))
                left = {*dead, *lost}
                ended = await fail_dead_attempts(client, left, self._journal) if left else 0
            except RPCError as error:
                log.info("the activity attempts of the last start are not ended yet, trying again: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            except Exception:
                # The server ends them at their timeouts, only later.
                log.exception("the activity attempts of the last start could not be ended; the server waits for them")
                return
            if left:
                log.info("ended %d activity attempts of the last start, %d of them were still open", len(left), ended)
            return

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

    async def report_stop(self) -> None:
        """Report to the controller that this incarnation ends, if Temporal is connected."""
        if not self._temporal.connected:
            return
        try:
            await self._port.leave(self._node.incarnation, STOP_REPORT_TIMEOUT)
        except RequestTimedOut:
            log.debug("the controller did not respond to the report that the node stops")
