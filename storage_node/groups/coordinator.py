"""The coordinator of this node's groups: it drives their state machines with the listener's clock, and writes their
memberships and offsets.

It runs on the listener's loop, which it never blocks: threads of the log directories write the entries. A group without
members has no state machine, only its data on disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from storage_node.errors import StorageError
from storage_node.groups.expiry import OffsetExpiry
from storage_node.groups.giving import Giver
from storage_node.groups.group import Group
from storage_node.groups.handover import Handover
from storage_node.groups.host import CoordinatorHost
from storage_node.groups.offsets import MEMBERS, Entry, GroupData, Offset, replaced_ids
from storage_node.groups.pending_replies import PendingReplies, deliver, without_assignments
from storage_node.groups.placement import Placement
from storage_node.groups.room import Commit, Room
from storage_node.groups.store import GroupStore
from storage_node.groups.values import (
    GroupRefused,
    GroupState,
    Join,
    JoinAnswer,
    Leaving,
    Reply,
    Sync,
    SyncAnswer,
)
from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import NodeImage

__all__ = ["GroupCoordinator"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

AGAIN: Final = 5.0  # seconds until a failed write is retried


class GroupCoordinator:
    """The coordinator, which runs from `attach` to `detach`. Only the loop may call its methods, except `close`."""

    def __init__(self, node: CoordinatorHost) -> None:
        self._node = node
        self._limits = node.config.groups
        self._placement = Placement()
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, tuple[float, asyncio.Handle]] = {}
        self._writing: set[asyncio.Future[None]] = set()
        self._pending_replies = PendingReplies()
        self.room = Room(self._limits.state_bytes, lambda: self._store.state if self._store is not None else None)
        self._evicted: frozenset[int] = frozenset()
        """The nodes of the last `evict`."""
        self.adoptions = 0
        """How many groups this node has adopted from other nodes."""
        self._tasks: list[asyncio.Task[None]] = []
        self._seen = ClusterImage()
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop
        self._store: GroupStore | None = None
        self.loaded = False
        self.handover = Handover(node, self)
        self.giver = Giver(node, self)
        self.expiry = OffsetExpiry(self, self._limits)

    # From start to stop

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to load the groups; until they are loaded, requests fail with COORDINATOR_LOAD_IN_PROGRESS."""
        self._loop = loop
        self._store = GroupStore(self._node.dirs.online)
        listener = self._node.metadata.listening(lambda _: self._soon(self._image_changed))
        self._stack.enter_context(listener)
        self._tasks = [loop.create_task(self._run(self._store), name="groups")]

    def detach(self) -> None:
        """Stop; the listener closes the connections of the clients that wait."""
        self._stack.close()
        for task in self._tasks:
            task.cancel()
        for _, timer in self._timers.values():
            timer.cancel()

    def close(self) -> None:
        """Finish the writes under way, if the disk responds; any thread may call it, after `detach`."""
        if self._store is not None:
            self._store.close()

    def directories_changed(self) -> None:
        """Keep a copy of the groups in a directory that has come online; any thread may call it."""
        if self._store is not None:
            self._store.directories_changed()

    def _soon(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    async def _run(self, store: GroupStore) -> None:
        try:
            await asyncio.to_thread(store.load)
        except StorageError as error:
            # The failure of the last log directory stops the node; until then it must not serve stale offsets.
            _log.error("loading the groups' offsets failed: %s", error)
            return
        except Exception:
            _log.exception("loading the groups' offsets failed")
            return
        self.loaded = True
        await self._forget_replaced(self._node.metadata.image)
        self._image_changed()
        self.revive()
        self._tasks.append(self._loop.create_task(self.expiry.run(), name="expire-offsets"))
        await self.handover.run()

    def revive(self) -> None:
        """Create the state machines of memberships from the disk or another node: their session timeouts begin."""
        for name in list(self.data):
            if self.owner(name) == self._node.id:
                self._with_members(name)

    def _with_members(self, name: str) -> Group | None:
        """Return a group of this node with members. Whoever asks before `revive` creates its state machine."""
        data = self.data.get(name)
        if name not in self._groups and data is not None and data.row is not None and data.row[MEMBERS]:
            self._conclude(self._open(name))
        return self._groups.get(name)

    # Where a group is

    @property
    def data(self) -> dict[str, GroupData]:
        """The data on disk, by group."""
        return self._store.state.groups if self._store is not None else {}

    @property
    def settled(self) -> int:
        """The cluster generation in which this node has all its groups."""
        return self._store.state.settled if self._store is not None else -1

    def owner(self, group: str) -> int | None:
        """Return which of the registered nodes coordinates a group."""
        return self._placement.coordinator(group, self._node.metadata.image.nodes.keys())

    def is_own(self, group: str) -> bool:
        """Return whether this node coordinates a group."""
        return self.owner(group) == self._node.id

    def find(self, group: str) -> NodeImage | None:
        """Return a group's coordinator; None if it is fenced or no node is registered."""
        owner = self.owner(group)
        row = self._node.metadata.image.nodes.get(owner) if owner is not None else None
        return None if row is None or row.fenced else row

    def check(self, group: str) -> None:
        """Raise GroupRefused for a group that this node does not serve, or not yet."""
        owner = self.owner(group)
        if owner is None:
            raise GroupRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if owner != self._node.id:
            raise GroupRefused(ErrorCode.NOT_COORDINATOR)
        if not self.loaded or not self.handover.ready(group):
            raise GroupRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def exists(self, group: str) -> bool:
        return group in self._groups or group in self.data

    def look(self, group: str) -> Group | None:
        """Return a group; None if it does not exist. Changes of a group without members are not written."""
        return self._groups.get(group) or self.at_rest(group)

    def at_rest(self, group: str) -> Group | None:
        """Return a group from its data on disk; None if it has none. Any thread may call it."""
        return self._make(group) if group in self.data else None

    def listed(self) -> tuple[dict[str, tuple[GroupState, str]], list[tuple[str, GroupData]]]:
        """Return the state and protocol type ("" for none) of groups with members, and the data on disk of all groups,
        those of other nodes included. Both are shallow copies.
        """
        live = {name: (group.state, group.protocol_type or "") for name, group in self._groups.items()}
        return live, list(self.data.items())

    def live(self, name: str) -> Group | None:
        """Return a group with members or a member that is joining; None for any other group."""
        return self._groups.get(name)

    def _make(self, name: str) -> Group:
        data = self.data.get(name)
        if data is None or data.row is None:
            return Group(name, self._limits)
        return Group.restored(name, self._limits, data.row, self._loop.time())

    def _open(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._make(name)
        return group

    # The members' requests

    async def join(self, name: str, ask: Join) -> JoinAnswer:
        """Handle JoinGroup; raises GroupRefused."""
        self.check(name)
        if not self._limits.min_session <= ask.session <= self._limits.max_session:
            return JoinAnswer(ErrorCode.INVALID_SESSION_TIMEOUT, ask.member_id)
        if ask.member_id and not self.exists(name):
            return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, ask.member_id)
        if not self.room.has_for(ask, self._groups.get(name), self.data.get(name)):
            return JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED)
        group = self._open(name)
        token: asyncio.Future[JoinAnswer] = self._loop.create_future()
        self._conclude(group, group.join(ask, token, self._loop.time()))
        return await self._wait(group, token)

    async def sync(self, name: str, ask: Sync) -> SyncAnswer:
        """Handle SyncGroup; raises GroupRefused."""
        self.check(name)
        group = self._with_members(name)
        if group is None:
            return SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        if ask.assignments and not self.room.has_to_keep(ask, group, self.data.get(name)):
            return SyncAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)
        token: asyncio.Future[SyncAnswer] = self._loop.create_future()
        self._conclude(group, group.sync(ask, token, self._loop.time()))
        return await self._wait(group, token)

    async def _wait(self, group: Group, token: asyncio.Future[T]) -> T:
        try:
            return await token
        except asyncio.CancelledError:
            self._conclude(group, group.gone(token, self._loop.time()))
            raise

    def heartbeat(self, name: str, member: str, instance: str | None, generation: int) -> ErrorCode:
        """Handle Heartbeat; raises GroupRefused."""
        self.check(name)
        group = self._with_members(name)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(member, instance, generation, self._loop.time())

    def leave(self, name: str, leaving: list[Leaving]) -> list[ErrorCode]:
        """Handle LeaveGroup; returns a result for each member. Raises GroupRefused."""
        self.check(name)
        group = self._with_members(name)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        results, replies = group.leave(leaving, self._loop.time())
        self._conclude(group, replies)
        return results

    # Offsets

    def may_commit(self, name: str, member: str, instance: str | None, generation: int) -> ErrorCode:
        """Return the error of a commit by a member, NONE if it is allowed; raises GroupRefused."""
        self.check(name)
        group = self.look(name)
        if group is None:
            # A commit by an admin client, or by a consumer without a subscription, creates the group.
            return ErrorCode.NONE if generation < 0 else ErrorCode.GROUP_ID_NOT_FOUND
        return group.may_commit(member, instance, generation, self._loop.time())

    async def commit(self, name: str, commit: Commit) -> ErrorCode:
        """Write offsets; returns NONE once they are on disk, INVALID_COMMIT_OFFSET_SIZE without room for new ones."""
        if not commit.rows:
            return ErrorCode.NONE
        if not self.room.has(commit.more, commit.host):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        with self.room.reserved(commit.more, commit.host):
            return await self.keep(["o", name, commit.rows])

    async def remove_offsets(self, name: str, keys: Iterable[tuple[str, int]]) -> ErrorCode:
        """Remove offsets of a group; returns NONE once that is on disk."""
        rows = [list(key) for key in keys]
        return await self.keep(["x", name, rows]) if rows else ErrorCode.NONE

    async def delete(self, name: str) -> ErrorCode:
        """Delete a group without members, with its offsets; returns NONE once that is on disk."""
        group = self._groups.get(name)
        if group is not None and group.idle:
            self._close(group, ErrorCode.UNKNOWN_MEMBER_ID)
        return await self.keep(["d", name])

    def offsets(self, name: str) -> dict[tuple[str, int], Offset]:
        """Return a group's committed offsets, except those of topics that were deleted and created again."""
        data = self.data.get(name)
        if data is None:
            return {}
        topics = self._node.metadata.image.topics
        found = data.offsets.copy()
        stale = [key for key, one in found.items() if key[0] in topics and topics[key[0]].id != one.topic_id]
        for key in stale:
            del found[key]
        return found

    # Writing

    async def adopt(self, row: list[Any]) -> ErrorCode:
        """Write a group of another node: its id, membership and offsets."""
        self.adoptions += 1
        return await self.keep(["a", *row])

    async def keep(self, entry: Entry) -> ErrorCode:
        """Write an entry; returns NONE once it is on disk, else the error for the client."""
        try:
            await asyncio.shield(self._put(entry))
        except StorageError as error:
            _log.error("writing a group's entry failed: %s", error)
            full = error.__cause__ is not None and bool(self._node.dirs.online())
            return ErrorCode.COORDINATOR_NOT_AVAILABLE if full else ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    def put(self, entry: Entry) -> asyncio.Future[None]:
        """Write an entry; the future is done once it is on disk, with a StorageError if the write fails."""
        future = self._put(entry)
        future.add_done_callback(_log_failure)
        return future

    def _put(self, entry: Entry) -> asyncio.Future[None]:
        assert self._store is not None
        future: asyncio.Future[None] = self._loop.create_future()
        self._writing.add(future)
        future.add_done_callback(self._writing.discard)
        self._store.put(entry, lambda error: self._soon(partial(_resolve, future, error)))
        return future

    async def drain(self) -> None:
        """Wait for the writes under way."""
        if self._writing:
            await asyncio.wait(list(self._writing))

    def _conclude(self, group: Group, replies: list[Reply] | None = None) -> None:
        """Send the responses of a step, once the new membership is on disk, and schedule the next deadline."""
        if self._groups.get(group.name) is group:
            self.room.takes(group)
        if group.dirty:
            group.dirty = False
            pending = self._pending_replies.begin(group.name, replies or [])
            kept = self._put(["g", group.name, group.row(self.expiry.now())])
            kept.add_done_callback(partial(self._kept, group, group.generation, pending))
        else:
            deliver(self._pending_replies.later(group.name, replies or []))
            self._close_if_idle(group)
        self._arm(group)

    def _kept(self, group: Group, generation: int, replies: list[Reply], kept: asyncio.Future[None]) -> None:
        self._pending_replies.end(group.name, replies)
        error = kept.exception()
        if error is None:
            deliver(replies)
            self._close_if_idle(group)
            return
        _log.error("writing the membership of group %.100r failed: %s", group.name, error)
        deliver(without_assignments(replies))
        if group.generation == generation and self._groups.get(group.name) is group:
            if group.idle:
                self._loop.call_later(AGAIN, self._retry_write, group)  # the disk still has its former members
            else:
                self._conclude(group, group.rebalance(self._loop.time()))

    def _retry_write(self, group: Group) -> None:
        if self._groups.get(group.name) is group:
            group.dirty = True
            self._conclude(group)

    def _close_if_idle(self, group: Group) -> None:
        """Drop the state machine of a group without members."""
        if group.idle and not group.dirty and self._groups.get(group.name) is group:
            self._close(group, ErrorCode.UNKNOWN_MEMBER_ID)

    def _close(self, group: Group, error: ErrorCode) -> None:
        del self._groups[group.name]
        self.room.lets_go(group.name)
        _, timer = self._timers.pop(group.name, (0.0, None))
        if timer is not None:
            timer.cancel()
        deliver(group.abandon(error))

    def _arm(self, group: Group) -> None:
        """Schedule a group's next deadline; `_tick` detects one that was extended meanwhile."""
        deadline = group.deadline
        # The time is kept beside the handle, since uvloop's handle of an immediate callback has none.
        when, timer = self._timers.get(group.name, (math.inf, None))
        if deadline is None or self._groups.get(group.name) is not group or when <= deadline:
            return
        if timer is not None:
            timer.cancel()
        self._timers[group.name] = deadline, self._loop.call_at(deadline, self._tick, group)

    def _tick(self, group: Group) -> None:
        if self._groups.get(group.name) is group:
            self._timers.pop(group.name, None)
            self._conclude(group, group.tick(self._loop.time()))

    # Changes of the metadata

    def _image_changed(self) -> None:
        if not self.loaded:
            return
        self.evict()
        self.handover.image_changed()
        image, before = self._node.metadata.image, self._seen
        self._seen = image
        gone = {topic_id for topic_id in image.gone if topic_id not in before.gone}
        if image.topics is not before.topics:
            # The image may not record the deletion any more: a new topic with the same name shows it too.
            known = image.topics
            gone |= {one.id for name, one in before.topics.items() if name in known and known[name].id != one.id}
        self._forget(gone)

    def _forget(self, ids: set[str]) -> None:
        if ids and self.data:
            self._put(["t", sorted(ids)]).add_done_callback(_log_failure)

    async def _forget_replaced(self, image: ClusterImage) -> None:
        """Remove the offsets of topics that were deleted and created again while this node was down."""
        topics, self._seen = image.topics, replace(image, gone={})

        self._forget(await asyncio.to_thread(replaced_ids, self.data, topics))

    def evict(self) -> None:
        """Close the groups that another node coordinates now; it will request their data on disk."""
        nodes = frozenset(self._node.metadata.image.nodes)
        if nodes == self._evicted:
            return
        self._evicted = nodes
        for group in list(self._groups.values()):
            if self.owner(group.name) != self._node.id:
                self._close(group, ErrorCode.NOT_COORDINATOR)


def _resolve(future: asyncio.Future[None], error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _log_failure(future: asyncio.Future[None]) -> None:
    error = future.exception()
    if error is not None:
        _log.error("writing the groups' offsets failed: %s", error)
