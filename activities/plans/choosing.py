"""Chooses the lanes of a plan that begin now: by its slots, the space, the window, the cluster's health, and what the
cluster's other plans use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from activities.kafka_admin.reader import ClusterReader
from activities.plans.store import PlanStore
from workflows.model import names
from workflows.model.move.parameter import ANY
from workflows.model.plans import adaptive, gate, options, recheck, space
from workflows.model.plans.conditions import Conditions, conditions, unknown_zones
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.recheck import Change
from workflows.model.plans.running import book, packing
from workflows.model.plans.running.calls import ChooseCall, ChooseResult, LaneSpec, MoveSpec
from workflows.model.plans.running.following import seen, touched_by
from workflows.model.plans.running.keeper_results import SlotGrant
from workflows.model.plans.running.packing import LaneState
from workflows.model.plans.running.slots import SlotRequest
from workflows.model.plans.schedule import Scheduler
from workflows.model.plans.sharing import keys_of, limits_of, taken_of
from workflows.model.plans.values import ClusterView, Disk, Lane

#: Plans whose lanes are kept decoded.
BOOKS = 4
#: Bytes of the lanes that one decision returns.
LARGEST_CHOICE = 150_000
#: Seconds between two reads from Temporal of which lanes of a run are open.
CLOSED_AGE = 10.0
VIEW_AGE = 2.0  # seconds that a choice may be behind the cluster
RECHECK_AGE = 60.0  # seconds that the comparison of all that is left may be behind it
REPORTED_AGE = 60.0  # seconds after which running lanes are reported to the keeper of slots again: it may be a new one

Share = Callable[[str, SlotRequest], Awaitable[SlotGrant]]


class Book:
    """The lanes of a plan, with what a decision about them needs again and again."""

    def __init__(self, lanes_: tuple[Lane, ...]) -> None:
        self.lanes = lanes_
        self.sizes = [lane.size for lane in lanes_]
        self.partitions = frozenset(move.partition for lane in lanes_ for move in lane.moves)
        self.nodes = frozenset(node for lane in lanes_ for move in lane.moves for node in touched_by(move))
        self.disks = frozenset(disk for lane in lanes_ for disk in lane.reads | lane.writes)
        self._lock = threading.Lock()
        self._of: tuple[str, PlanOptions] | None = None
        self._scheduler: Scheduler | None = None
        self._ended: set[int] = set()
        self._checked = "", float("-inf")
        self._judged: tuple[ClusterView, tuple[str, ...]] | None = None
        self._reported: tuple[str, frozenset[int], float] | None = None

    def check_is_due(self, run: str) -> bool:
        """Return whether it is time to read from Temporal again which of a run's lanes have ended without reporting."""
        of, when = self._checked
        if of == run and time.monotonic() < when + CLOSED_AGE:
            return False
        self._checked = run, time.monotonic()
        return True

    def note_reported(self, run: str, lanes: frozenset[int]) -> None:
        """Note that the keeper of slots knows the open lanes of a run."""
        self._reported = run, lanes, time.monotonic()

    def is_reported(self, run: str, lanes: frozenset[int]) -> bool:
        """Return whether the open lanes of a run were reported to the keeper of slots a short while ago."""
        return (
            self._reported is not None
            and self._reported[:2] == (run, lanes)
            and time.monotonic() < self._reported[2] + REPORTED_AGE
        )

    def held_by(self, health: ClusterView) -> tuple[str, ...]:
        """Return why no lane may begin; a view that was judged already is not judged again."""
        if self._judged is None or self._judged[0] is not health:
            self._judged = health, gate.held_by(health, self.partitions)
        return self._judged[1]

    @contextlib.contextmanager
    def scheduler(self, run: str, chosen: PlanOptions, pending: Set[int], running: Set[int]) -> Iterator[Scheduler]:
        """Lend the scheduler of a plan's run: the one of the last decision, after what has changed since, or a new one
        for another run, after other options, and when a lane that had ended begins again.
        """
        done = set(range(len(self.lanes))) - pending - running
        with self._lock:
            if self._scheduler is None or self._of != (run, chosen) or not self._ended <= done:
                self._scheduler = Scheduler(self.lanes, chosen, done=done, running=running)
            else:
                self._scheduler.sync(done - self._ended, running)
            self._of, self._ended = (run, chosen), done
            yield self._scheduler


@dataclass(frozen=True, slots=True)
class _Choice:
    """One decision: which lanes wait, which have slots, and the free bytes of each disk less what open lanes write.

    `result` is what it returns without further lanes; `begins`: further ones may begin.
    """

    options: PlanOptions
    pending: frozenset[int]
    running: frozenset[int]
    free: dict[Disk, int]
    result: ChooseResult
    begins: bool = False


