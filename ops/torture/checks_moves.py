"""C6, C8 to C12 and C14: the disks, the moves' outcomes, rates, throttles and starts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ops.torture.facts import Batch, DirectoryFact, LimitFact, Place, RateSample, RowFact
from ops.torture.history import FAIL, OK
from ops.torture.index import Index, few, seconds, told

SUFFIXES = (".move", ".delete")
SUCCEEDED = ("swapped", "deleted", "in_place")

SECOND = 1_000_000_000
#: Windows in which rates are looked at (ns).
WINDOWS = (1 * SECOND, 4 * SECOND, 16 * SECOND)
#: What a copy may be above its limit: create_move copies up to 1 MiB itself, the swap copies the tail without a limit.
BURST = 2 << 20
#: What each further copy may seem to be above it: a copy counts whole batches, and a batch has up to so much.
BATCH = 1 << 20
TOLERANCE = 1.05
#: How long (ns) a limit that was replaced may still be in force: a node may be away, or be told late.
GRACE = 20 * SECOND


def compare(
    source: Sequence[Batch], copy: Sequence[Batch], start: int, end: int
) -> tuple[int, tuple[tuple[int, int | None, int | None], ...]]:
    """How many batches of source and copy between two offsets were compared, and where they are not the same.

    A batch that begins below `start` belongs to it where `start` is inside the batch.
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
    """C6: the copy holds the source's batches byte for byte, and every batch on the disks has its CRC."""
    problems = [problem for scan in index.evidence.scans for problem in scan.problems]
    return [*few(_changed(index)), *few(problems)]


def _changed(index: Index) -> Iterator[str]:
    for swap in index.evidence.swaps:
        where = f"the swap of {told(swap.place)} from {swap.source} to {swap.target} at {seconds(swap.at)}"
        # What was not committed may have been truncated since, when a follower was told by its leader.
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
    """C8: at the end each replica has one folder, where the metadata, DescribeLogDirs and its last move say."""
    return [*few(_folders(index)), *few(_described(index)), *few(_asked(index))]


def _folders(index: Index) -> Iterator[str]:
    names = index.names()
    found: dict[str, list[DirectoryFact]] = defaultdict(list)
    for directory in index.evidence.directories:
        for folder in directory.folders:
            if folder.endswith(SUFFIXES):
                yield f"{folder} is left in {directory.path} of node {directory.node}"
            elif folder not in names:
                yield f"{folder} stands in {directory.path} of node {directory.node}, but there is no such replica"
            else:
                found[folder].append(directory)
    for name, place in names.items():
        where = found.get(name, [])
        home = index.evidence.homes.get(place)
        for node in home.replicas if home is not None else (None,):
            here = [each for each in where if node is None or each.node == node]
            if len(here) != 1:
                there = ", ".join(f"{d.path} of node {d.node}" for d in here) or "no directory"
                yield f"{name} stands in {there} {'' if node is None else f'of node {node} '}instead of exactly one"
            elif home is not None and node is not None and here[0].path != home.directory(node):
                yield (
                    f"{name} stands in {here[0].path} of node {node}, but the metadata has it in "
                    f"{home.directory(node)} there"
                )
        if home is not None:
            for stray in (each for each in where if each.node not in home.replicas):
                nodes = ", ".join(map(str, home.replicas))
                yield f"{name} is left in {stray.path} of node {stray.node}, but its replicas are on {nodes}"


def _described(index: Index) -> Iterator[str]:
    names = {place: name for name, place in index.names().items()}
    for directory in index.evidence.directories:
        for place in directory.futures:
            yield f"DescribeLogDirs still shows a copy of {told(place)} in {directory.path} of node {directory.node}"
        for place in directory.replicas:
            if names.get(place, "") not in directory.folders and not directory.error:
                yield (
                    f"DescribeLogDirs shows {told(place)} in {directory.path} of node {directory.node}, where no "
                    "folder of it is"
                )


