"""The groups that this node coordinates: drives their state machines with the listener's clock, and keeps what they and
their offsets come to.

All of it happens on the listener's loop, which it never blocks: entries are written in the metadata directory's pool.
A group in which nobody is has no state machine, only what is on disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from storage_node.errors import ErrorCode, StorageError
from storage_node.groups.expiry import OffsetExpiry
from storage_node.groups.giving import Giver
from storage_node.groups.group import Group
from storage_node.groups.handover import Handover
from storage_node.groups.offsets import MEMBERS, Entry, GroupData, Offset, replaced_ids
from storage_node.groups.placement import Placement
from storage_node.groups.room import Commit, Room
from storage_node.groups.store import GroupStore
from storage_node.groups.telling import Untold, deliver, without_assignments
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
from storage_node.metadata import ClusterImage, NodeImage

if TYPE_CHECKING:
    from storage_node.node import Node

__all__ = ["GroupCoordinator"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

AGAIN: Final = 5.0  # seconds until what could not be kept is tried again


class GroupCoordinator:
    """From `attach` to `detach`; every method but `close` is called on the loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._limits = node.config.groups
        self._placement = Placement()
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, tuple[float, asyncio.Handle]] = {}
        self._writing: set[asyncio.Future[None]] = set()
        self._untold = Untold()
        self.room = Room(self._limits.state_bytes, lambda: self._store.state if self._store is not None else None)
        self._evicted: frozenset[int] = frozenset()
        """The nodes among which groups were last divided."""
        self.adoptions = 0
        """How often a group has come from another node."""
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
        """Begin to read what is on disk; until that is done, groups are answered COORDINATOR_LOAD_IN_PROGRESS."""
        self._loop = loop
        self._store = GroupStore(self._node.dirs.directories)
        listener = self._node.metadata.listening(lambda _: self._soon(self._image_changed))
        self._stack.enter_context(listener)
        self._tasks = [loop.create_task(self._run(self._store), name="groups")]

    def detach(self) -> None:
        """The listener stops: whoever waits loses the connection."""
        self._stack.close()
        for task in self._tasks:
            task.cancel()
        for _, timer in self._timers.values():
            timer.cancel()

    def close(self) -> None:
        """What is being written is finished, as long as the disk answers; called by any thread, after `detach`."""
        if self._store is not None:
            self._store.close()

    def _soon(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    async def _run(self, store: GroupStore) -> None:
        try:
            await asyncio.wrap_future(store.directory.submit(store.load))
        except StorageError as error:
            # The metadata directory's failure ends the node; until then nothing is served that may be old.
            _log.error("the groups' offsets cannot be read: %s", error)
            return
        except Exception:
            _log.exception("the groups' offsets cannot be read")
            return
        self.loaded = True
        await self._forget_replaced(self._node.metadata.image)
        self._image_changed()
        self.revive()
        self._tasks.append(self._loop.create_task(self.expiry.run(), name="expire-offsets"))
        await self.handover.run()

    def revive(self) -> None:
        """Memberships that came from the disk or from another node get their state machines: time runs for them."""
        for name, data in list(self.data.items()):
            if (
                data.row is not None
                and data.row[MEMBERS]
                and name not in self._groups
                and self.owner(name) == self._node.id
            ):
                self._conclude(self._open(name))

    # Where a group is

    @property
    def data(self) -> dict[str, GroupData]:
        """What is on disk, by group."""
        return self._store.state.groups if self._store is not None else {}

    @property
    def settled(self) -> int:
        """The cluster generation for which this node has all its groups."""
        return self._store.state.settled if self._store is not None else -1

    def owner(self, group: str) -> int | None:
        """The node that coordinates a group, among all that are registered."""
        return self._placement.coordinator(group, self._node.metadata.image.nodes.keys())

    def is_own(self, group: str) -> bool:
        """Whether this node coordinates a group."""
        return self.owner(group) == self._node.id

    def find(self, group: str) -> NodeImage | None:
        """The coordinator, None while it is down or there is none."""
        owner = self.owner(group)
        row = self._node.metadata.image.nodes.get(owner) if owner is not None else None
        return None if row is None or row.fenced else row

    def check(self, group: str) -> None:
        """Raises GroupRefused for a group that is not served here, or not yet."""
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
        """A group as it is; None when there is none. Changes to one without members are not kept."""
        return self._groups.get(group) or self.at_rest(group)

    def at_rest(self, group: str) -> Group | None:
        """A group as it is on disk; None when it is not there. May be called by any thread."""
        return self._make(group) if group in self.data else None

    def listed(self) -> tuple[dict[str, tuple[GroupState, str]], list[tuple[str, GroupData]]]:
        """State and protocol type ("" for none) of groups with members, and what is on disk of all; of other nodes' as
        well. Neither changes any more, but for what it refers to.
        """
        live = {name: (group.state, group.protocol_type or "") for name, group in self._groups.items()}
        return live, list(self.data.items())

    def live(self, name: str) -> Group | None:
        """A group that has members, or is about to; None for any other."""
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

    # What members ask

    async def join(self, name: str, ask: Join) -> JoinAnswer:
        """JoinGroup; raises GroupRefused."""
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
        """SyncGroup; raises GroupRefused."""
        self.check(name)
        group = self._groups.get(name)
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
        """Heartbeat; raises GroupRefused."""
        self.check(name)
        group = self._groups.get(name)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(member, instance, generation, self._loop.time())

    def leave(self, name: str, leaving: list[Leaving]) -> list[ErrorCode]:
        """LeaveGroup: a result for each; raises GroupRefused."""
        self.check(name)
        group = self._groups.get(name)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        results, replies = group.leave(leaving, self._loop.time())
        self._conclude(group, replies)
        return results

    # Offsets

    def may_commit(self, name: str, member: str, instance: str | None, generation: int) -> ErrorCode:
        """Whether offsets may be committed to a group; raises GroupRefused."""
        self.check(name)
        group = self.look(name)
        if group is None:
            # An admin client or a consumer that only assigns makes a group by committing to it.
            return ErrorCode.NONE if generation < 0 else ErrorCode.GROUP_ID_NOT_FOUND
        return group.may_commit(member, instance, generation, self._loop.time())

    async def commit(self, name: str, commit: Commit) -> ErrorCode:
        """Keep offsets; NONE when they are on disk, INVALID_COMMIT_OFFSET_SIZE when there is no room for new ones."""
        if not commit.rows:
            return ErrorCode.NONE
        if not self.room.has(commit.more, commit.host):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        with self.room.reserved(commit.more, commit.host):
            return await self.keep(["o", name, commit.rows])

    async def remove_offsets(self, name: str, keys: Iterable[tuple[str, int]]) -> ErrorCode:
        """Remove offsets of a group."""
        rows = [list(key) for key in keys]
        return await self.keep(["x", name, rows]) if rows else ErrorCode.NONE

    async def delete(self, name: str) -> ErrorCode:
        """Delete a group without members, with its offsets."""
        group = self._groups.get(name)
        if group is not None and group.idle:
            self._close(group, ErrorCode.UNKNOWN_MEMBER_ID)
        return await self.keep(["d", name])

    def offsets(self, name: str) -> dict[tuple[str, int], Offset]:
        """A group's committed offsets, of topics that are still the same."""
        data = self.data.get(name)
        if data is None:
            return {}
        topics = self._node.metadata.image.topics
        found = data.offsets.copy()
        stale = [key for key, one in found.items() if key[0] in topics and topics[key[0]].id != one.topic_id]
        for key in stale:
            del found[key]
        return found

    # Keeping

    async def adopt(self, row: list[Any]) -> ErrorCode:
        """Keep a group that comes from another node: its id, membership and offsets."""
        self.adoptions += 1
        return await self.keep(["a", *row])

    async def keep(self, entry: Entry) -> ErrorCode:
        """Write an entry; NONE once it is on disk, else what a client is told."""
        try:
            await asyncio.shield(self._put(entry))
        except StorageError as error:
            _log.error("a group's entry is not kept: %s", error)
            full = error.__cause__ is not None and self._node.dirs.metadata_directory.online
            return ErrorCode.COORDINATOR_NOT_AVAILABLE if full else ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    def put(self, entry: Entry) -> asyncio.Future[None]:
        """Write an entry; the future is done once it is on disk, with a StorageError when it cannot be."""
        future = self._put(entry)
        future.add_done_callback(_look_at)
        return future

    def _put(self, entry: Entry) -> asyncio.Future[None]:
        assert self._store is not None
        future: asyncio.Future[None] = self._loop.create_future()
        self._writing.add(future)
        future.add_done_callback(self._writing.discard)
        self._store.put(entry, lambda error: self._soon(partial(_resolve, future, error)))
        return future

    async def drain(self) -> None:
        """Wait for what is being written."""
        if self._writing:
            await asyncio.wait(list(self._writing))

    def _conclude(self, group: Group, replies: list[Reply] | None = None) -> None:
        """Tell whom a step concerns, once what it came to is on disk, and see to it that time runs on."""
        if self._groups.get(group.name) is group:
            self.room.takes(group)
        if group.dirty:
            group.dirty = False
            untold = self._untold.begin(group.name, replies or [])
            kept = self._put(["g", group.name, group.row(self.expiry.now())])
            kept.add_done_callback(partial(self._kept, group, group.generation, untold))
        else:
            deliver(self._untold.later(group.name, replies or []))
            self._rest(group)
        self._arm(group)

    def _kept(self, group: Group, generation: int, replies: list[Reply], kept: asyncio.Future[None]) -> None:
        self._untold.end(group.name, replies)
        error = kept.exception()
        if error is None:
            deliver(replies)
            self._rest(group)
            return
        _log.error("the membership of group %.100r is not kept: %s", group.name, error)
        deliver(without_assignments(replies))
        if group.generation == generation and self._groups.get(group.name) is group:
            if group.idle:
                self._loop.call_later(AGAIN, self._keep_again, group)  # on disk its members are still there
            else:
                self._conclude(group, group.rebalance(self._loop.time()))

    def _keep_again(self, group: Group) -> None:
        if self._groups.get(group.name) is group:
            group.dirty = True
            self._conclude(group)

    def _rest(self, group: Group) -> None:
        """A group in which nobody is any more needs no state machine."""
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
        """Wake up when the group needs it; a deadline that was put off meanwhile is found out then."""
        deadline = group.deadline
        # What uvloop is to call at once does not know when: that stands beside it.
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

    # What changes around it

    def _image_changed(self) -> None:
        if not self.loaded:
            return
        self.evict()
        self.handover.image_changed()
        image, before = self._node.metadata.image, self._seen
        self._seen = image
        gone = {topic_id for topic_id in image.gone if topic_id not in before.gone}
        if image.topics is not before.topics:
            # A deletion may be on record no more: another topic of the name says the same.
            known = image.topics
            gone |= {one.id for name, one in before.topics.items() if name in known and known[name].id != one.id}
        self._forget(gone)

    def _forget(self, ids: set[str]) -> None:
        if ids and self.data:
            self._put(["t", sorted(ids)]).add_done_callback(_look_at)

    async def _forget_replaced(self, image: ClusterImage) -> None:
        """Offsets of topics that were deleted while this node was down, and of which there is another by that name."""
        topics, self._seen = image.topics, replace(image, gone={})

        self._forget(await asyncio.to_thread(replaced_ids, self.data, topics))

    def evict(self) -> None:
        """Groups that another node coordinates from now on are let go; it will ask for what is on disk."""
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


def _look_at(future: asyncio.Future[None]) -> None:
    error = future.exception()
    if error is not None:
        _log.error("the groups' offsets: %s", error)
