"""C6, C8 to C12 and C14: disks, outcomes of moves, rates, throttles and restarts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ops.torture.checks.facts import Batch, DirectoryFact, LimitFact, Place, RateSample, RowFact
from ops.torture.checks.index import Index, few, seconds, told
from ops.torture.history import FAIL, OK
from storage_node.model.moves import MOVED, Outcome

SUFFIXES = (".move", ".delete")

SECOND = 1_000_000_000
#: Windows over which rates are measured (ns).
WINDOWS = (1 * SECOND, 4 * SECOND, 16 * SECOND)
#: Bytes that a copy may exceed its limit by: create_move copies up to 1 MiB itself, the swap copies the tail unlimited.
BURST = 2 << 20
#: Bytes that each further copy may add to that: a copy counts whole batches, and a batch has at most this size.
BATCH = 1 << 20
TOLERANCE = 1.05
#: How long (ns) a replaced limit may stay in force: a node may be down, or receive the change late.
GRACE = 20 * SECOND


def compare(
    source: Sequence[Batch], copy: Sequence[Batch], start: int, end: int
) -> tuple[int, tuple[tuple[int, int | None, int | None], ...]]:
    """Compare the batches of source and copy from `start` to `end`; return how many, and (offset, digest in the source,
    digest in the copy) of those that differ.

    A batch with a base offset below `start` is compared if it contains `start`.
    """
    ours = {(b.base, b.last): b.digest for b in source if b.last >= start and b.base < end}
    theirs = {(b.base, b.last): b.digest for b in copy if b.last >= start and b.base < end}
    different = tuple(
        (key[0], ours.get(key), theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    )
    return len(ours.keys() | theirs.keys()), different


def changed_bytes(index: Index) -> list[str]:
    """Return C6's violations: the copy holds the source's batches byte for byte, and all batches have valid CRCs."""
    problems = [problem for scan in index.evidence.scans for problem in scan.problems]
    return [*few(_changed(index)), *few(problems)]


def _changed(index: Index) -> Iterator[str]:
    for swap in index.evidence.swaps:
        where = f"the swap of {told(swap.place)} from {swap.source} to {swap.target} at {seconds(swap.at)}"
        # A follower may have truncated uncommitted batches since, to match its leader's log.
        committed = swap.seal_high if index.replicated(swap.place) else swap.seal_end
        differences = [each for each in swap.differences if each[0] < committed]
        for offset, ours, theirs in differences[:3]:
            yield (
                f"{where}: the batch at offset {offset} is {_digest(ours)} in the source and {_digest(theirs)} in "
                f"the copy ({len(differences)} of {swap.compared} batches differ)"
            )
        if swap.first > max(swap.log_start, index.floor(swap.place)) and not index.retains(swap.place):
            yield f"{where}: the copy begins at {swap.first}, the source began at {swap.log_start}"


def _digest(value: int | None) -> str:
    return "missing" if value is None else f"{value:#010x}"


def misplaced(index: Index) -> list[str]:
    """Return C8's violations: each replica has one folder, where the metadata and DescribeLogDirs report it."""
    return [*few(_folders(index)), *few(_described(index)), *few(_asked(index))]


def _folders(index: Index) -> Iterator[str]:
    names = index.names()
    found: dict[str, list[DirectoryFact]] = defaultdict(list)
    for directory in index.evidence.directories:
        for folder in directory.folders:
            if folder.endswith(SUFFIXES):
                yield f"{folder} was not removed from {directory.path} of node {directory.node}"
            elif folder not in names:
                yield f"{folder} is in {directory.path} of node {directory.node}, but that replica does not exist"
            else:
                found[folder].append(directory)
    for name, place in names.items():
        where = found.get(name, [])
        home = index.evidence.homes.get(place)
        for node in home.replicas if home is not None else (None,):
            here = [each for each in where if node is None or each.node == node]
            if len(here) != 1:
                there = ", ".join(f"{d.path} of node {d.node}" for d in here) or "no directory"
                yield f"{name} is in {there} {'' if node is None else f'of node {node} '}instead of exactly one"
            elif home is not None and node is not None and here[0].path != home.directory(node):
                yield (
                    f"{name} is in {here[0].path} of node {node}, but the metadata assigns it to {home.directory(node)}"
                )
        if home is not None:
            for stray in (each for each in where if each.node not in home.replicas):
                nodes = ", ".join(map(str, home.replicas))
                yield f"{name} was not removed from {stray.path} of node {stray.node}, but its replicas are on {nodes}"


