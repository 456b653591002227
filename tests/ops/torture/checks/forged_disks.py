"""Anomalies of disks, moves, rates and starts, by the check that finds them: C6, C8 to C12 and C14."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ops.torture.checks.facts import Boot, Evidence, LimitFact, RowFact, RunFact
from tests.ops.torture.checks import forge
from tests.ops.torture.checks.forge import ORDERS, OTHER, SECOND, A, B, at, one

Forger = Callable[[Evidence], Evidence]


def batch_changed_at_the_swap(e: Evidence) -> Evidence:
    return replace(e, swaps=one(e.swaps, 0, differences=((5, 1, 2),)))


def batch_missing_after_the_swap(e: Evidence) -> Evidence:
    return replace(e, swaps=one(e.swaps, 0, differences=((5, 1, None),)))


def head_missing_after_the_swap(e: Evidence) -> Evidence:
    return replace(e, swaps=one(e.swaps, 0, first=10))


def corrupt_batch_on_the_disk(e: Evidence) -> Evidence:
    return replace(e, scans=one(e.scans, 1, problems=("the batch at offset 5 in 0.log has CRC 1, its bytes have 2",)))


def copy_left_behind(e: Evidence) -> Evidence:
    return _folders(e, 0, "orders-0.move")


def source_left_behind(e: Evidence) -> Evidence:
    return _folders(e, 0, f"orders-0.{'0' * 32}.delete")


def replica_in_two_directories(e: Evidence) -> Evidence:
    return _folders(e, 0, "orders-0")


def deleted_topic_came_back(e: Evidence) -> Evidence:
    return _folders(e, 0, "visits-0")


def replica_nowhere(e: Evidence) -> Evidence:
    changed = replace(e.directories[1], folders=(), replicas=())
    return replace(e, directories=[e.directories[0], changed])


def _folders(e: Evidence, number: int, folder: str) -> Evidence:
    there = e.directories[number]
    return replace(e, directories=one(e.directories, number, folders=(*there.folders, folder)))


def metadata_knows_another_directory(e: Evidence) -> Evidence:
    return replace(e, homes={**e.homes, OTHER: replace(e.homes[OTHER], directories=(B,))})


def last_move_went_elsewhere(e: Evidence) -> Evidence:
    more = RunFact("move-9", 1, "completed", rows=(RowFact(ORDERS, "deleted", A, 3),))
    return replace(e, runs=[*e.runs, more])


def described_copy_without_a_move(e: Evidence) -> Evidence:
    return replace(e, directories=one(e.directories, 0, futures=(ORDERS,)))


def described_where_no_folder_is(e: Evidence) -> Evidence:
    return replace(e, directories=one(e.directories, 0, replicas=(*e.directories[0].replicas, ORDERS)))


def offline_directory_serves(e: Evidence) -> Evidence:
    return replace(e, directories=one(e.directories, 1, error="KAFKA_STORAGE_ERROR"))


def healthy_directory_is_offline(e: Evidence) -> Evidence:
    changed = replace(e, directories=one(e.directories, 1, error="KAFKA_STORAGE_ERROR", replicas=()), faults=[])
    return replace(changed, runs=[run for run in e.runs if "TargetFull" not in run.reason])


def mended_directory_is_offline(e: Evidence) -> Evidence:
    changed = replace(e, directories=one(e.directories, 1, error="KAFKA_STORAGE_ERROR", replicas=()))
    return replace(changed, faults=[replace(e.faults[0], back=at(9))])


def copy_beyond_its_limit(e: Evidence) -> Evidence:
    def faster(n: int, copied: int) -> int:
        return copied + (4 * forge.RATE if n >= 40 else 0)

    samples = [
        replace(s, copied=tuple((key, faster(n, copied), limit) for key, copied, limit in s.copied))
        for n, s in enumerate(e.samples)
    ]
    # The copy must exceed its run's limit alone, not the node's.
    return replace(e, samples=samples, limits=[LimitFact(1, 0, 1, 10 * forge.RATE)])


def node_beyond_its_limit(e: Evidence) -> Evidence:
    """Four copies within their runs' limits exceed the node's limit together."""
    samples = [
        replace(
            s,
            copied=tuple(
                ((topic, n, d, c), copied, limit) for (topic, _, d, c), copied, limit in s.copied for n in range(4)
            ),
        )
        for s in e.samples
    ]
    return replace(e, samples=samples, limits=[LimitFact(1, -60 * SECOND, -59 * SECOND, 2 * forge.RATE)])


def throttle_left_behind(e: Evidence) -> Evidence:
    return replace(e, throttles=one(e.throttles, 0, value="7"))


def throttle_removed(e: Evidence) -> Evidence:
    return replace(e, throttles=one(e.throttles, 0, value="None"))


def stuck_run(e: Evidence) -> Evidence:
    return replace(e, runs=[*e.runs, RunFact("move-4", 1, "running", waiting="waiting for node 1")])


def failed_without_reason(e: Evidence) -> Evidence:
    return replace(e, runs=[*e.runs, RunFact("move-4", 1, "failed")])


def row_failed_without_reason(e: Evidence) -> Evidence:
    run = RunFact("move-4", 1, "failed", "NodeFailure", (RowFact(OTHER, "failed", B),))
    return replace(e, runs=[*e.runs, run])


def terminated_run(e: Evidence) -> Evidence:
    return replace(e, runs=[*e.runs, RunFact("move-4", 1, "terminated", "by the server")])


def process_that_stays_away(e: Evidence) -> Evidence:
    return replace(e, roles=one(e.roles, 0, works=False, why="it does not run"))


def second_start_removed_a_replica(e: Evidence) -> Evidence:
    return replace(e, boots=[e.boots[0], Boot({})])


def second_start_changed_a_replica(e: Evidence) -> Evidence:
    return replace(e, boots=[e.boots[0], Boot({(1, B, "orders-0"): "CURRENT 0 to 18"})])


def second_start_made_a_folder(e: Evidence) -> Evidence:
    more = {**e.boots[0].what, (1, A, "orders-0.move"): "COPYING"}
    return replace(e, boots=[e.boots[0], Boot(more)])


ANOMALIES: dict[str, list[Forger]] = {
    "C6": [
        batch_changed_at_the_swap,
        batch_missing_after_the_swap,
        head_missing_after_the_swap,
        corrupt_batch_on_the_disk,
    ],
    "C8": [
        copy_left_behind,
        source_left_behind,
        replica_in_two_directories,
        deleted_topic_came_back,
        replica_nowhere,
        metadata_knows_another_directory,
        last_move_went_elsewhere,
        described_copy_without_a_move,
        described_where_no_folder_is,
    ],
    "C9": [offline_directory_serves, healthy_directory_is_offline, mended_directory_is_offline],
    "C10": [copy_beyond_its_limit, node_beyond_its_limit],
    "C11": [throttle_left_behind, throttle_removed],
    "C12": [
        stuck_run,
        failed_without_reason,
        row_failed_without_reason,
        terminated_run,
        process_that_stays_away,
    ],
    "C14": [second_start_removed_a_replica, second_start_changed_a_replica, second_start_made_a_folder],
}
