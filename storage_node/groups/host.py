"""What the groups need of their node, and what their parts need of the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from storage_node.config.node_config import NodeConfig
from storage_node.directories.manager import DirectoryManager
from storage_node.groups.group import Group
from storage_node.groups.offsets import Entry, GroupData
from storage_node.metadata.cache import MetadataCache
from storage_node.model.error_codes import ErrorCode


class HandoverHost(Protocol):
    """The node, as the handover of groups sees it."""

    @property
    def id(self) -> int: ...

    @property
    def metadata(self) -> MetadataCache: ...


class CoordinatorHost(HandoverHost, Protocol):
    """The node, as its group coordinator sees it."""

    @property
    def config(self) -> NodeConfig: ...

    @property
    def dirs(self) -> DirectoryManager: ...


class Groups(Protocol):
    """The coordinator (`storage_node.groups.coordinator.GroupCoordinator`), as its parts see it.

    To be used on the listener's loop, except for `data`, `settled`, `adoptions` and `owner`.
    """

    @property
    def loaded(self) -> bool:
        """Whether the groups have been read from disk."""
        ...

    @property
    def data(self) -> Mapping[str, GroupData]:
        """The data on disk, by group."""
        ...

    @property
    def settled(self) -> int:
        """The cluster generation in which this node has all its groups."""
        ...

    @property
    def adoptions(self) -> int:
        """How many groups were adopted so far."""
        ...

    def owner(self, group: str) -> int | None:
        """Return which of the registered nodes coordinates a group."""
        ...

    def is_own(self, group: str) -> bool:
        """Return whether this node coordinates a group."""
        ...

    def live(self, name: str) -> Group | None:
        """Return a group with members or a member that is joining; None for any other group."""
        ...

    def put(self, entry: Entry) -> asyncio.Future[None]:
        """Write an entry; the future is done once it is on disk, with a StorageError if the write fails."""
        ...

    async def keep(self, entry: Entry) -> ErrorCode:
        """Write an entry; returns NONE once it is on disk, else the error for the client."""
        ...

    async def drain(self) -> None:
        """Wait for the writes under way."""
        ...

    async def adopt(self, row: list[Any]) -> ErrorCode:
        """Write a group of another node: its id, membership and offsets."""
        ...

    def evict(self) -> None:
        """Close the groups that another node coordinates now; it will request their data on disk."""
        ...

    def revive(self) -> None:
        """Create the state machines of memberships from the disk or another node."""
        ...
