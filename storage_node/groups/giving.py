"""The giving side of a group's handover to its new coordinator (see `handover`).

A node drops its groups only for a request with a token for exactly the groups that it gave, and after the node in the
image has confirmed that it has them: a request of an unknown host cannot delete a group.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from typing import Any, Final, Protocol

from storage_node.asking import RunsLoop
from storage_node.errors import RequestRefused
from storage_node.groups.host import Groups, HandoverHost
from storage_node.groups.offsets import GroupData, offset_row, weight_of
from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import NodeImage
from storage_node.wire.client import private_client
from storage_node.wire.client.private_client import PrivateCallFailed

__all__ = ["GIVE", "KEPT", "TAKEN", "Giver", "give", "kept", "taken"]

GIVE: Final = "groups-give"
TAKEN: Final = "groups-taken"
KEPT: Final = "groups-kept"

PAGE_BYTES: Final = 1 << 20
"""About how many bytes of memory the groups of one response take."""

_TIMEOUT: Final = 5.0  # seconds for the listener's loop
_CONFIRMED: Final = 3.0  # seconds within which the node that took groups must confirm it
_VALID: Final = 60.0  # seconds for which a token is valid
_DIGITS: Final = 18  # the most digits of a token's time


class Giver:
    """Gives groups to their new coordinators. Used on the listener's loop, except where noted."""

    def __init__(self, node: HandoverHost, groups: Groups) -> None:
        self._node = node
        self._groups = groups
        self._key = secrets.token_bytes(32)

    async def give(self, asker: int, generation: int, after: str) -> tuple[list[tuple[str, GroupData]], bool]:
        """Return the groups that another node coordinates now, a page of them after a name, and whether there are more.

        Raises RequestRefused while this node's image is of another generation or does not have the node.
        """
        image: ClusterImage = self._node.metadata.image
        if not self._groups.loaded or image.cluster_generation != generation or asker not in image.nodes:
            raise RequestRefused(
                f"this node has not loaded its groups, or not applied generation {generation} with node {asker}",
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            )
        self._groups.evict()
        await self._groups.drain()
        return await asyncio.to_thread(self.page, asker, after)

    def page(self, asker: int, after: str, last: str | None = None) -> tuple[list[tuple[str, GroupData]], bool]:
        """Return the groups that another node coordinates, ordered by name: a page after a name, or all up to `last`;
        and whether there are more. Any thread may call it.
        """
        data = self._groups.data
        found: list[tuple[str, GroupData]] = []
        size = 0
        # The group with the empty name is the first.
        names = (name for name in list(data) if name > after or name == after == "")
        for name in sorted(name for name in names if last is None or name <= last):
            one = data.get(name)
            if one is not None and self._groups.owner(name) == asker:
                if last is None and size >= PAGE_BYTES:
                    return found, True
                found.append((name, one))
                size += weight_of(name, one.row) + sum(offset.weight for offset in one.offsets.copy().values())
        return found, False

    def sign(self, asker: int, generation: int, groups: list[list[Any]], until: int) -> str:
        """Return the token for groups that are given to a node: its expiry, in milliseconds, and a signature.

        The signature is over all arguments: the node keeps no tokens, and a token is valid for no other node,
        generation or content. Any thread may call it.
        """
        what = json.dumps([asker, generation, until, groups], separators=(",", ":")).encode()
        return f"{until}.{hmac.new(self._key, what, hashlib.sha256).hexdigest()}"

    async def taken(self, asker: int, generation: int, adoptions: int, names: list[str]) -> None:
        """Drop groups that another node has on disk, unless they may have changed since the check of the token.

        Raises RequestRefused, StorageError.
        """
        same = self._node.metadata.image.cluster_generation == generation and adoptions == self._groups.adoptions
        if not same or any(self._groups.owner(name) != asker for name in names):
            raise RequestRefused("the groups have changed meanwhile", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for dropped in [self._groups.put(["d", name]) for name in names]:
            await dropped


class Holds(Protocol):
    """The taking side of the handover (`storage_node.groups.handover.Handover`)."""

    def holds(self, token: str) -> bool:
        """Return whether the groups of a token are on this node's disk."""
        ...


class GivingGroups(Protocol):
    """The coordinator, as the calls of the private API see it."""

    @property
    def giver(self) -> Giver: ...

    @property
    def handover(self) -> Holds: ...

    @property
    def settled(self) -> int:
        """The cluster generation in which this node has all its groups."""
        ...

    @property
    def adoptions(self) -> int:
        """How many groups this node has adopted from other nodes."""
        ...


class GivingHost(HandoverHost, Protocol):
    """The node, as the calls of the private API see it."""

    @property
    def groups(self) -> GivingGroups: ...

    @property
    def listener(self) -> RunsLoop: ...


# Calls of the private API, in threads


def give(node: GivingHost, call: dict[str, Any]) -> dict[str, Any]:
    """Return the groups on this node that the calling node coordinates now, and a token. Raises RequestRefused."""
    asker, generation, after = call.get("node"), call.get("generation"), call.get("after")
    if not isinstance(asker, int) or not isinstance(generation, int) or not isinstance(after, str):
        raise RequestRefused(f"{GIVE} needs node, generation and after", ErrorCode.INVALID_REQUEST)
    found, more = _on_loop(node, node.groups.giver.give(asker, generation, after))
    groups = [[name, *_contents(data)] for name, data in found]
    until = round((time.monotonic() + _VALID) * 1000)
    return {
        "node": node.id,
        "groups": groups,
        "more": more,
        "settled": node.groups.settled == generation,
        "token": node.groups.giver.sign(asker, generation, groups, until),
    }


def taken(node: GivingHost, call: dict[str, Any]) -> dict[str, Any]:
    """Drop groups that the calling node has on its disk. Raises RequestRefused.

    Requires that this process has issued the token for exactly the groups that are on disk now, and that the node in
    the image confirms that it has them.
    """
    asker, generation, token = call.get("node"), call.get("generation"), call.get("token")
    after, last = call.get("after"), call.get("last")
    if (
        not (isinstance(asker, int) and isinstance(generation, int))
        or not isinstance(after, str)
        or not isinstance(last, str)
        or not isinstance(token, str)
        or not token.isascii()
    ):
        raise RequestRefused(f"{TAKEN} needs node, generation, after, last and token", ErrorCode.INVALID_REQUEST)
    until, _, _ = token.partition(".")
    if not until.isdecimal() or len(until) > _DIGITS or int(until) < time.monotonic() * 1000:
        raise RequestRefused("the token has expired", ErrorCode.INVALID_REQUEST)
    row = node.metadata.image.nodes.get(asker)
    if row is None or asker == node.id:
        raise RequestRefused(f"node {asker} is not registered, or is this node", ErrorCode.INVALID_REQUEST)
    adoptions = node.groups.adoptions
    found, _ = node.groups.giver.page(asker, after, last)
    groups = [[name, *_contents(data)] for name, data in found]
    if not groups or not hmac.compare_digest(
        token.encode(), node.groups.giver.sign(asker, generation, groups, int(until)).encode()
    ):
        raise RequestRefused("the token is not valid for these groups", ErrorCode.INVALID_REQUEST)
    _confirm(row, token)
    _on_loop(node, node.groups.giver.taken(asker, generation, adoptions, [name for name, _ in found]))
    return {"node": node.id}


def _confirm(row: NodeImage, token: str) -> None:
    """Request the confirmation of the node that it took the groups of a token. Raises RequestRefused."""
    try:
        answer = private_client.call(row.host, row.port, KEPT, _CONFIRMED, node=row.node, token=token)
    except (OSError, PrivateCallFailed, AttributeError, TypeError, ValueError) as error:
        raise RequestRefused(
            f"node {row.node} did not confirm that it took these groups: {error}", ErrorCode.INVALID_REQUEST
        ) from error
    if answer.get("node") != row.node or answer.get("kept") is not True:
        raise RequestRefused(f"node {row.node} did not take these groups", ErrorCode.INVALID_REQUEST)


def kept(node: GivingHost, call: dict[str, Any]) -> dict[str, Any]:
    """Return whether this node has taken the groups of a token. Raises RequestRefused."""
    token = call.get("token")
    if not isinstance(token, str):
        raise RequestRefused(f"{KEPT} needs a token", ErrorCode.INVALID_REQUEST)

    async def holds() -> bool:
        return node.groups.handover.holds(token)

    return {"node": node.id, "kept": _on_loop(node, holds())}


def _contents(data: GroupData) -> list[Any]:
    rows = [offset_row(topic, partition, offset) for (topic, partition), offset in data.offsets.copy().items()]
    return [data.row, rows]


def _on_loop(node: GivingHost, work: Any) -> Any:
    loop = node.listener.loop
    if loop is None:
        work.close()
        raise RequestRefused("the node is starting", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return asyncio.run_coroutine_threadsafe(work, loop).result(_TIMEOUT)
