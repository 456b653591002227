"""This node's line to the `Cluster` workflow: batched updates, images in the answers, and registering whenever it has
to.

A node registers when it starts, when the controller says that it does not know this start of it (it was fenced, or
the controller lost its memory), and when another `Cluster` has taken the place of the one it registered with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities import cluster_run
from activities.batching import Batcher, Command, GaveUp, Rejected
from activities.cluster_run import ClusterRun
from activities.replica_reports import report_rows
from storage_node.errors import ErrorCode
from storage_node.images import DIRECTORIES_PATIENCE
from storage_node.metadata import ClusterImage
from storage_node.ports import Registration
from workflows.model import names

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

WATCH = 3.0  # seconds between two looks at which `Cluster` there is
PATIENCE = 30.0  # seconds for the answer to one registration
PAUSE = 1.0  # seconds before a registration that was not taken is tried again; doubles while it is not
LONGEST_PAUSE = 5.0

#: Errors by which the controller says that it does not know this start of the node.
UNREGISTERED = (int(ErrorCode.BROKER_ID_NOT_REGISTERED), int(ErrorCode.STALE_BROKER_EPOCH))

#: The server's own words for an update that never reached the workflow's handler, or not its end: sent again.
NOT_CARRIED_OUT = ("AcceptedUpdateCompletedWorkflow", "UnprocessedUpdate")
#: The command that may give a node a thousand new replicas at once.
REASSIGN = "alter_reassignments"
REGISTER = "register"


class ClusterLink:
    """Lives on the client's event loop. Calls `registered` after every accepted registration, and `seen` with the open
    `Cluster` at each look.
    """

    def __init__(
        self,
        cluster: str,
        node: Node,
        client: Callable[[], Awaitable[Client]],
        registered: Callable[[], None] = lambda: None,
        seen: Callable[[ClusterRun | None], None] = lambda run: None,
    ) -> None:
        self._cluster, self._node, self._client = cluster, node, client
        self._on_registered, self._on_seen = registered, seen
        self._batcher = Batcher(self._send)
        self._must_register = asyncio.Event()
        self._must_register.set()
        self._registered = asyncio.Event()
        self._wants_whole = asyncio.Event()
        self._applying: set[asyncio.Future[tuple[int, int]]] = set()

    async def send_updates(self) -> None:
        """Send what is submitted, until cancelled. Run it again if it fails."""
        await self._batcher.run()

    async def submit(self, command: Command, seconds: float | None, *, first: bool = False) -> list[Any]:
        """The results of one command, after the node is registered; raises GaveUp after `seconds`, or Rejected."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                async with asyncio.timeout(left):
                    await self._registered.wait()
            except TimeoutError:
                raise GaveUp("the node is not registered with the controller", sent=False) from None
            left = None if deadline is None else deadline - time.monotonic()
            results = await self._ask(command, left, first=first)
            if not _unknown(results):
                return results
            self._registered.clear()
            self._must_register.set()

    async def _ask(self, command: Command, seconds: float | None, *, first: bool = False) -> list[Any]:
        answer = await self._batcher.submit(command, seconds, first=first)
        return list(answer["results"])

    async def _send(self, number: int, commands: list[Command]) -> list[dict[str, Any]]:
        client = await self._client()
        registers = any(each.get("do") == REGISTER for each in commands)
        generation, version = self._node.metadata.image.age if registers else self._node.metadata_check.pair
        payload = {
            "node": self._node.id,
            "incarnation": self._node.incarnation,
            "number": number,
            "generation": generation,
            "version": version,
            "commands": commands,
        }
        handle = client.get_workflow_handle(names.cluster_id(self._cluster))
        # One run of the workflow knows an update by its id, those that follow know a batch by its number.
        update = f"{self._node.id}/{self._node.incarnation}/{number}"
        try:
            answer = await handle.execute_update("submit", payload, id=update, result_type=dict[str, Any])
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.type not in NOT_CARRIED_OUT:
                raise Rejected(str(cause)) from error
            raise
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            # The SDK hides that it was this task that was cancelled; taken for a failure, a stop would wait in vain.
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise asyncio.CancelledError from error
            raise
        if image := answer.get("image"):
            if all(command.get("do") == REASSIGN for command in commands):
                await self._publish(image)
            else:
                await asyncio.to_thread(self._node.apply_images, [image], DIRECTORIES_PATIENCE)
        if digest := answer.get("digest"):
            look = self._node.metadata_check.look
            await asyncio.to_thread(look, answer["generation"], answer["version"], digest)
        if answer.get("register") and not registers:
            self._registered.clear()
            self._must_register.set()
        return [{"results": one if isinstance(one, list) else [one]} for one in answer["results"]]

    async def _publish(self, image: str) -> None:
        """Apply an image; returns when the node answers by it, though new followers are still being made."""
        loop = asyncio.get_running_loop()
        published = asyncio.Event()

        def look(_image: ClusterImage) -> None:
            loop.call_soon_threadsafe(published.set)

        with self._node.metadata.listening(look):
            work = asyncio.ensure_future(asyncio.to_thread(self._node.apply_images, [image], DIRECTORIES_PATIENCE))
            seen = asyncio.ensure_future(published.wait())
            try:
                await asyncio.wait({work, seen}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                seen.cancel()
        if work.done():
            work.result()
        else:
            self._applying.add(work)
            work.add_done_callback(self._applied)

    def _applied(self, work: asyncio.Future[tuple[int, int]]) -> None:
        self._applying.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("an image could not be applied to its end: %s", error)

    async def keep_agreed(self) -> None:
        """Have the controller send the whole image, or collect, where the node's metadata is not the controller's,
        until cancelled: a batch requests it by its pair, see `MetadataCheck.pair`.
        """
        loop = asyncio.get_running_loop()
        check = self._node.metadata_check
        check.request_whole = lambda: _set(loop, self._wants_whole)
        while True:
            try:
                async with asyncio.timeout(WATCH):
                    await self._wants_whole.wait()
            except TimeoutError:
                check.request_again()
                continue
            self._wants_whole.clear()
            with contextlib.suppress(GaveUp, Rejected):
                await self.submit({"do": "tell_version"}, PATIENCE)

    # Registration

    def register_again(self) -> None:
        """The controller wants to hear from the node anew, or might take it now."""
        self._must_register.set()

    def heard(self) -> None:
        """The controller has pushed to this node: if a registration was put off, it may be taken now."""
        if not self._registered.is_set():
            self._must_register.set()

    async def keep_registered(self) -> None:
        """Register whenever it is necessary, until cancelled. Run it again if it fails: it registers once more."""
        before: ClusterRun | None = None  # as seen last, and registered with
        pause = PAUSE
        while True:
            run = await self._current_cluster()
            if run is None:
                before = None
            elif self._must_register.is_set() or before is None or run.replaces(before):
                self._must_register.clear()
                if await self._register():
                    before, pause = run, PAUSE
                    self._registered.set()
                    self._on_registered()
                else:
                    before, pause = None, min(LONGEST_PAUSE, 2 * pause)
            else:
                before = run
            # A pause in any case, so that a controller which asks again and again is not answered without end.
            await asyncio.sleep(0 if before else PAUSE / 4)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH if before else pause):
                    await self._must_register.wait()

    async def _current_cluster(self) -> ClusterRun | None:
        """The `Cluster` that runs now, None when there is none or nobody answers."""
        try:
            run = await cluster_run.current(await self._client(), self._cluster)
        except RPCError:
            return None
        self._on_seen(run)
        return run

    async def _register(self) -> bool:
        one = await asyncio.to_thread(self._node.registration, with_image=False)
        cluster = self._node.metadata.image.cluster
        try:
            result = (await self._ask(registration_command(one, cluster), PATIENCE, first=True))[0]
            if result.get("wants_image"):  # it collects what the nodes know
                one = await asyncio.to_thread(self._node.registration)
                result = (await self._ask(registration_command(one, cluster), PATIENCE, first=True))[0]
        except (GaveUp, Rejected) as error:
            log.warning("node %s is not registered yet: %s", one.node, error)
            return False
        if result.get("error"):
            level = logging.INFO if result["error"] == ErrorCode.REQUEST_TIMED_OUT else logging.ERROR
            log.log(level, "node %s is not registered: %s", one.node, result.get("message"))
            return False
        log.info("node %s is registered with broker epoch %s", one.node, result.get("value"))
        return True


def registration_command(one: Registration, cluster: str = "") -> Command:
    """A node's registration as the controller reads it; `cluster` is that of the node's image, "" without one.

    The image itself is large, and stays in the run's history: the node sends it only when the controller requests it.
    """
    return {
        "do": REGISTER,
        "node": one.node,
        "incarnation": one.incarnation,
        "host": one.host,
        "port": one.port,
        "rack": one.rack,
        # One that could not be read at the start has no id: what it holds is as offline as if it were named.
        "directories": [[each.id, each.path, int(each.online)] for each in one.directories if each.id],
        "generation": one.known_generation,
        "version": one.known_version,
        "image": one.image,
        **({"cluster": cluster} if cluster else {}),
        "lost": [
            [row.partition.topic, row.partition.partition, row.topic_id, row.directory_id, row.generation]
            for row in one.lost
        ],
        **({"offline": report_rows(one.offline)} if one.offline else {}),
        **({"unclean": True} if one.unclean else {}),
    }


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of a loop from any thread; do nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


def _unknown(results: list[Any]) -> bool:
    return bool(results) and all(isinstance(one, dict) and one.get("error") in UNREGISTERED for one in results)
