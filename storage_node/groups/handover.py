"""How a group comes to the node that coordinates it from now on.

Nodes only come to the registered ones, within a cluster generation: then groups move to the node that came and to no
other. So a node asks the others once, for each generation, for the groups that are its own now; what it gets is on its
disk before the other one drops it, and the other one serves none of it once its image has the new node. When all have
answered, that is kept on disk too (`settled`), and nobody is asked again.

Until then a group is served as soon as those have answered that can have it: in the order of the hash, the nodes below
this one, up to the first that is settled itself (with it in the cluster, nobody below it ever had the group). Until
they have, COORDINATOR_LOAD_IN_PROGRESS. So a group waits for a node that is down only if it was that node's before, and
would have been away without the new node as well. A node that never comes back is taken out of the cluster by an
operator, which begins a new generation; the offsets of its groups are gone with it.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from storage_node.errors import ErrorCode, RequestRefused
from storage_node.groups.offsets import GroupData, offset_row
from storage_node.groups.placement import ranked
from storage_node.metadata import NodeImage
from storage_node.protocol import private_client
from storage_node.protocol.private_client import PrivateCallFailed

if TYPE_CHECKING:
    from storage_node.groups.coordinator import GroupCoordinator
    from storage_node.node import Node

__all__ = ["Handover", "give", "taken"]

_log = logging.getLogger(__name__)

GIVE: Final = "groups-give"
TAKEN: Final = "groups-taken"

_TIMEOUT: Final = 5.0
_SHORTEST: Final = 0.1  # seconds between two rounds of questions; doubled up to the longest
_LONGEST: Final = 2.0
_NAMES_BYTES: Final = 32 * 1024  # of names in one call


class Handover:
    """Asks the other nodes for groups that are this node's now; everything but the calls happens on the loop."""

    PAGE: Final = 2000
    """Groups, offsets and members in one answer."""

    def __init__(self, node: Node, groups: GroupCoordinator) -> None:
        self._node = node
        self._groups = groups
        self._generation = -1
        self._answers: dict[int, bool] = {}
        """Who has answered in this generation, and whether it was settled then."""
        self._changed = asyncio.Event()

    def image_changed(self) -> None:
        self._changed.set()

    def ready(self, group: str) -> bool:
        """Whether whatever there is of a group of this node's is on this node's disk."""
        image, own = self._node.metadata.image, self._node.id
        if self._groups.settled == image.generation:
            return True
        answers = self._answers if self._generation == image.generation else {}
        for other in ranked(group, image.nodes.keys()):
            if other != own:
                if other not in answers:
                    return False
                if answers[other]:
                    return True
        return True

    async def run(self) -> None:
        """Ask, again and again, until all have answered; then wait for the next generation."""
        pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="handover")
        try:
            pause = _SHORTEST
            while True:
                self._changed.clear()
                if not self._due():
                    pause = _SHORTEST
                    await self._changed.wait()
                elif await self._round(pool):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), pause)
                    pause = min(2 * pause, _LONGEST)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _due(self) -> bool:
        image = self._node.metadata.image
        return self._node.id in image.nodes and self._groups.settled != image.generation

    async def _round(self, pool: ThreadPoolExecutor) -> list[int]:
        """Ask everybody who has not answered; answers who is left."""
        image = self._node.metadata.image
        if self._generation != image.generation:
            self._generation, self._answers = image.generation, {}
        missing = [row for id_, row in image.nodes.items() if id_ != self._node.id and id_ not in self._answers]
        answers = await asyncio.gather(*(self._ask(pool, row, image.generation) for row in missing))
        for row, settled in zip(missing, answers, strict=True):
            if settled is not None and self._generation == image.generation:
                self._answers[row.node] = settled
        self._groups.revive()
        now = self._node.metadata.image
        left = [id_ for id_ in now.nodes if id_ != self._node.id and id_ not in self._answers]
        if not left and now.generation == self._generation:
            if await self._groups.keep(["s", now.generation]) is not ErrorCode.NONE:
                return [self._node.id]
            _log.info("node %d has all its groups", self._node.id)
        return left

    async def _ask(self, pool: ThreadPoolExecutor, other: NodeImage, generation: int) -> bool | None:
        """Take over what another node has; answers whether that one is settled, None when it did not answer."""
        loop, own, after = asyncio.get_running_loop(), self._node.id, ""

        def call(op: str, **fields: Any) -> dict[str, Any]:
            answer = private_client.call(other.host, other.port, op, _TIMEOUT, node=own, **fields)
            if answer.get("node") != other.node:
                raise PrivateCallFailed(int(ErrorCode.INVALID_REQUEST), "another node is at that address")
            return answer

        try:
            while True:
                answer = await loop.run_in_executor(pool, partial(call, GIVE, generation=generation, after=after))
                names = [str(row[0]) for row in answer["groups"]]
                kept = await asyncio.gather(*(self._groups.keep(["a", *row]) for row in answer["groups"]))
                if any(code is not ErrorCode.NONE for code in kept):
                    return None
                for part in _parts(names):
                    await loop.run_in_executor(pool, partial(call, TAKEN, groups=part))
                if names:
                    _log.info("%d groups were taken over from node %d", len(names), other.node)
                if not answer["more"]:
                    return bool(answer["settled"])
                after = names[-1]
        except (OSError, PrivateCallFailed, KeyError, TypeError, ValueError) as error:
            _log.info("node %d does not say yet which groups it has: %s", other.node, error)
            return None


def _parts(names: list[str]) -> list[list[str]]:
    """Names in calls of a bounded size."""
    parts: list[list[str]] = []
    size = _NAMES_BYTES
    for name in names:
        length = 6 * len(name) + 3  # JSON writes a character in six bytes at most, or two of these
        if size + length > _NAMES_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += length
    return parts


# The other side: calls of the private API, in threads


def give(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """The groups of this node's that the asking node coordinates now. Raises RequestRefused."""
    asker, generation, after = call.get("node"), call.get("generation"), call.get("after")
    if not isinstance(asker, int) or not isinstance(generation, int) or not isinstance(after, str):
        raise RequestRefused(f"{GIVE} needs node, generation and after", ErrorCode.INVALID_REQUEST)
    found, more = _on_loop(node, node.groups.give(asker, generation, after))
    return {
        "node": node.id,
        "groups": [[name, *_contents(data)] for name, data in found],
        "more": more,
        "settled": node.groups.settled == generation,
    }


def taken(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """Groups are on another node's disk: this one drops those that it does not coordinate."""
    names = call.get("groups")
    if not isinstance(names, list):
        raise RequestRefused(f"{TAKEN} needs groups", ErrorCode.INVALID_REQUEST)
    _on_loop(node, node.groups.taken([name for name in names if isinstance(name, str)]))
    return {"node": node.id}


def _contents(data: GroupData) -> list[Any]:
    rows = [offset_row(topic, partition, offset) for (topic, partition), offset in data.offsets.copy().items()]
    return [data.row, rows]


def _on_loop(node: Node, work: Any) -> Any:
    loop = node.listener.loop
    if loop is None:
        work.close()
        raise RequestRefused("the node is starting", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return asyncio.run_coroutine_threadsafe(work, loop).result(_TIMEOUT)
