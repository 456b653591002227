"""How a node gives groups away that another one coordinates from now on (see `handover`).

Nothing is dropped on a stranger's word: only against a token, for exactly what was given, and once the node that the
image names has confirmed that it has it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from storage_node.errors import ErrorCode, RequestRefused
from storage_node.groups.offsets import GroupData, offset_row, weight_of
from storage_node.metadata import ClusterImage, NodeImage
from storage_node.protocol import private_client
from storage_node.protocol.private_client import PrivateCallFailed

if TYPE_CHECKING:
    from storage_node.groups.coordinator import GroupCoordinator
    from storage_node.node import Node

__all__ = ["GIVE", "KEPT", "TAKEN", "Giver", "give", "kept", "taken"]

GIVE: Final = "groups-give"
TAKEN: Final = "groups-taken"
KEPT: Final = "groups-kept"

PAGE_BYTES: Final = 1 << 20
"""About how much memory the groups of one answer take."""

_TIMEOUT: Final = 5.0  # seconds for the listener's loop
_CONFIRMED: Final = 3.0  # seconds within which the node that took groups says so
_VALID: Final = 60.0  # seconds for which a token is good
_DIGITS: Final = 18  # of a time in a token


class Giver:
    """Gives groups away; on the listener's loop, but for what says otherwise."""

    def __init__(self, node: Node, groups: GroupCoordinator) -> None:
        self._node = node
        self._groups = groups
        self._key = secrets.token_bytes(32)

    async def give(self, asker: int, generation: int, after: str) -> tuple[list[tuple[str, GroupData]], bool]:
        """The next groups by name that another node coordinates now, and whether there are more.

        Raises RequestRefused as long as this node does not know that.
        """
        image: ClusterImage = self._node.metadata.image
        if not self._groups.loaded or image.generation != generation or asker not in image.nodes:
            raise RequestRefused("this node does not know that yet", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self._groups.evict()
        await self._groups.drain()
        return await asyncio.to_thread(self.page, asker, after)

    def page(self, asker: int, after: str, last: str | None = None) -> tuple[list[tuple[str, GroupData]], bool]:
        """The next groups by name, all up to `last` where it is given, that another node coordinates; and whether there
        are more. May be called by any thread.
        """
        data = self._groups.data
        found: list[tuple[str, GroupData]] = []
        size = 0
        # The group of the empty name comes first.
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
        """The token for groups that are given to a node: when it ends, in milliseconds, and a signature of all that.

        So nothing is remembered of a token, and it is not of any other node, generation or content. Any thread.
        """
        what = json.dumps([asker, generation, until, groups], separators=(",", ":")).encode()
        return f"{until}.{hmac.new(self._key, what, hashlib.sha256).hexdigest()}"

    async def taken(self, asker: int, generation: int, adoptions: int, names: list[str]) -> None:
        """Another node has these on disk now: here they go, unless anything has changed since they were looked at.

        Raises RequestRefused, StorageError.
        """
        same = self._node.metadata.image.generation == generation and adoptions == self._groups.adoptions
        if not same or any(self._groups.owner(name) != asker for name in names):
            raise RequestRefused("the groups have changed meanwhile", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for dropped in [self._groups.put(["d", name]) for name in names]:
            await dropped


# Calls of the private API, in threads


def give(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """The groups of this node's that the asking node coordinates now, and a token. Raises RequestRefused."""
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


def taken(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """Groups that were given away are on the other node's disk: this one drops them. Raises RequestRefused.

    Nothing is dropped unless the token was issued here, by this process, for exactly what is on disk now, and the node
    that the image names confirms it.
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
        raise RequestRefused("the image does not have that node", ErrorCode.INVALID_REQUEST)
    adoptions = node.groups.adoptions
    found, _ = node.groups.giver.page(asker, after, last)
    groups = [[name, *_contents(data)] for name, data in found]
    if not groups or not hmac.compare_digest(
        token.encode(), node.groups.giver.sign(asker, generation, groups, int(until)).encode()
    ):
        raise RequestRefused("the token is not of what would be dropped", ErrorCode.INVALID_REQUEST)
    _confirm(row, token)
    _on_loop(node, node.groups.giver.taken(asker, generation, adoptions, [name for name, _ in found]))
    return {"node": node.id}


def _confirm(row: NodeImage, token: str) -> None:
    """Ask the node itself whether it took the groups of a token. Raises RequestRefused."""
    try:
        answer = private_client.call(row.host, row.port, KEPT, _CONFIRMED, node=row.node, token=token)
    except (OSError, PrivateCallFailed, AttributeError, TypeError, ValueError) as error:
        raise RequestRefused(f"node {row.node} does not confirm it: {error}", ErrorCode.INVALID_REQUEST) from error
    if answer.get("node") != row.node or answer.get("kept") is not True:
        raise RequestRefused(f"node {row.node} did not take these groups", ErrorCode.INVALID_REQUEST)


def kept(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """Whether this node has taken the groups of a token. Raises RequestRefused."""
    token = call.get("token")
    if not isinstance(token, str):
        raise RequestRefused(f"{KEPT} needs a token", ErrorCode.INVALID_REQUEST)

    async def holds() -> bool:
        return node.groups.handover.holds(token)

    return {"node": node.id, "kept": _on_loop(node, holds())}


def _contents(data: GroupData) -> list[Any]:
    rows = [offset_row(topic, partition, offset) for (topic, partition), offset in data.offsets.copy().items()]
    return [data.row, rows]


def _on_loop(node: Node, work: Any) -> Any:
    loop = node.listener.loop
    if loop is None:
        work.close()
        raise RequestRefused("the node is starting", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return asyncio.run_coroutine_threadsafe(work, loop).result(_TIMEOUT)
