"""Anomalies of leaders, replicas and reassignments, by the check that finds them: C15 to C18."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ops.torture.checks.facts import Batch, ClashFact, Evidence, LeaderFact, ReassignFact, ReassignRunFact
from ops.torture.history import OK
from tests.ops.torture.checks.forge import PAYS, at

Forger = Callable[[Evidence], Evidence]


def two_leaders_in_one_epoch(e: Evidence) -> Evidence:
    return replace(e, leaders=[*e.leaders, LeaderFact(PAYS, "id", 3, 1, "node 1", at(9))])


def two_nodes_wrote_under_one_epoch(e: Evidence) -> Evidence:
    return replace(e, clashes=[ClashFact(PAYS, "id", 3, 17, (1, 10, at(8)), (2, 11, at(9)))])


def follower_lost_its_tail(e: Evidence) -> Evidence:
    return _batches(e, 3, lambda batches: batches[:-1])


def follower_has_another_batch(e: Evidence) -> Evidence:
    return _batches(e, 1, lambda batches: (batches[0], replace(batches[1], digest=-1), *batches[2:]))


def follower_lacks_a_batch(e: Evidence) -> Evidence:
    return _batches(e, 3, lambda batches: (batches[0], *batches[2:]))


def follower_begins_later(e: Evidence) -> Evidence:
    return _batches(e, 1, lambda batches: batches[1:])


def leader_has_another_batch_than_its_followers(e: Evidence) -> Evidence:
    return _batches(e, 2, lambda batches: (*batches[:-1], replace(batches[-1], digest=7)))


def follower_is_empty(e: Evidence) -> Evidence:
    return _batches(e, 3, lambda _: ())


def _batches(e: Evidence, node: int, change: Callable[[tuple[Batch, ...]], tuple[Batch, ...]]) -> Evidence:
    scans = [
        replace(scan, batches=change(tuple(scan.batches))) if (scan.place, scan.node) == (PAYS, node) else scan
        for scan in e.scans
    ]
    return replace(e, scans=scans)


def still_adding(e: Evidence) -> Evidence:
    return replace(e, homes={**e.homes, PAYS: replace(e.homes[PAYS], adding=(3,))})


def still_removing(e: Evidence) -> Evidence:
    return replace(e, homes={**e.homes, PAYS: replace(e.homes[PAYS], removing=(3,))})


def still_listed(e: Evidence) -> Evidence:
    return replace(e, listed=[PAYS])


def stuck_reassignment(e: Evidence) -> Evidence:
    return _run(e, ReassignRunFact("reassign-3", "running", "waiting for node 3"))


def failed_reassignment(e: Evidence) -> Evidence:
    return _run(e, ReassignRunFact("reassign-3", "failed", "failed (NodeFailure): node 3 is gone"))


def terminated_reassignment(e: Evidence) -> Evidence:
    return _run(e, ReassignRunFact("reassign-3", "terminated"))


def _run(e: Evidence, run: ReassignRunFact) -> Evidence:
    return replace(e, reassignments=[*e.reassignments, run])


def last_target_was_forgotten(e: Evidence) -> Evidence:
    return replace(e, asked=[*e.asked, ReassignFact(PAYS, (4, 2, 1), OK, at(13), at(14))])


def cancel_left_something_new(e: Evidence) -> Evidence:
    """No request before the cancel had the final replicas as its target."""
    return replace(e, asked=[e.asked[0], ReassignFact(PAYS, None, OK, at(7), at(8))])


def refused_target_was_taken(e: Evidence) -> Evidence:
    return replace(e, asked=e.asked[:3], initial={PAYS: (4, 2, 1)})


def order_of_replicas_was_lost(e: Evidence) -> Evidence:
    return replace(e, asked=[*e.asked, ReassignFact(PAYS, (3, 2, 1), OK, at(13), at(14))])


def follower_out_of_sync(e: Evidence) -> Evidence:
    return replace(e, homes={**e.homes, PAYS: replace(e.homes[PAYS], isr=(2, 1))})


def no_leader(e: Evidence) -> Evidence:
    return replace(e, homes={**e.homes, PAYS: replace(e.homes[PAYS], leader=-1)})


def leader_without_a_replica(e: Evidence) -> Evidence:
    return replace(e, homes={**e.homes, PAYS: replace(e.homes[PAYS], leader=4)})


ANOMALIES: dict[str, list[Forger]] = {
    "C15": [two_leaders_in_one_epoch, two_nodes_wrote_under_one_epoch],
    "C16": [
        follower_lost_its_tail,
        follower_has_another_batch,
        follower_lacks_a_batch,
        follower_begins_later,
        leader_has_another_batch_than_its_followers,
        follower_is_empty,
    ],
    "C17": [
        still_adding,
        still_removing,
        still_listed,
        stuck_reassignment,
        failed_reassignment,
        terminated_reassignment,
        last_target_was_forgotten,
        cancel_left_something_new,
        refused_target_was_taken,
        order_of_replicas_was_lost,
    ],
    "C18": [follower_out_of_sync, no_leader, leader_without_a_replica],
}
