"""Temporal's side of a storage node: a thread with an event loop of its own, which the listener never waits for.

The node serves whether or not Temporal is there. This side connects (for as long as it takes), ends what the last
start of the node left running, keeps the node registered, serves its two queues, reports and resumes moves without a
run. Each of these is a part that is restarted when it fails (`activities/supervision.py`), and so is the whole; the
node's private API shows their state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities import connection, orphans
from activities.attempts import Attempt, AttemptJournal, JournalInterceptor, fail_dead_attempts, started_by
from activities.client_state import ClientHealth
from activities.cluster_link import ClusterLink
from activities.cluster_run import ClusterRun, paused_sentence
from activities.controller_port import ControllerPort
from activities.failing import FailureStarter
from activities.node import NodeActivities
from activities.serving import serve
from activities.starter import MoveStarter
from activities.supervision import innermost, supervise
from activities.temporal_client import TemporalClient
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
PAUSE = 1.0  # seconds before a retry
LONGEST_PAUSE = 30.0  # before the whole side is restarted
THREAD = "Temporal's thread"


class NodeRuntime:
    """One per node process. Make it, make the node with `controller`, start the node, then `start` this."""

    def __init__(self, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> None:
        self._profile, self._overrides = profile, overrides
        self._loop = asyncio.new_event_loop()
        self._stop = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.controller = ControllerPort(self._loop)
        self.health = ClientHealth("the node")

    def start(self, node: Node) -> None:
        """Begin, on a thread of its own; returns at once."""
        node.controller_client = lambda: self.health.state.as_dict()
        self._thread = threading.Thread(target=self._main, args=(node,), name="temporal", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = JOIN) -> None:
        """Say goodbye to the controller, leave what is under way and end; the node still serves while this happens."""
        self._stop.set()
        thread = self._thread
        if thread is None:
            self._loop.close()
            return
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(lambda: self._stopping.set() if self._stopping else None)
        thread.join(timeout)
        if thread.is_alive():
            log.warning("Temporal's side did not end within %s s and is left behind", timeout)

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
                self._leave_nothing()
            self._stop.wait(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
        self._loop.close()

    def _leave_nothing(self) -> None:
        """Cancel the tasks that a failed side has left on the loop."""
        try:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=GOODBYE))
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
            await session.say_goodbye()
            work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            log.debug("Temporal's side has ended")


class _Session:
    """One session between start and stop: its parts are restarted, each by itself, when they fail."""

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
        self._journal = AttemptJournal(Path(node.config.metadata_log_dir))
        self._dead: frozenset[Attempt] | None = None  # left by the last start; None once they are ended
        self._activities = NodeActivities(node, port, self._pushed)
        blocking = self._activities.blocking
        engine = node.engine
        self._starter = MoveStarter(
            self._cluster,
            node.id,
            self._temporal.get,
            lambda tp, claim, reason: blocking(engine.cancel, tp, claim, reason),
            lambda tp, claim: blocking(engine.next_claim, tp, claim),
        )
        self._failures = FailureStarter(self._cluster, node.id, self._temporal.get)
        # What the metadata says of where replicas are may be out of date; the node compares and reports.
        self._link = ClusterLink(self._cluster, node, self._temporal.get, node.directories_changed, self._saw)

        loop = asyncio.get_running_loop()

        def tell(directory: LogDirectory, reason: str) -> None:
            """On whatever thread met the failure. Closed: the node stops, and the next start registers anew."""
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._link.register_again)

        # The controller takes the leader from partitions whose only replica is offline; other directories go on.
        node.on_directory_failure(tell)

    async def run(self) -> None:
        """Run all parts until cancelled."""
        self._port.attach(self._node.id, self._link, self._starter, self._failures)
        self._dead = self._journal.left_behind()
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "the client": self._temporal.run,
            "sending updates": self._link.send_updates,
            "registering": self._link.keep_registered,
            "comparing metadata": self._link.keep_agreed,
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
            self._link.heard()

    def _saw(self, run: ClusterRun | None) -> None:
        self._health.note("controller", paused_sentence(self._cluster, run))

    async def _watch_orphans(self) -> None:
        await self._temporal.get()
        await orphans.watch(self._node.engine.statuses, self._activities.attached, self._starter)

    async def _serve(self) -> None:
        """Serve both queues, with the client that there is, until cancelled or until a worker fails."""
        while True:
            client = await self._temporal.get()
            if self._dead is not None:
                await self._end_dead(client, self._dead)
                self._dead = None
            await serve(self._workers(client), self._temporal.replaced(client))

    async def _end_dead(self, client: Client, dead: Iterable[Attempt]) -> None:
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
            except Exception:
                # Ending them only saves time: the server ends them at their timeouts.
                log.exception("the last start's activity attempts are left to their timeouts")
                return
            if left:
                log.info("%d activities of the last start were ended, %d of them still open", len(left), ended)
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

    async def say_goodbye(self) -> None:
        """Tell the controller that this start of the node ends, if it can be told."""
        if not self._temporal.connected:
            return
        try:
            await self._port.leave(self._node.incarnation, GOODBYE)
        except RequestTimedOut:
            log.debug("the controller did not hear that the node stops")
