"""The independent check at the end of a plan: everything is where the plan wants it, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.move.parameter import ANY
from workflows.model.plans.document import PlanDocument, PlannedPartition
from workflows.model.plans.values import ClusterView, Disk

#: Partitions that the reason for an occupied directory names.
NAMED = 5


@dataclass(frozen=True, slots=True)
class CertificateRow:
    """A partition of the plan: its replicas with their directories as reported, and what is wrong with them."""

    partition: TopicPartition
    replicas: tuple[Disk, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the cluster reported after a plan. `problems` are all of them, those of the rows included."""

    ok: bool
    rows: tuple[CertificateRow, ...] = ()
    problems: tuple[str, ...] = ()


def certificate(
    document: PlanDocument,
    view: ClusterView,
    throttles_left: Iterable[str] = (),
    skipped: Collection[str] = (),
) -> Certificate:
    """Compare the cluster with a plan that has ended.

    Each partition must have the plan's replicas in the plan's order, all of them in the ISR, each in the directory that
    the plan names, no reassignment and no future replica. `throttles_left` names the throttle configs that are still
    set, as "broker 1: leader.replication.throttled.rate". `skipped` are the keys of moves that were left out: what they
    would have changed is not compared.
    """
    left_out = set(skipped)
    futures: dict[TopicPartition, list[Disk]] = {}
    for (node, tp), future in sorted(view.futures.items()):
        futures.setdefault(tp, []).append(Disk(node, future.path))
    entries = sorted(document.partitions, key=lambda p: (p.topic, p.partition))
    rows = [_row(_without(entry, left_out), view, futures, left_out) for entry in entries]
    problems = [problem for row in rows for problem in row.problems]
    problems += [f"the throttle is still set: {each}; see: rehome throttles" for each in throttles_left]
    return Certificate(not problems, tuple(rows), tuple(problems))


def _without(entry: PlannedPartition, skipped: Collection[str]) -> PlannedPartition:
    """Return a partition without the directories of skipped moves."""
    tp = TopicPartition(entry.topic, entry.partition)
    pairs = zip(entry.replicas, entry.log_dirs, strict=True)
    return replace(entry, log_dirs=tuple(ANY if f"{tp}@{node}" in skipped else path for node, path in pairs))


def _row(
    entry: PlannedPartition,
    view: ClusterView,
    futures: Mapping[TopicPartition, list[Disk]],
    skipped: Collection[str],
) -> CertificateRow:
    tp = TopicPartition(entry.topic, entry.partition)
    state = view.partitions.get(tp)
    if state is None:
        return CertificateRow(tp, (), () if str(tp) in skipped else (f"{tp} does not exist",))
    if str(tp) in skipped:
        # Its replicas stay; those that the plan moves on their brokers are compared.
        staying = [(n, p) for n, p in zip(entry.replicas, entry.log_dirs, strict=True) if n in state.replicas]
        entry = replace(entry, replicas=tuple(n for n, _ in staying), log_dirs=tuple(p for _, p in staying))
    placed = {node: view.replicas.get((node, tp)) for node in state.replicas}
    disks = tuple(Disk(node, held.path if held is not None else ANY) for node, held in placed.items())
    problems: list[str] = []
    if str(tp) in skipped:
        pass
    elif state.adding or state.removing:
        problems.append(f"{tp}: a reassignment to {_listed(state.target)} is in progress")
    elif state.replicas != entry.replicas:
        problems.append(f"{tp}: its replicas are {_listed(state.replicas)}, but the plan has {_listed(entry.replicas)}")
    if state.leader == NO_LEADER:
        problems.append(f"{tp}: it has no leader")
    if behind := [node for node in entry.replicas if node not in state.isr]:
        problems.append(f"{tp}: broker {_listed(behind)} is not in the ISR, which is {_listed(state.isr)}")
    for node, path in zip(entry.replicas, entry.log_dirs, strict=True):
        held = view.replicas.get((node, tp))
        if held is None:
            problems.append(f"{tp}: broker {node} does not report its replica")
        elif path not in (ANY, held.path):
            problems.append(f"{tp}: its replica on broker {node} is in {held.path}, but the plan has {path}")
    for future in futures.get(tp, ()):
        problems.append(f"{tp}: broker {future.node} still has a future replica in {future.path}")
    return CertificateRow(tp, disks, tuple(problems))


def drained(view: ClusterView, disk: Disk) -> Certificate:
    """Check that a directory is empty and may be removed: no replica, no future replica, and its broker reports it."""
    node, held = view.nodes.get(disk.node), view.directories.get(disk)
    if node is None or not node.responds:
        return _unproven(
            f"broker {disk.node} does not return its log directories, so that {disk.path} cannot be checked"
        )
    if held is None:
        return _unproven(
            f"{disk.path!r} is not one of the log.dirs of broker {disk.node}, so that it cannot be checked"
        )
    if held.error:
        return _unproven(
            f"directory {disk.path} of broker {disk.node} is offline ({held.error}); its replicas are unknown"
        )
    problems: list[str] = []
    for what, where in (("replica", view.replicas), ("future replica", view.futures)):
        found = sorted(tp for (at, tp), placed in where.items() if at == disk.node and placed.path == disk.path)
        if found:
            more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
            count = f"1 {what}" if len(found) == 1 else f"{len(found)} {what}s"
            problems.append(f"disk {disk} still has {count}: {', '.join(map(str, found[:NAMED]))}{more}")
            if hidden := sorted({tp.topic for tp in found if tp not in view.partitions}):
                problems.append(
                    f"the brokers do not describe {', '.join(hidden[:NAMED])} to this client, so no plan moves it: "
                    "is it authorized to Describe these topics, or is it a leftover of a deleted one?"
                )
    return Certificate(not problems, (), tuple(problems))


def _unproven(why: str) -> Certificate:
    return Certificate(False, (), (why,))


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
