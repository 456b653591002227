"""The node's link to the `Cluster` workflow: batched updates, images in the replies, and registration.

A node registers when it starts, when the controller does not know its incarnation (it was fenced, or the controller
lost its state), and when another `Cluster` has replaced the one with which it registered.
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

from activities.controller import cluster_run
from activities.controller.batching import Batcher, GaveUp, Rejected
from activities.controller.cluster_run import ClusterRun
from storage_node.model.command_rows import encode
from storage_node.model.commands import AlterReassignments, Command, QueryVersion, Registration
from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ClusterImage
from storage_node.publisher.metadata_publisher import DIRECTORIES_PATIENCE
from workflows.model import names

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

WATCH = 3.0  # seconds between two checks which `Cluster` is open
PATIENCE = 30.0  # seconds for the response to one registration
PAUSE = 1.0  # seconds before a failed registration is retried; doubles each time
LONGEST_PAUSE = 5.0

#: The controller's errors for an incarnation that it does not know.
UNREGISTERED = (int(ErrorCode.BROKER_ID_NOT_REGISTERED), int(ErrorCode.STALE_BROKER_EPOCH))

#: The server's error types for an update that the workflow's handler has not completed: it is sent again.
NOT_CARRIED_OUT = ("AcceptedUpdateCompletedWorkflow", "UnprocessedUpdate")


class ClusterLink:
    """The link, on the client's event loop. It calls `registered` after every accepted registration, and `seen` with
    the open `Cluster` at each check.
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
        """Send submitted commands until cancelled. Run it again if it fails."""
        await self._batcher.run()

    async def submit(self, command: Command, seconds: float | None, *, first: bool = False) -> list[Any]:
        """Return the results of one command, sent once the node is registered; raises GaveUp after `seconds`, or
        Rejected.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                async with asyncio.timeout(left):
                    await self._registered.wait()
            except TimeoutError:
                raise GaveUp("the node is not registered with the controller", sent=False) from None
            left = None if deadline is None else deadline - time.monotonic()
            results = await self._request(command, left, first=first)
            if not _unknown(results):
                return results
            self._registered.clear()
            self._must_register.set()

    async def _request(self, command: Command, seconds: float | None, *, first: bool = False) -> list[Any]:
        reply = await self._batcher.submit(command, seconds, first=first)
        return list(reply["results"])

    async def _send(self, number: int, commands: list[Command]) -> list[dict[str, Any]]:
        client = await self._client()
        registers = any(isinstance(each, Registration) for each in commands)
        generation, version = self._node.metadata.image.pair if registers else self._node.metadata_check.pair
        payload = {
            "node": self._node.id,
            "incarnation": self._node.incarnation,
            "number": number,
            "generation": generation,
            "version": version,
            "commands": [encode(command) for command in commands],
        }
        handle = client.get_workflow_handle(names.cluster_id(self._cluster))
        # A run of the workflow recognizes a repeated update by its id, the runs that follow a batch by its number.
        update = f"{self._node.id}/{self._node.incarnation}/{number}"
        try:
            reply = await handle.execute_update("submit", payload, id=update, result_type=dict[str, Any])
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.type not in NOT_CARRIED_OUT:
                raise Rejected(str(cause)) from error
            raise
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            # The SDK hides the cancel of this task in this error; treated as a failure, it would prevent a stop.
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise asyncio.CancelledError from error
            raise
        if image := reply.get("image"):
            # A reassignment may create a thousand replicas on a node at once, which the response does not wait for.
            if all(isinstance(command, AlterReassignments) for command in commands):
                await self._publish(image)
            else:
                await asyncio.to_thread(self._node.apply_images, [image], DIRECTORIES_PATIENCE)
        if digest := reply.get("digest"):
            look = self._node.metadata_check.look
            await asyncio.to_thread(look, reply["generation"], reply["version"], digest)
        if reply.get("register") and not registers:
            self._registered.clear()
            self._must_register.set()
        return [{"results": one if isinstance(one, list) else [one]} for one in reply["results"]]

    async def _publish(self, image: str) -> None:
        """Apply an image; return once the node responds by it, while new followers are still being created."""
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
            log.error("applying an image failed: %s", error)

    async def keep_metadata_equal(self) -> None:
        """Make the controller send the whole image, or collect, if the node's metadata differs from the controller's,
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
                await self.submit(QueryVersion(), PATIENCE)

    # Registration

    def register_again(self) -> None:
        """Register again: the controller has requested it, or may accept it now."""
        self._must_register.set()

    def retry_registration(self) -> None:
        """Retry a delayed registration: the controller has pushed to this node, and may accept it now."""
        if not self._registered.is_set():
            self._must_register.set()

    async def keep_registered(self) -> None:
        """Register whenever it is necessary, until cancelled. Run it again if it fails: it registers once more."""
        before: ClusterRun | None = None  # The run with which the node is registered, as seen last.
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
            # Pause in any case, so that a controller that requests it repeatedly does not cause endless registrations.
            await asyncio.sleep(0 if before else PAUSE / 4)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH if before else pause):
                    await self._must_register.wait()

    async def _current_cluster(self) -> ClusterRun | None:
        """Return the open `Cluster`, None if there is none or the server is unavailable."""
        try:
            run = await cluster_run.current(await self._client(), self._cluster)
        except RPCError:
            return None
        self._on_seen(run)
        return run

    async def _register(self) -> bool:
        one = await asyncio.to_thread(self._node.registration, with_image=False)
        try:
            result = (await self._request(one, PATIENCE, first=True))[0]
            if result.get("wants_image"):  # The controller collects the nodes' images.
                one = await asyncio.to_thread(self._node.registration)
                result = (await self._request(one, PATIENCE, first=True))[0]
        except (GaveUp, Rejected) as error:
            log.warning("node %s is not registered yet: %s", one.node, error)
            return False
        if result.get("error"):
            level = logging.INFO if result["error"] == ErrorCode.REQUEST_TIMED_OUT else logging.ERROR
            log.log(level, "node %s is not registered: %s", one.node, result.get("message"))
            return False
        log.info("node %s is registered with broker epoch %s", one.node, result.get("value"))
        return True


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of a loop from any thread; do nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


def _unknown(results: list[Any]) -> bool:
    return bool(results) and all(isinstance(one, dict) and one.get("error") in UNREGISTERED for one in results)
