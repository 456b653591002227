"""How a group comes to the node that coordinates it from now on.

Nodes only come to the registered ones, within a cluster generation: then groups move to the node that came and to no
other. So a node asks the others once, for each generation, for the groups that are its own now; what it gets is on its
disk before the other one drops it, and the other one serves none of it once its image has the new node. When all have
answered, that is kept on disk too (`settled`), and nobody is asked again.

A node drops nothing on a stranger's word. `groups-give` responds with a token: a signature, by a key that only the
giving process has, over the asking node, the generation, a time and everything that was given. `groups-taken` must
bring it back while all of that is still what is on disk, and then the giver itself asks the node that the image names,
at the address in the image, by `groups-kept`, whether it took this token and has its groups on disk. A lost response is
repaired by asking for the groups again: what was dropped is on the other disk, what was not is given once more.

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

from storage_node.errors import ErrorCode
from storage_node.groups.giving import GIVE, TAKEN
from storage_node.groups.placement import ranked
from storage_node.metadata import NodeImage
from storage_node.protocol import private_client
from storage_node.protocol.private_client import PrivateCallFailed

if TYPE_CHECKING:
    from storage_node.groups.coordinator import GroupCoordinator
    from storage_node.node import Node

__all__ = ["Handover"]

_log = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0
_SHORTEST: Final = 0.1  # seconds between two rounds of questions; doubled up to the longest
_LONGEST: Final = 2.0


class Handover:
    """Asks the other nodes for groups that are this node's now; everything but the calls happens on the loop."""

    def __init__(self, node: Node, groups: GroupCoordinator) -> None:
        self._node = node
        self._groups = groups
        self._generation = -1
        self._answers: dict[int, bool] = {}
        """Who has answered in this generation, and whether it was settled then."""
        self._changed = asyncio.Event()
        self._holding: dict[str, tuple[int, list[str]]] = {}
        """By token: groups that were taken over, on disk here and about to be dropped there, and the generation."""

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
                        async with asyncio.timeout(pause):
                            await self._changed.wait()
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
                kept = await asyncio.gather(*(self._groups.adopt(row) for row in answer["groups"]))
                if any(code is not ErrorCode.NONE for code in kept):
                    return None
                if names:
                    token = str(answer["token"])
                    self._holding[token] = generation, names
                    try:
                        fields = {"generation": generation, "after": after, "last": names[-1], "token": token}
                        await loop.run_in_executor(pool, partial(call, TAKEN, **fields))
                    finally:
                        del self._holding[token]
                    _log.info("%d groups were taken over from node %d", len(names), other.node)
                if not answer["more"]:
                    return bool(answer["settled"])
                after = names[-1]
        except (OSError, PrivateCallFailed, KeyError, IndexError, TypeError, ValueError) as error:
            _log.info("node %d does not say yet which groups it has: %s", other.node, error)
            return None

    def holds(self, token: str) -> bool:
        """Whether this node has all groups of a token on disk, and still coordinates them."""
        generation, names = self._holding.get(token, (-1, []))
        if generation != self._node.metadata.image.generation:
            return False
        return all(name in self._groups.data and self._groups.owner(name) == self._node.id for name in names)
