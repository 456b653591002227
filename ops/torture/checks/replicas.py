"""C15 to C18: leaders, replicas and reassignments. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ops.torture.checks.facts import LeaderFact, Place, ReassignFact, Scan
from ops.torture.checks.index import Index, few, seconds, told
from ops.torture.checks.moves import compare
from ops.torture.history import FAIL, OK
from storage_node.model.error_types import ErrorType

#: How long (ns) after its timeout a request without a response may still be applied.
LATE = 30_000_000_000
#: How a PartitionReassignment run may end; a failed one must be superseded, or have lost its topic.
ENDED = ("completed", "canceled", "continued_as_new")
FOR_GOOD_REASON = (f"({ErrorType.SUPERSEDED})", f"({ErrorType.TOPIC_DELETED})")


def two_leaders(index: Index) -> list[str]:
    """Return C15's violations: a leader epoch has one leader, in all nodes' metadata and by the batches on disk."""
    return [*few(_named(index)), *few(_clashes(index))]


def _named(index: Index) -> Iterator[str]:
    by_epoch: dict[tuple[Place, str, int], dict[int, LeaderFact]] = defaultdict(dict)
    for fact in index.evidence.leaders:
        by_epoch[fact.place, fact.topic_id, fact.epoch].setdefault(fact.leader, fact)
    for (place, _, epoch), leaders in by_epoch.items():
        if len(leaders) > 1:
            reported = ", ".join(f"{f.leader} (by {f.who} at {seconds(f.at)})" for f in leaders.values())
            yield f"leader epoch {epoch} of {told(place)} has more than one leader: {reported}"


def _clashes(index: Index) -> Iterator[str]:
    for clash in index.evidence.clashes:
        one, other = (f"{s[1]:#010x} on node {s[0]} at {seconds(s[2])}" for s in (clash.first, clash.second))
        yield (
            f"the batch at offset {clash.offset} of {told(clash.place)} under leader epoch {clash.epoch} is {one}, "
            f"but {other}"
        )


def unequal(index: Index) -> list[str]:
    """Return C16's violations: all replicas of the final assignment hold the same batches up to the high watermark."""
    return few(_unequal(index))


def _unequal(index: Index) -> Iterator[str]:
    scans: dict[tuple[Place, int], Scan] = {(scan.place, scan.node): scan for scan in index.evidence.scans}
    for place, home in index.evidence.homes.items():
        final = index.evidence.final.get(place)
        held = {node: scan for node in home.replicas if (scan := scans.get((place, node))) is not None}
        if final is None or len(held) < 2:
            continue
        # Retention deletes whole segments, and each replica rolls its segments by itself.
        first = {node: scan.batches[0].base if scan.batches else final.high for node, scan in held.items()}
        ends = {node: scan.batches[-1].last + 1 if scan.batches else 0 for node, scan in held.items()}
        whole = [node for node in held if first[node] <= final.low or final.low == final.high]
        model = min(held, key=lambda node: (node not in whole, node != home.leader, node))
        for node, scan in held.items():
            if node not in whole and not index.retains(place):
                yield f"{told(place)} on node {node} begins at {first[node]}, its log start is {final.low}"
            if ends[node] < final.high and final.low < final.high:
                yield f"{told(place)} on node {node} ends at {ends[node]}, clients read up to {final.high}"
            start, end = max(final.low, first[node]), min(final.high, ends[node])
            compared, different = compare(held[model].batches, scan.batches, start, end)
            if different:
                offset, ours, theirs = different[0]
                yield (
                    f"the batch at offset {offset} of {told(place)} is {_digest(ours)} on node {model} and "
                    f"{_digest(theirs)} on node {node} ({len(different)} of {compared} batches below {end} differ)"
                )


def _digest(value: int | None) -> str:
    return "missing" if value is None else f"{value:#010x}"


def unsettled(index: Index) -> list[str]:
    """Return C17's violations: every reassignment completes or is cancelled, with the replicas last requested."""
    return [*few(_open(index)), *few(_runs(index)), *few(_last_words(index))]


def _open(index: Index) -> Iterator[str]:
    for place, home in index.evidence.homes.items():
        if home.adding or home.removing:
            yield (
                f"{told(place)} is being reassigned at the end: replicas {_nodes(home.replicas)}, adding "
                f"{_nodes(home.adding)}, removing {_nodes(home.removing)}, in sync {_nodes(home.isr)}"
            )
    for place in index.evidence.listed:
        yield f"ListPartitionReassignments returns {told(place)} at the end"


def _runs(index: Index) -> Iterator[str]:
    for run in index.evidence.reassignments:
        superseded = run.status == "failed" and any(reason in run.reason for reason in FOR_GOOD_REASON)
        if run.status not in ENDED and not superseded:
            yield f"{run.workflow_id} is {run.status} at the end{': ' + run.reason if run.reason else ''}"


def _last_words(index: Index) -> Iterator[str]:
    requests: dict[Place, list[ReassignFact]] = defaultdict(list)
    for fact in index.evidence.asked:
        if fact.type != FAIL:
            requests[fact.place].append(fact)
    for place, home in index.evidence.homes.items():
        before = index.evidence.initial.get(place)
        if before is None or index.gone(place):
            continue
        allowed = last_words(before, requests[place])
        if home.replicas not in allowed and not home.adding and not home.removing:
            wanted = " or ".join(_nodes(each) for each in sorted(allowed))
            yield f"{told(place)} is on {_nodes(home.replicas)} at the end, but the last request was {wanted}"


def last_words(before: tuple[int, ...], asked: Sequence[ReassignFact]) -> set[tuple[int, ...]]:
    """Return the replicas that a partition may have after these requests, none of which was rejected.

    The last request determines them; concurrent requests, and a request without a response and those shortly after it,
    may have been applied in any order. A cancel restores the original replicas: any target requested before it.
    """
    sure = [fact for fact in asked if fact.type == OK]
    found: set[tuple[int, ...]] = set()
    for fact in asked:
        over = fact.completed + (0 if fact.type == OK else LATE)
        if any(later.invoked > over for later in sure):
            continue
        if fact.target is not None:
            found.add(fact.target)
        else:
            found |= {before, *(each.target for each in asked if each.target and each.invoked <= over)}
    # Without a response that confirms one, the controller may have applied none.
    return found if sure else found | {before}


def _nodes(nodes: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, nodes)) + "]"


def under_replicated(index: Index) -> list[str]:
    """Return C18's violations: after healing, every partition has a leader and all replicas in sync."""
    return few(_under_replicated(index))


def _under_replicated(index: Index) -> Iterator[str]:
    for place, home in index.evidence.homes.items():
        if set(home.isr) != set(home.replicas):
            yield f"of the replicas {_nodes(home.replicas)} of {told(place)} only {_nodes(home.isr)} are in sync"
        if home.leader not in home.replicas:
            yield f"{told(place)} has no leader at the end (it is {home.leader})"