def _described(index: Index) -> Iterator[str]:
    names = {place: name for name, place in index.names().items()}
    for directory in index.evidence.directories:
        for place in directory.futures:
            yield f"DescribeLogDirs has a future replica of {told(place)} in {directory.path} of node {directory.node}"
        for place in directory.replicas:
            if names.get(place, "") not in directory.folders and not directory.error:
                yield (
                    f"DescribeLogDirs reports {told(place)} in {directory.path} of node {directory.node}, but it has "
                    "no folder there"
                )


def _asked(index: Index) -> Iterator[str]:
    """Yield the replicas that are not in the target of their last swap, the one with the highest generation.

    A replica that was removed from a node and created there again restarts its generations: only moves with the
    metadata's generation concern it, and none that ended before the last reassignment was requested. One that its node
    made again, since its disk failed, has a higher generation than its last move.
    """
    remade: dict[Place, int] = defaultdict(int)
    for each in index.evidence.asked:
        remade[each.place] = max(remade[each.place], each.completed if each.type != FAIL else 0)
    moved: dict[tuple[Place, int], list[tuple[RowFact, str]]] = defaultdict(list)
    for run in index.evidence.runs:
        for row in run.rows:
            topic = index.evidence.topics.get(row.place[0])
            if run.until and run.until <= remade.get(row.place, 0):
                continue
            if row.outcome in MOVED and topic is not None and not topic.deleted and row.generation:
                moved[row.place, run.node].append((row, run.workflow_id))
    at = {
        (folder, directory.node): directory
        for directory in index.evidence.directories
        for folder in directory.folders
        if not folder.endswith(SUFFIXES)
    }
    names = {place: name for name, place in index.names().items()}
    for (place, node), rows in moved.items():
        here = at.get((names.get(place, ""), node))
        newest = max(row.generation for row, _ in rows)
        home = index.evidence.homes.get(place)
        known = dict(zip(home.replicas, home.generations, strict=False)).get(node, 0) if home is not None else 0
        if place in remade or known > newest:
            newest = known
        last = [(row, run_id) for row, run_id in rows if row.generation == newest]
        if here is not None and last and all(row.directory != here.path for row, _ in last):
            row, run_id = last[-1]
            yield (
                f"{names[place]} is in {here.path}, but its last move ({run_id}, generation {row.generation}) "
                f"ended as {row.outcome} in {row.directory}"
            )


def offline(index: Index) -> list[str]:
    """Return C9's violations: an offline directory hosts no replica, and only one with an injected fault is offline."""
    return few(_offline(index))


def _offline(index: Index) -> Iterator[str]:
    faults = {(fault.node, fault.directory): fault for fault in index.evidence.faults}
    for directory in index.evidence.directories:
        if not directory.error:
            continue
        if directory.replicas:
            some = ", ".join(told(place) for place in directory.replicas[:3])
            yield (
                f"{directory.path} of node {directory.node} is offline ({directory.error}), but DescribeLogDirs "
                f"reports {some} in it"
            )
        fault = faults.get((directory.node, directory.path))
        if fault is None or fault.back:
            why = f"it was online again at {seconds(fault.back)}" if fault is not None else "no fault was injected"
            yield f"{directory.path} of node {directory.node} is offline ({directory.error}), although {why}"


def too_fast(index: Index) -> list[str]:
    """Return C10's violations: over every window, copies stay within their run's limit and their node's."""
    by_node: dict[int, list[RateSample]] = defaultdict(list)
    for sample in index.evidence.samples:
        by_node[sample.node].append(sample)
    found: list[str] = []
    for node, samples in sorted(by_node.items()):
        samples.sort(key=lambda sample: sample.invoked)
        limits = [limit for limit in index.evidence.limits if limit.node == node]
        found += few(_fast_copies(node, samples))
        found += few(_fast_node(node, samples, limits))
    return found


