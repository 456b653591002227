"""The admission of moves: the generation first, then the disk, and each replica by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from storage_node.errors import NotEnoughSpace, RequestTimedOut
from storage_node.model.commands import ReplicaDirectory
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.move.admission import GenerationRejected, Wanted, admit
from storage_node.move.registry import Room
from storage_node.ports import ChangeResult


def wanted(partition: int, generation: int = 4) -> Wanted:
    """A replica of t on disk a."""
    replica = SimpleNamespace(
        tp=TopicPartition("t", partition), topic_id="id", directory=SimpleNamespace(id="a"), generation=generation
    )
    return Wanted(replica)  # type: ignore[arg-type]


@dataclass
class Door:
    """A door that records its calls; the controller gives the next generation of each replica."""

    calls: list[str] = field(default_factory=list)
    rejected: dict[int, int] = field(default_factory=dict)
    full: set[int] = field(default_factory=set)
    released: list[str] = field(default_factory=list)
    meanwhile: Callable[[Wanted], None] = lambda _: None
    failing: set[int] = field(default_factory=set)

    async def raise_generations(self, rows: Sequence[ReplicaDirectory]) -> Sequence[ChangeResult]:
        self.calls.append("raise " + " ".join(f"{row.partition}@{row.generation}" for row in rows))
        results = []
        for row in rows:
            error = self.rejected.get(row.partition.partition, 0)
            results.append(ChangeResult(error, "no") if error else ChangeResult(value=row.generation + 1))
        return results

    async def replace(self, one: Wanted) -> Room | None:
        tp = one.partition.tp
        self.calls.append(f"replace {tp}")
        if tp.partition in self.full:
            raise NotEnoughSpace(f"no room for {tp}")
        self.meanwhile(one)
        room: Any = SimpleNamespace(release=lambda: self.released.append(str(tp)))
        return room  # type: ignore[no-any-return]

    async def create(self, one: Wanted, generation: int, room: Room | None) -> str:
        self.calls.append(f"create {one.partition.tp}@{generation}")
        assert room is not None and str(one.partition.tp) not in self.released
        if one.partition.tp.partition in self.failing:
            raise OSError("EIO")
        return f"{one.partition.tp}@{generation}"


def test_moves_are_created_once_the_metadata_has_their_generations() -> None:
    door = Door()
    assert asyncio.run(admit(door, [wanted(0), wanted(1, 7)])) == ["t-0@5", "t-1@8"]
    assert door.calls[0] == "raise t-0@4 t-1@7", "one change for all"
    assert sorted(door.calls[1:]) == ["create t-0@5", "create t-1@8", "replace t-0", "replace t-1"]
    assert asyncio.run(admit(Door(calls := []), [])) == [] and calls == [], "nothing to request"


def test_rejected_generation_leaves_the_disk_and_the_earlier_move_alone() -> None:
    door = Door(rejected={0: int(ErrorCode.INVALID_REQUEST), 2: 9999})
    first, second, third = asyncio.run(admit(door, [wanted(0), wanted(1), wanted(2)]))
    assert isinstance(first, GenerationRejected) and (first.code, first.message) == (ErrorCode.INVALID_REQUEST, "no")
    assert second == "t-1@5"
    assert isinstance(third, GenerationRejected) and third.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert [call for call in door.calls if "t-1" not in call] == []


def test_missing_room_leaves_the_earlier_move_and_the_others_alone() -> None:
    door = Door(full={0})
    first, second = asyncio.run(admit(door, [wanted(0), wanted(1)]))
    assert isinstance(first, NotEnoughSpace) and second == "t-1@5"
    assert "create t-0@5" not in door.calls


def test_earlier_copy_that_became_the_replica_meanwhile_costs_a_second_generation() -> None:
    def swapped(one: Wanted) -> None:
        one.partition.generation = 5

    door = Door(meanwhile=swapped)
    assert asyncio.run(admit(door, [wanted(0)])) == ["t-0@6"]
    assert door.calls == ["raise t-0@4", "replace t-0", "raise t-0@5", "create t-0@6"]


def test_room_is_released_whether_the_move_is_created_or_not() -> None:
    door = Door(failing={1})
    created, failed = asyncio.run(admit(door, [wanted(0), wanted(1)]))
    assert created == "t-0@5" and isinstance(failed, OSError)
    assert sorted(door.released) == ["t-0", "t-1"]


def test_controller_without_a_response_ends_the_request() -> None:
    class Unavailable(Door):
        async def raise_generations(self, rows: Sequence[ReplicaDirectory]) -> Sequence[ChangeResult]:
            raise RequestTimedOut("no response")

    door = Unavailable()
    with pytest.raises(RequestTimedOut):
        asyncio.run(admit(door, [wanted(0)]))
    assert door.calls == []
