"""Admit moves: their generations into the metadata, then `.move` and marker on the disks.

Both doors, AlterReplicaLogDirs and the activity `create_move`, admit moves here, after their own checks. The order is
the same for all: a generation that the metadata has makes a stale copy known which comes back, and a move without one
leaves nothing on a disk. An earlier move of the same replica is ended only once the controller has responded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage_node.errors import RequestRefused
from storage_node.model.commands import ReplicaDirectory
from storage_node.model.error_codes import ErrorCode
from storage_node.move.host import PartitionLike
from storage_node.move.registry import Room
from storage_node.ports import ChangeResult


@dataclass(frozen=True, slots=True)
class Wanted:
    """A replica that is to move; each door adds where to, and for whom."""

    partition: PartitionLike


W = TypeVar("W", bound=Wanted)
W_contra = TypeVar("W_contra", bound=Wanted, contravariant=True)
M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class GenerationRejected(RequestRefused):
    """The controller has recorded no generation for a move; nothing was changed."""

    def __init__(self, result: ChangeResult) -> None:
        known = result.error in set(ErrorCode)
        super().__init__(result.message, ErrorCode(result.error) if known else ErrorCode.UNKNOWN_SERVER_ERROR)


class Door(Protocol[W_contra, M_co]):
    """How one door reaches the controller and the disks: within which time, and on which threads."""

    async def raise_generations(self, rows: Sequence[ReplicaDirectory]) -> Sequence[ChangeResult]:
        """Request the generations of these moves from the controller, in one change; return a result for each."""
        ...

    async def replace(self, wanted: W_contra) -> Room | None:
        """End an earlier move of the replica that would be in the way, if any.

        Return the room in the target that was reserved first: if there is none, the earlier copy continues.
        """
        ...

    async def create(self, wanted: W_contra, generation: int, room: Room | None) -> M_co:
        """Create `.move` and marker with this generation; return the move."""
        ...


async def admit(door: Door[W, M], wanted: Sequence[W]) -> list[M | Exception]:
    """Admit moves; return for each the created move, or why it was not created: one that fails leaves the others alone.

    The error is GenerationRejected where the controller rejected the generation. What `raise_generations` raises is
    raised here, before anything was changed on a disk.
    """
    raised = await _raise(door, wanted)
    return list(await asyncio.gather(*(_admit(door, *each) for each in zip(wanted, raised, strict=True))))


async def _raise(door: Door[W, M], wanted: Sequence[W]) -> Sequence[ChangeResult]:
    replicas = [each.partition for each in wanted]
    rows = [ReplicaDirectory(one.tp, one.topic_id, one.directory.id, one.generation) for one in replicas]
    return await door.raise_generations(rows) if rows else []


async def _admit(door: Door[W, M], wanted: W, raised: ChangeResult) -> M | Exception:
    room: Room | None = None
    try:
        if not raised.error:
            room = await door.replace(wanted)
            if wanted.partition.generation >= raised.value:
                # The earlier move's copy has become the replica meanwhile, or was about to.
                (raised,) = await _raise(door, [wanted])
        if raised.error:
            raise GenerationRejected(raised)
        return await door.create(wanted, raised.value, room)
    except Exception as error:
        return error
    finally:
        # A `.move` that a disk creates later is discarded again, and needs no room.
        if room is not None:
            room.release()