def _fast_copies(node: int, samples: Sequence[RateSample]) -> Iterator[str]:
    series: dict[tuple[str, int, str, int], list[tuple[RateSample, int, int | None]]] = defaultdict(list)
    for sample in samples:
        for key, copied, limit in sample.copied:
            series[key].append((sample, copied, limit))
    for (topic, partition, directory, _), points in series.items():
        for window in WINDOWS:
            start = 0
            for end, (last, copied, _) in enumerate(points):
                while start + 1 < end and last.invoked - points[start + 1][0].completed >= window:
                    start += 1
                first, before, _ = points[start]
                own = [limit for _, _, limit in points[start : end + 1]]
                if last.invoked - first.completed < window or any(limit is None for limit in own):
                    continue
                most = max(limit for limit in own if limit is not None)
                span = last.completed - first.invoked
                if copied - before > most * TOLERANCE * span / SECOND + BURST:
                    yield (
                        f"the copy of {topic}-{partition} to {directory} of node {node} wrote {copied - before} bytes "
                        f"in the {span / SECOND:.2f} s up to {seconds(last.completed)}, its limit is {most} bytes/s"
                    )
                    break


def _fast_node(node: int, samples: Sequence[RateSample], limits: Sequence[LimitFact]) -> Iterator[str]:
    total, written = 0, []
    before: Mapping[tuple[str, int, str, int], int] = {}
    for sample in samples:
        now = {key: copied for key, copied, _ in sample.copied}
        total += sum(max(0, copied - before.get(key, 0)) for key, copied in now.items() if key in before)
        before = now
        written.append(total)
    for window in WINDOWS:
        start = 0
        for end, last in enumerate(samples):
            while start + 1 < end and last.invoked - samples[start + 1].completed >= window:
                start += 1
            first = samples[start]
            most = _in_force(limits, first.invoked, last.completed)
            if last.invoked - first.completed < window or most is None:
                continue
            span, count = last.completed - first.invoked, written[end] - written[start]
            copies = {key for sample in samples[start : end + 1] for key, _, _ in sample.copied}
            if count > most * TOLERANCE * span / SECOND + BURST + BATCH * max(0, len(copies) - 1):
                yield (
                    f"the copies of node {node} wrote {count} bytes in the {span / SECOND:.2f} s up to "
                    f"{seconds(last.completed)}, its limit is {most} bytes/s"
                )
                break


def _in_force(limits: Sequence[LimitFact], since: int, until: int) -> int | None:
    """Return the highest limit that may have been in force between the two times; None: unlimited or unknown."""
    certain = [limit for limit in limits if limit.certain and limit.completed + GRACE <= since]
    if not certain:
        return None
    newest = max(certain, key=lambda limit: limit.completed)
    rates = [newest.rate]
    rates += [limit.rate for limit in limits if limit.invoked <= until and limit.completed >= newest.invoked]
    known = [rate for rate in rates if rate is not None]
    return max(known) if len(known) == len(rates) else None


def throttles(index: Index) -> list[str]:
    """Return C11's violations: once no move is left, a node's throttle has the value that was last set."""
    return few(
        f"{fact.name} of node {fact.node} is {fact.value}, but was last set to {' or '.join(fact.allowed)}"
        for fact in index.evidence.throttles
        if fact.value not in fact.allowed
    )


def unfinished(index: Index) -> list[str]:
    """Return C12's violations: every run ends as completed, cancelled or failed with a reason; every process works."""
    return [
        *few(f"{role.name} does not work at the end: {role.why}" for role in index.evidence.roles if not role.works),
        *few(_unfinished(index)),
    ]


def _unfinished(index: Index) -> Iterator[str]:
    for run in index.evidence.runs:
        where = f"{run.workflow_id} on node {run.node}"
        if run.status == "running":
            yield f"{where} has not ended{': ' + run.waiting if run.waiting else ''}"
        elif run.status in ("terminated", "timed_out"):
            yield f"{where} was closed by the server or an operator ({run.status})"
        elif run.status == "failed" and not run.reason:
            yield f"{where} failed without a reason"
        for row in run.rows:
            if row.outcome == Outcome.FAILED and not (row.error and row.message):
                yield f"{where} reports {told(row.place)} as failed without an error"


def restarts(index: Index) -> list[str]:
    """Return C14's violations: SIGKILL and a restart change nothing on disk."""
    return few(_restarts(index))


def _restarts(index: Index) -> Iterator[str]:
    for before, after in pairwise(index.evidence.boots):
        for key in sorted(before.what.keys() | after.what.keys()):
            first, second = before.what.get(key), after.what.get(key)
            if first != second:
                node, directory, folder = key
                yield (
                    f"{folder} in {directory} of node {node} was {first or 'missing'} after one start and is "
                    f"{second or 'missing'} after the next"
                )


def acknowledged(index: Index) -> int:
    """Return the number of acknowledged records."""
    return sum(1 for send in index.sends if send.type == OK)
