"""What a roll-back takes back: the moves that reached their targets and still stand there; all others stay. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage_node.model.ids import TopicPartition
from workflows.model.move.parameter import ANY
from workflows.model.plans.document import PlanDocument, PlannedPartition
from workflows.model.plans.running.calls import PlanMoveRow
from workflows.model.plans.running.following import MoveOutcome
from workflows.model.plans.values import ClusterView, PartitionState


@dataclass(frozen=True, slots=True)
class Undoing:
    """The plan that goes back, and a row with the reason for each partition or replica that stays as it is."""

    plan: PlanDocument
    rows: tuple[PlanMoveRow, ...] = ()

    def without(self, reasons: Iterable[tuple[TopicPartition, str]]) -> Undoing:
        """Return it without partitions that cannot go back, which have failed."""
        why = dict(reasons)
        left = [each for each in self.plan.partitions if _tp(each) not in why]
        failed = [PlanMoveRow(str(tp), str(MoveOutcome.FAILED), reason=each) for tp, each in sorted(why.items())]
        return Undoing(replace(self.plan, partitions=tuple(left)), (*self.rows, *failed))


def undoing_of(back: PlanDocument, done: PlanDocument, view: ClusterView) -> Undoing:
    """Compare the plan that goes back with what it takes back, `done`, and with the cluster.

    A partition that is as before `done` stays; so does what another client has changed since, which gets a row.
    """
    targets = {_tp(entry): entry for entry in done.partitions}
    rows: list[PlanMoveRow] = []
    entries: list[PlannedPartition] = []
    for entry in back.partitions:
        state = view.partitions.get(_tp(entry))
        if state is None:
            rows.append(_stays(str(_tp(entry)), MoveOutcome.TOPIC_DELETED, f"{_tp(entry)} does not exist any more"))
            continue
        pair = _Pair(entry, targets.get(_tp(entry), entry), state, view)
        if why := pair.changed_by_others():
            rows.append(_stays(str(_tp(entry)), MoveOutcome.SUPERSEDED, why))
            continue
        found, moved = pair.entry()
        entries.append(found)
        rows += moved
    return Undoing(replace(back, partitions=tuple(entries)), tuple(rows))


@dataclass(frozen=True, slots=True)
class _Pair:
    """A partition before (`back`) and after the plan that is taken back (`done`), and as it is now."""

    back: PlannedPartition
    done: PlannedPartition
    state: PartitionState
    view: ClusterView

    def changed_by_others(self) -> str:
        """Return why the partition stays: it is neither where the plan found it nor where the plan left it."""
        ours = (set(self.back.replicas), set(self.done.replicas))
        if set(self.state.target) in ours:
            return ""
        now = ", ".join(map(str, self.state.target))
        if self.state.adding or self.state.removing:
            return f"{_tp(self.back)} is being reassigned to {now}: another client requested it, and it stays"
        return f"{_tp(self.back)} is on {now} now: another client reassigned it, and it stays"

    def entry(self) -> tuple[PlannedPartition, list[PlanMoveRow]]:
        """Return what to take back, with a row for each replica that another client has moved on its broker."""
        reached = self.state.target == self.done.replicas
        replicas = self.back.replicas if reached else self.state.target
        before = dict(zip(self.back.replicas, self.back.log_dirs, strict=True))
        after = dict(zip(self.done.replicas, self.done.log_dirs, strict=True))
        paths: list[str] = []
        rows: list[PlanMoveRow] = []
        for node in replicas:
            source, target = before.get(node, ANY), after.get(node, ANY)
            placed = self.view.replicas.get((node, _tp(self.back)))
            if node not in self.state.replicas:
                paths.append(source)  # It returns to this broker.
            elif ANY in (source, target) or source == target:
                paths.append(ANY)  # The plan has not moved it on its broker.
            elif placed is None or placed.path in (source, target):
                paths.append(source)
            else:
                paths.append(ANY)
                why = (
                    f"the replica of {_tp(self.back)} on broker {node} is in {placed.path} now: another client moved "
                    "it, and it stays"
                )
                rows.append(_stays(f"{_tp(self.back)}@{node}", MoveOutcome.SUPERSEDED, why))
        return replace(self.back, replicas=tuple(replicas), log_dirs=tuple(paths)), rows


def _stays(key: str, outcome: MoveOutcome, why: str) -> PlanMoveRow:
    return PlanMoveRow(key, str(outcome), reason=why)


def _tp(entry: PlannedPartition) -> TopicPartition:
    return TopicPartition(entry.topic, entry.partition)
