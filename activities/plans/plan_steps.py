"""The steps of a plan: compares it with the cluster, chooses the lanes that begin now, and verifies the result."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from activities.kafka_admin.reader import ClusterReader
from activities.plans.choosing import LaneChooser, Share
from activities.plans.store import PlanStore
from workflows.model.plans import document, estimate, lanes, moves, options, space, verify
from workflows.model.plans.conditions import unknown_zones
from workflows.model.plans.document import PlanDocument
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.running import book, packing
from workflows.model.plans.running.calls import (
    MOST_PROBLEMS,
    CheckCall,
    CheckResult,
    ChooseCall,
    ChooseResult,
    DiskRow,
    KeepCall,
    KeepResult,
    VerifyCall,
    VerifyResult,
)
from workflows.model.plans.running.throttling import ThrottlesLeft
from workflows.model.plans.running.undoing import Undoing, undoing_of
from workflows.model.plans.values import ClusterView, PlannedMove
from workflows.model.plans.verify import Certificate
from workflows.model.search_attributes import capped

#: Disks listed in a check's result; the others are in the numbers.
MOST_DISKS = 200


#: What a plan has left behind of its throttles, and all throttles that are set on its brokers and topics.
Left = Callable[[VerifyCall, Sequence[str]], Awaitable[ThrottlesLeft]]


async def _unknown() -> bool:
    return False


class PlanSteps:
    """The activities of plans of one cluster. `searchable`: Temporal knows the search attributes.

    `webhooks` are the names to which the worker sends alerts, None where that is unknown; `share` requests slots
    from their keeper, None where plans share none; `left` reads what is left of throttles, None where plans have none.
    """

    def __init__(
        self,
        reader: ClusterReader,
        store: PlanStore,
        closed: Callable[[list[str]], Awaitable[list[str]]],
        searchable: Callable[[], Awaitable[bool]] = _unknown,
        webhooks: Sequence[str] | None = None,
        share: Share | None = None,
        left: Left | None = None,
    ) -> None:
        self._reader, self._store, self._searchable = reader, store, searchable
        self._webhooks, self._left = webhooks, left
        self._chooser = LaneChooser(reader, store, closed, share)

    async def keep(self, call: KeepCall) -> KeepResult:
        """Store a text that travels with the run. Raises BadField."""
        return KeepResult(await asyncio.to_thread(lambda: self._store.put(packing.unpack(call.packed))))

    async def check(self, call: CheckCall) -> CheckResult:
        """Compare a plan with the cluster; store its lanes and the plan that goes back.

        Raises `NotStored`, `PlanProblems`, `AdminError`.
        """
        view = await self._reader.view()
        result = await asyncio.to_thread(self._checked, call, view)
        return replace(result, searchable=await self._searchable())

    def _checked(self, call: CheckCall, view: ClusterView) -> CheckResult:
        planned = document.parse(self._store.get(call.plan))
        chosen = options.read(call.options)
        undoing: Undoing | None = None
        if call.undoes:
            undoing = undoing_of(planned, document.parse(self._store.get(call.undoes)), view)
            undoing = undoing.without(moves.work_of(undoing.plan, view).refused.items())
            undoing = _fitting(undoing, view, chosen)
            planned = undoing.plan
        work = moves.work_of(planned, view)
        problems = [*unknown_zones(chosen), *work.problems]
        if call.cluster_id and call.cluster_id != view.cluster_id:
            problems.insert(0, f"this is cluster {view.cluster_id}, but the plan was made for {call.cluster_id}")
        if chosen.alerts and self._webhooks is not None and chosen.alerts not in self._webhooks:
            known = f"it knows {', '.join(self._webhooks)}" if self._webhooks else "it knows none"
            problems.append(
                f"the worker knows no webhook '{chosen.alerts}', {known}: add it to the file of its option --alerts, "
                "or remove the plan's option alerts"
            )
        if chosen.directories_only:
            problems += moves.changed_replicas(work)
        left = [move for move in work.moves if move.key not in set(call.skipped)]
        packed = lanes.pack(left, view, chosen)
        needed = space.space_of(packed, view, chosen)
        problems += space.overfull(needed, packed)
        if problems:
            return CheckResult(view.cluster_id, problems=problems[:MOST_PROBLEMS], problem_count=len(problems))
        text = book.to_text(packed)
        back = document.to_text(moves.rollback_of(left, view))
        rollback = self._store.put(back)
        duration = estimate.estimate(packed, chosen)
        stays = undoing.rows if undoing is not None else ()
        rest = document.to_text(planned) if undoing is not None and planned.partitions else ""
        return CheckResult(
            view.cluster_id,
            moves=len(left) + len(stays),
            lanes=len(packed),
            in_place=work.in_place,
            bytes_total=sum(lane.size for lane in packed),
            leaders_moved=sum(_moves_leader(move, view) for move in left),
            lanes_ref=self._store.put(text),
            lanes_packed=packing.small(text),
            rollback_ref=rollback,
            rollback_packed=packing.small(back),
            rollback_path=str(self._store.path(rollback)),
            disks=[
                DiskRow(
                    row.disk.node, row.disk.path, row.used_before, row.usable_before, row.used_worst, row.used_after
                )
                for row in needed.disks[:MOST_DISKS]
            ],
            brokers=sorted({disk.node for lane in packed for disk in lane.reads | lane.writes}),
            seconds_low=round(duration.low, 1),
            seconds_high=round(duration.high, 1),
            topics=capped(sorted({move.partition.topic for move in left})),
            outcomes=dict(Counter(row.outcome for row in stays)),
            failures=list(stays[:MOST_PROBLEMS]),
            plan=self._store.put(rest) if rest else "",
            plan_packed=packing.small(rest) if rest else "",
        )

    async def choose(self, call: ChooseCall) -> ChooseResult:
        """Return the lanes that begin now. Raises `NotStored`, `AdminError`, BadField."""
        return await self._chooser.choose(call)

    async def verify(self, call: VerifyCall) -> VerifyResult:
        """Compare the cluster with the plan. Raises `NotStored`, `AdminError`."""
        view = await self._reader.view()
        planned = await asyncio.to_thread(lambda: document.parse(self._store.get(call.plan)))
        topics = sorted({entry.topic for entry in planned.partitions})
        throttles = await self._left(call, topics) if self._left is not None else ThrottlesLeft()
        return await asyncio.to_thread(self._verified, call, planned, view, throttles)

    def _verified(
        self, call: VerifyCall, planned: PlanDocument, view: ClusterView, throttles: ThrottlesLeft
    ) -> VerifyResult:
        found = verify.certificate(planned, view, throttles.left, call.skipped)
        path = self._store.put(_certificate_text(call, view.cluster_id, found, throttles))
        return VerifyResult(
            found.ok,
            len(planned.partitions),
            list(found.problems[:MOST_PROBLEMS]),
            len(found.problems),
            str(self._store.path(path)),
        )


def _fitting(undoing: Undoing, view: ClusterView, chosen: PlanOptions) -> Undoing:
    """Return a roll-back without the partitions that it would write to disks which they would overfill."""
    while True:
        work = moves.work_of(undoing.plan, view)
        packed = lanes.pack(work.moves, view, chosen)
        full = space.full_disks(space.space_of(packed, view, chosen), packed)
        reasons = {move.partition: full[disk] for move in work.moves for disk in sorted(move.writes) if disk in full}
        if not reasons:
            return undoing
        undoing = undoing.without(reasons.items())


def _certificate_text(call: VerifyCall, cluster_id: str, found: Certificate, throttles: ThrottlesLeft) -> str:
    """Return the certificate as a file: what was compared, with the replicas' directories, and what differs.

    `throttles_left` are those of the plan, `throttles_awaited` those of brokers that do not respond, `throttles_set`
    all of its brokers and topics, whoever has set them.
    """
    rows = [
        {
            "topic": row.partition.topic,
            "partition": row.partition.partition,
            "replicas": [{"broker": disk.node, "directory": disk.path} for disk in row.replicas],
            "problems": list(row.problems),
        }
        for row in found.rows
    ]
    head = {"version": 1, "cluster_id": cluster_id, "plan": call.plan, "ok": found.ok}
    head |= {"skipped": call.skipped, "throttles_left": throttles.left}
    head |= {"throttles_awaited": throttles.awaited, "throttles_set": throttles.found}
    return json.dumps(head | {"problems": list(found.problems), "partitions": rows}, indent=1) + "\n"


def _moves_leader(move: PlannedMove, view: ClusterView) -> bool:
    """Return whether the move changes which broker leads, by the preferred replica."""
    return bool(move.after) and view.partitions[move.partition].leader not in move.after
