"""The handover of a group to its new coordinator.

Within a cluster generation nodes only register: groups then move to the new node and to no other. So a node requests
its groups from each other node once per generation. It has a group on its disk before the other node drops it, and the
other node stops serving the group once its image has the new node. When all nodes have responded, the node writes that
to its disk (`settled`), and sends no further requests.

An unknown host cannot make a node drop a group. The response of `groups-give` has a token: a signature, by a key that
only the giving process has, over the requesting node, the generation, a time and all groups given. `groups-taken` must
have this token, while the groups on disk are unchanged. The giver then requests a confirmation (`groups-kept`) from the
node at its address in the image: that it took this token, and has the groups on its disk. After a lost response the
node requests its groups again: those that were dropped are on its disk, the others are given once more.

A node serves a group as soon as all nodes have responded that may have it: in the order of the hash, the nodes that
rank below this one, up to the first one that is settled (while that one is in the cluster, no node below it ever had
the group). Until then requests fail with COORDINATOR_LOAD_IN_PROGRESS. So a group waits for a node that is down only if
that node was its coordinator, in which case the group would be unavailable without the new node too. An operator
removes a node that does not return, which begins a new generation; the offsets of its groups are lost.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final

from storage_node.groups.giving import GIVE, TAKEN
from storage_node.groups.host import Groups, HandoverHost
from storage_node.groups.placement import ranked
from storage_node.model.error_codes import ErrorCode
from storage_node.model.metadata import NodeImage
from storage_node.wire.client import private_client
from storage_node.wire.client.private_client import PrivateCallFailed

__all__ = ["Handover"]

_log = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0
_SHORTEST: Final = 0.1  # seconds between two rounds of requests; doubled up to the longest
_LONGEST: Final = 2.0


class Handover:
    """Requests this node's groups from the other nodes; runs on the loop, except for the calls."""

    def __init__(self, node: HandoverHost, groups: Groups) -> None:
        self._node = node
        self._groups = groups
        self._generation = -1
        self._settled: dict[int, bool] = {}
        """The nodes that have responded in this generation, and whether they were settled."""
        self._changed = asyncio.Event()
        self._holding: dict[str, tuple[int, list[str]]] = {}
        """By token: the generation and the groups that are on this disk and that the other node is about to drop."""

    def image_changed(self) -> None:
        self._changed.set()

    def ready(self, group: str) -> bool:
        """Return whether the data of a group that this node coordinates is on its disk."""
        image, own = self._node.metadata.image, self._node.id
        if self._groups.settled == image.cluster_generation:
            return True
        answers = self._settled if self._generation == image.cluster_generation else {}
        for other in ranked(group, image.nodes.keys()):
            if other != own:
                if other not in answers:
                    return False
                if answers[other]:
                    return True
        return True

    async def run(self) -> None:
        """Send requests until all nodes have responded; then wait for the next generation."""
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
        return self._node.id in image.nodes and self._groups.settled != image.cluster_generation

    async def _round(self, pool: ThreadPoolExecutor) -> list[int]:
        """Send a request to each node that has not responded; returns the nodes that remain."""
        image = self._node.metadata.image
        if self._generation != image.cluster_generation:
            self._generation, self._settled = image.cluster_generation, {}
        missing = [row for id_, row in image.nodes.items() if id_ != self._node.id and id_ not in self._settled]
        answers = await asyncio.gather(*(self._adopt_from(pool, row, image.cluster_generation) for row in missing))
        for row, settled in zip(missing, answers, strict=True):
            if settled is not None and self._generation == image.cluster_generation:
                self._settled[row.node] = settled
        self._groups.revive()
        now = self._node.metadata.image
        left = [id_ for id_ in now.nodes if id_ != self._node.id and id_ not in self._settled]
        if not left and now.cluster_generation == self._generation:
            if await self._groups.keep(["s", now.cluster_generation]) is not ErrorCode.NONE:
                return [self._node.id]
            _log.info("node %d has all its groups", self._node.id)
        return left

    async def _adopt_from(self, pool: ThreadPoolExecutor, other: NodeImage, generation: int) -> bool | None:
        """Adopt the groups that another node has for this one.

        Returns whether that node is settled, None if it did not respond.
        """
        loop, own, after = asyncio.get_running_loop(), self._node.id, ""

        def call(op: str, **fields: Any) -> dict[str, Any]:
            answer = private_client.call(other.host, other.port, op, _TIMEOUT, node=own, **fields)
            if answer.get("node") != other.node:
                raise PrivateCallFailed(int(ErrorCode.INVALID_REQUEST), "another node responded at that address")
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
                    _log.info("adopted %d groups from node %d", len(names), other.node)
                if not answer["more"]:
                    return bool(answer["settled"])
                after = names[-1]
        except (OSError, PrivateCallFailed, KeyError, IndexError, TypeError, ValueError) as error:
            _log.info("requesting groups from node %d failed, it will be repeated: %s", other.node, error)
            return None

    def holds(self, token: str) -> bool:
        """Return whether this node has all groups of a token on disk, and still coordinates them."""
        generation, names = self._holding.get(token, (-1, []))
        if generation != self._node.metadata.image.cluster_generation:
            return False
        return all(name in self._groups.data and self._groups.owner(name) == self._node.id for name in names)