def _asked(index: Index) -> Iterator[str]:
    """The move with the highest generation is the last that swapped: its directory is where the replica is.

    A replica that was taken off a node and made there again counts its generations from the beginning: then only moves
    of the generation that the metadata has speak of it, and none that ended before the last reassignment was requested.
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
            if row.outcome in SUCCEEDED and topic is not None and not topic.deleted and row.generation:
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
        if place in remade:
            home = index.evidence.homes.get(place)
            newest = dict(zip(home.replicas, home.generations, strict=False)).get(node, 0) if home is not None else 0
        last = [(row, run_id) for row, run_id in rows if row.generation == newest]
        if here is not None and last and all(row.directory != here.path for row, _ in last):
            row, run_id = last[-1]
            yield (
                f"{names[place]} stands in {here.path}, but its last move ({run_id}, generation {row.generation}) "
                f"ended as {row.outcome} in {row.directory}"
            )


def offline(index: Index) -> list[str]:
    """C9: an offline directory serves nothing, and only one that was made to fail is offline."""
    return few(_offline(index))


def _offline(index: Index) -> Iterator[str]:
    faults = {(fault.node, fault.directory): fault for fault in index.evidence.faults}
    for directory in index.evidence.directories:
        if not directory.error:
            continue
        if directory.replicas:
            some = ", ".join(told(place) for place in directory.replicas[:3])
            yield (
                f"{directory.path} of node {directory.node} is offline ({directory.error}), but {some} is served "
                "from it"
            )
        fault = faults.get((directory.node, directory.path))
        if fault is None or fault.back:
            why = f"it was back at {seconds(fault.back)}" if fault is not None else "nothing was done to it"
            yield f"{directory.path} of node {directory.node} is offline ({directory.error}), though {why}"


def too_fast(index: Index) -> list[str]:
    """C10: in every window of at least a second a copy stays within its run's limit, and a node's copies within its."""
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
    """The highest limit of a node that may have been in force at any time between; None: none, or not known."""
    certain = [limit for limit in limits if limit.certain and limit.completed + GRACE <= since]
    if not certain:
        return None
    newest = max(certain, key=lambda limit: limit.completed)
    rates = [newest.rate]
    rates += [limit.rate for limit in limits if limit.invoked <= until and limit.completed >= newest.invoked]
    known = [rate for rate in rates if rate is not None]
    return max(known) if len(known) == len(rates) else None


def throttles(index: Index) -> list[str]:
    """C11: no move leaves a throttle other than the one that was there, or that somebody set meanwhile."""
    return few(
        f"{fact.name} of node {fact.node} is {fact.value}, but was last set to {' or '.join(fact.allowed)}"
        for fact in index.evidence.throttles
        if fact.value not in fact.allowed
    )


def unfinished(index: Index) -> list[str]:
    """C12: when all is healed every run ends as done, cancelled or failed with a reason, and every process works."""
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
            yield f"{where} was ended from outside ({run.status})"
        elif run.status == "failed" and not run.reason:
            yield f"{where} failed without a reason"
        for row in run.rows:
            if row.outcome == "failed" and not (row.error and row.message):
                yield f"{where} says that {told(row.place)} failed, but not why"


def restarts(index: Index) -> list[str]:
    """C14: kill -9 and start again changes nothing on the disks."""
    return few(_restarts(index))


def _restarts(index: Index) -> Iterator[str]:
    for before, after in pairwise(index.evidence.boots):
        for key in sorted(before.what.keys() | after.what.keys()):
            first, second = before.what.get(key), after.what.get(key)
            if first != second:
                node, directory, folder = key
                yield (
                    f"{folder} in {directory} of node {node} was {first or 'not there'} after one start and is "
                    f"{second or 'not there'} after the next"
                )


def acknowledged(index: Index) -> int:
    """How many records were acknowledged, for the summary."""
    return sum(1 for send in index.sends if send.type == OK)