class LaneChooser:
    """The decisions about the lanes of a cluster's plans. `share` requests slots from their keeper, None
    where plans share none.
    """

    def __init__(
        self,
        reader: ClusterReader,
        store: PlanStore,
        closed: Callable[[list[str]], Awaitable[list[str]]],
        share: Share | None,
    ) -> None:
        self._reader, self._store, self._closed, self._share = reader, store, closed, share
        self._books: OrderedDict[str, Book] = OrderedDict()
        self._opening = threading.Lock()

    async def choose(self, call: ChooseCall) -> ChooseResult:
        """Return the lanes that begin now. Raises `NotStored`, `AdminError`, BadField."""
        ids = {names.plan_lane_id(call.workflow_id, number): number for number in call.running}
        book_of = await asyncio.to_thread(self._book, call.lanes_ref)
        closed = await self._closed(list(ids)) if book_of.check_is_due(call.workflow_id) else []
        under_way = [move for number in call.running for move in book_of.lanes[number].moves]
        view = await self._reader.of({move.partition for move in under_way}, book_of.nodes, VIEW_AGE)
        reasons: tuple[str, ...] = ()
        if call.options.get("health_gate", True):
            health = await self._reader.metadata(VIEW_AGE)
            reasons = await asyncio.to_thread(book_of.held_by, health)
        change, changes = await self._rechecked(call, book_of)
        if call.recheck is not None and call.recheck.get("waits"):
            reasons = (*reasons, *changes)
        choice = await asyncio.to_thread(self._compared, call, book_of, view, reasons)
        choice = replace(choice, result=await self._adapted(call, choice.result))
        result = await self._begun(call, book_of, choice)
        result = replace(result, change=change, large_changes=changes)
        return replace(result, closed=[ids[each] for each in closed])

    async def _adapted(self, call: ChooseCall, result: ChooseResult) -> ChooseResult:
        """Return the result with the throttles that follow the cluster's health, also of lanes that run on when the
        window has closed.
        """
        bounds = options.read(call.options).adaptive
        if not bounds or (result.opens_in is not None and not call.running):
            return result
        health = await self._reader.metadata(VIEW_AGE)
        signals = await asyncio.to_thread(adaptive.signals_of, health)
        found = adaptive.decide(bounds, adaptive.decision_of(call.adaptive, "$.adaptive"), signals, time.time())
        return replace(
            result,
            adaptive=found.as_json(),
            between_brokers=adaptive.bounded(result.between_brokers, found.rates.get(adaptive.BROKERS)),
            between_directories=adaptive.bounded(result.between_directories, found.rates.get(adaptive.DIRECTORIES)),
        )

    async def _begun(self, call: ChooseCall, book_of: Book, choice: _Choice) -> ChooseResult:
        """Return the lanes that have their slots, of the plan and of the cluster's other plans."""
        run, share = call.workflow_id, self._share
        if not choice.begins:
            nothing = not call.shares and not choice.running
            if share is None or nothing or book_of.is_reported(run, choice.running):
                return choice.result
            await share(call.cluster, _request(call, book_of, choice, ()))
            book_of.note_reported(run, choice.running)
            return replace(choice.result, shares=bool(choice.running))
        lanes, why = await asyncio.to_thread(self._picked, call, book_of, choice, {})
        if share is None:
            return replace(choice.result, lanes=lanes, reasons=[why] if why else [])
        grant = await share(call.cluster, _request(call, book_of, choice, lanes))
        begun = [lane for lane in lanes if lane.number in grant.lanes]
        if len(begun) < len(lanes):
            # What others use is known now: other lanes may have their disks to themselves.
            refused = {lane.number for lane in lanes} - set(grant.lanes)
            rest = _without(choice, book_of, set(grant.lanes))
            more, why = await asyncio.to_thread(self._picked, call, book_of, rest, grant.taken)
            more = [lane for lane in more if lane.number not in refused]
            if more:
                further = await share(call.cluster, replace(_request(call, book_of, rest, more), more=True))
                begun += [lane for lane in more if lane.number in further.lanes]
            if grant.others:
                others = ", ".join(grant.others[:3])
                why = f"lane {min(refused)}: waiting for slots that other plans use, or come first for: {others}"
        book_of.note_reported(run, choice.running | {lane.number for lane in begun})
        return replace(choice.result, lanes=begun, reasons=[] if begun or not why else [why], shares=True)

    async def _rechecked(self, call: ChooseCall, book_of: Book) -> tuple[dict[str, Any] | None, list[str]]:
        """Compare what is left of the plan with the whole cluster, if the run requests that."""
        pending = set(packing.numbers_in(packing.unpack_states(call.states), LaneState.PENDING)) - set(call.running)
        if call.recheck is None or not pending:
            return None, []
        skipped = set(call.skipped)
        left = [move for number in pending for move in book_of.lanes[number].moves if move.key not in skipped]
        view = await self._reader.view(RECHECK_AGE)
        found = await asyncio.to_thread(recheck.recheck, left, view)
        seen_, accepted = (Change.of(call.recheck[name], name) for name in ("seen", "accepted"))
        return found.now.as_json(), list(recheck.large(found, seen_, accepted))

    def _compared(self, call: ChooseCall, book_of: Book, view: ClusterView, reasons: Sequence[str]) -> _Choice:
        chosen = options.read(call.options)
        states = packing.unpack_states(call.states)
        running = set(call.running)
        copied = total = 0
        free = {disk: each.usable for disk, each in view.directories.items() if each.usable >= 0}
        for number in running:
            for move in book_of.lanes[number].moves:
                now = seen(move, view)
                copied += now.copied
                total += now.total
                for disk in move.writes:
                    # A broker that chooses the directory itself shows which one once the copy has begun.
                    placed = view.replicas.get((disk.node, move.partition)) if disk.path == ANY else None
                    target = disk if placed is None else Disk(disk.node, placed.path)
                    space.reserve(free, target, max(0, now.total - now.copied) // max(1, len(move.writes)))
        pending = set(packing.numbers_in(states, LaneState.PENDING)) - running
        total += sum(book_of.sizes[number] for number in pending)
        holding = running - _finishing(call.finishing, book_of)
        choice = _Choice(chosen, frozenset(pending), frozenset(holding), free, ChooseResult())
        if unknown := unknown_zones(chosen):
            held = Conditions(
                between_brokers=chosen.throttle_between_brokers,
                between_directories=chosen.throttle_between_directories,
            )
            return replace(choice, result=ChooseResult(copied=copied, total=total, reasons=unknown, **asdict(held)))
        held = conditions(chosen, datetime.now(UTC), total - copied, call.rate)
        result = ChooseResult(copied=copied, total=total, done=not pending, **asdict(held))
        if not pending or held.opens_in is not None or reasons or not call.most:
            result = replace(result, reasons=[] if held.opens_in is not None else list(reasons))
            return replace(choice, result=result)
        return replace(choice, result=result, begins=True)

    def _picked(
        self, call: ChooseCall, book_of: Book, choice: _Choice, taken: Mapping[str, int]
    ) -> tuple[list[LaneSpec], str]:
        """Return the lanes that the plan's slots and the space allow beside what others use, or why there is none."""
        skipped = set(call.skipped)
        disks = taken_of(taken, book_of.disks)
        most = call.most
        if choice.options.slots_cluster is not None:
            most = max(0, min(most, choice.options.slots_cluster - len(choice.running) - taken.get("", 0)))
        with book_of.scheduler(call.workflow_id, choice.options, choice.pending, choice.running) as scheduler:
            numbers = scheduler.choose(choice.free, disks, most)
            why = ""
            if not numbers and choice.pending:
                first = min(choice.pending)
                why = scheduler.waiting_for(first, choice.free, disks)
                why = f"lane {first}: {why}" if why or not taken else ""
        return _fitting([LaneSpec(number, _left(book_of.lanes[number], skipped)) for number in numbers]), why

    def _book(self, ref: str) -> Book:
        with self._opening:
            if ref not in self._books:
                self._books[ref] = Book(book.read(self._store.get(ref)))
                while len(self._books) > BOOKS:
                    self._books.popitem(last=False)
            self._books.move_to_end(ref)
            return self._books[ref]


def _fitting(found: list[LaneSpec]) -> list[LaneSpec]:
    """Return the first of the lanes, as many as fit into one result, at least one; the others are chosen again."""
    size = 0
    for at, lane in enumerate(found):
        size += len(json.dumps(lane.moves, separators=(",", ":")))
        if at and size > LARGEST_CHOICE:
            return found[:at]
    return found


def _left(lane: Lane, skipped: set[str]) -> list[dict[str, Any]]:
    return [MoveSpec.of(move).row() for move in lane.moves if move.key not in skipped]


def _request(call: ChooseCall, book_of: Book, choice: _Choice, wanted: Sequence[LaneSpec]) -> SlotRequest:
    running = {number: keys_of(book_of.lanes[number]) for number in sorted(choice.running)}
    requested = {lane.number: keys_of(book_of.lanes[lane.number]) for lane in wanted}
    keys = {key for each in requested.values() for key in each}
    limits = limits_of(choice.options, book_of.disks, choice.free)
    return SlotRequest(
        call.workflow_id,
        choice.options.priority,
        running,
        requested,
        {key: limit for key, limit in limits.items() if key in keys},
    )


def _finishing(numbers: Sequence[int], book_of: Book) -> set[int]:
    """Return the lanes that leave their slots to the next one: of those that share a disk the first, so that what is
    under way on a disk stays bounded.
    """
    found: set[int] = set()
    busy: set[Disk] = set()
    for number in numbers:
        disks = book_of.lanes[number].reads | book_of.lanes[number].writes
        if busy.isdisjoint(disks):
            found.add(number)
        busy |= disks
    return found


def _without(choice: _Choice, book_of: Book, begun: Set[int]) -> _Choice:
    """Return what is left to decide once some lanes have begun."""
    free = dict(choice.free)
    for number in begun:
        for disk, need in book_of.lanes[number].needs.items():
            space.reserve(free, disk, need)
    return replace(choice, pending=choice.pending - begun, running=choice.running | begun, free=free)
