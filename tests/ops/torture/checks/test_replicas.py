"""What replication excuses and what it does not, and the watches of leaders and batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.torture.ask import Led
from ops.torture.checks.facts import ReassignFact, ReassignRunFact, RowFact, RunFact
from ops.torture.checks.replicas import last_words
from ops.torture.checks.table import check
from ops.torture.history import DELETE, INFO, MARKS, OK, Event
from ops.torture.nemesis.decisions import Decision
from ops.torture.nemesis.replicas import target
from ops.torture.observers.epochs import LeaderWatch, WriteWatch
from storage_node.directories import partition_metadata
from storage_node.log.batches.batch import build_batch
from tests.ops.torture.checks import forge
from tests.ops.torture.checks.forge import A2, PAYS, at, one, with_events

FIRST, SECOND = "Zm9vYmFyYmF6cXV4MTIzNA", "Zm9vYmFyYmF6cXV4MTIzNQ"


def found(evidence: forge.Evidence) -> list[str]:
    return [finding.check for finding in check(evidence)]


# Where replicas are


@pytest.mark.parametrize(("generation", "checks"), [(3, ["C8"]), (4, [])])
def test_replica_that_was_made_again_after_its_last_move_may_be_elsewhere(generation: int, checks: list[str]) -> None:
    sound = forge.sound()
    last = RunFact("move-9", 1, "completed", rows=(RowFact(forge.ORDERS, "deleted", forge.A, 3),))
    home = replace(sound.homes[forge.ORDERS], generations=(generation,))
    assert found(replace(sound, runs=[*sound.runs, last], homes={**sound.homes, forge.ORDERS: home})) == checks


def test_dropped_replica_that_is_left_is_found() -> None:
    sound = forge.sound()
    assert found(replace(sound, directories=one(sound.directories, 4, folders=("pays-0",)))) == ["C8"]


@pytest.mark.parametrize("number", [0, 2, 3])
def test_each_replica_has_its_folder_on_its_node(number: int) -> None:
    sound = forge.sound()
    kept = tuple(f for f in sound.directories[number].folders if f != "pays-0")
    shown = tuple(p for p in sound.directories[number].replicas if p != PAYS)
    gone = replace(sound, directories=one(sound.directories, number, folders=kept, replicas=shown))
    assert found(gone) == ["C8"]
    node = sound.directories[number].node
    assert f"of node {node}" in check(gone)[0].sentence


def test_follower_in_two_directories_is_found() -> None:
    sound = forge.sound()
    twice = [*sound.directories, forge.directory(2, "/n2/disk-b", [PAYS])]
    assert found(replace(sound, directories=twice)) == ["C8"]


def test_move_before_the_replica_was_recreated_does_not_determine_its_directory() -> None:
    """Node 3 held it before, in another directory and at a higher generation."""
    sound = forge.sound()
    old = RunFact("move-9", 3, "completed", rows=(RowFact(PAYS, "deleted", "/n3/disk-b", 7),))
    assert not found(replace(sound, runs=[*sound.runs, old]))
    # A move of its former life on the node may have the same generation; the last request was at 11 s.
    former = RunFact("move-9", 2, "completed", rows=(RowFact(PAYS, "deleted", "/n2/disk-b", 1),), until=at(11))
    assert not found(replace(sound, runs=[*sound.runs, former]))
    later = replace(former, until=at(13))
    assert found(replace(sound, runs=[*sound.runs, later])) == ["C8"]
    of_now = RunFact("move-9", 2, "completed", rows=(RowFact(PAYS, "deleted", "/n2/disk-b", 1),))
    assert found(replace(sound, runs=[*sound.runs, of_now])) == ["C8"]
    right = RunFact("move-9", 2, "completed", rows=(RowFact(PAYS, "deleted", A2, 1),))
    assert not found(replace(sound, runs=[*sound.runs, of_now, right]))


# What a change of the leader may do


def test_new_leader_may_have_an_older_log_start_unless_deletion_was_acknowledged() -> None:
    low = Event("reader", MARKS, *PAYS, OK, at(30), at(31), low=3, high=forge.COUNT)
    then = Event("reader", MARKS, *PAYS, OK, at(32), at(33), low=0, high=forge.COUNT)
    asked = Event("nemesis", DELETE, *PAYS, INFO, at(28), at(29), offset=3)
    opened = with_events(forge.sound(), lambda x: x, asked, low, then)
    assert not found(opened)
    confirmed = with_events(opened, lambda x: replace(x, type=OK) if x is asked else x)
    assert {"C7"} == set(found(confirmed))


def test_batches_not_committed_at_a_swap_may_be_truncated() -> None:
    sound = forge.sound()
    (swap,) = sound.swaps
    cut = replace(swap, place=PAYS, node=1, seal_high=10, end=10, differences=((10, 1, None),))
    assert not found(replace(sound, swaps=[cut]))
    assert found(replace(sound, swaps=[replace(cut, differences=((5, 1, None),))])) == ["C6"]
    assert found(replace(sound, swaps=[replace(cut, end=9)])) == ["C7"]


@pytest.mark.parametrize("why", ["failed (Superseded): by reassign-4", "failed (TopicDeleted): The topic is gone"])
def test_superseded_run_has_ended(why: str) -> None:
    sound = forge.sound()
    more = ReassignRunFact("reassign-3", "failed", why)
    assert not found(replace(sound, reassignments=[*sound.reassignments, more]))


# The last request


BEFORE, ONE, TWO = (1, 2, 3), (2, 3, 4), (4, 1, 2)


def word(target: tuple[int, ...] | None, begin: int, end: int, kind: str = OK) -> ReassignFact:
    return ReassignFact(PAYS, target, kind, at(begin), at(end))


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ([], {BEFORE}),
        ([word(ONE, 0, 1)], {ONE}),
        ([word(ONE, 0, 1), word(TWO, 2, 3)], {TWO}),
        ([word(ONE, 0, 2), word(TWO, 1, 3)], {ONE, TWO}),
        ([word(ONE, 0, 1), word(None, 2, 3)], {BEFORE, ONE}),
        ([word(ONE, 0, 1), word(None, 2, 3), word(TWO, 4, 5)], {TWO}),
        ([word(ONE, 0, 1, INFO)], {BEFORE, ONE}),
        ([word(ONE, 0, 1), word(TWO, 2, 3, INFO)], {ONE, TWO}),
        ([word(ONE, 0, 1, INFO), word(TWO, 2, 3)], {ONE, TWO}),
        ([word(ONE, 0, 1, INFO), word(TWO, 60, 61)], {TWO}),
    ],
)
def test_last_request_determines_the_replicas(asked: list[ReassignFact], allowed: set[tuple[int, ...]]) -> None:
    assert last_words(BEFORE, asked) == allowed


def test_targets_are_among_the_nodes_and_never_fewer_than_two() -> None:
    nodes, sizes = (1, 2, 3, 4), set()
    for number in range(200):
        decision = Decision(1, "reassign", 0.0, (number / 200,) * 6)
        chosen = target(decision, 0, (1, 2, 3), nodes)
        assert len(set(chosen)) == len(chosen) and set(chosen) <= set(nodes)
        sizes.add(len(chosen))
        assert len(target(decision, 0, (1, 2), nodes)) in (2, 3)
    assert sizes == {2, 3, 4}


# Watches


class Disks:
    """Two nodes with one directory each, below a folder."""

    nodes = (1, 2)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log_dirs(self, node: int) -> tuple[str, ...]:
        return (f"node-{node}",)

    def disk(self, node: int, directory: str) -> Path:
        return self.folder / directory

    def write(self, node: int, *batches: bytes, topic_id: str = FIRST, append: bool = False) -> None:
        replica = self.folder / f"node-{node}" / "pays-0"
        replica.mkdir(parents=True, exist_ok=True)
        partition_metadata.write(replica, topic_id, directory="d")
        with (replica / f"{0:020d}.log").open("ab" if append else "wb") as file:
            file.write(b"".join(batches))


def batch(base: int, epoch: int, value: str) -> bytes:
    raw = bytearray(build_batch([value.encode()], base_offset=base))
    raw[12:16] = epoch.to_bytes(4, "big")
    return bytes(raw)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(tmp_path)


def watch(disks: Any) -> WriteWatch:
    return WriteWatch(disks)


def test_identical_replicas_do_not_clash(disks: Disks) -> None:
    seen = watch(disks)
    disks.write(1, batch(0, 0, "a"), batch(1, 1, "b"))
    seen.look()
    disks.write(2, batch(0, 0, "a"))
    seen.look()
    disks.write(2, batch(1, 1, "b"), append=True)
    seen.look()
    assert (seen.clashes, seen.batches) == ([], 2)


def test_two_batches_under_one_epoch_clash_though_one_is_truncated_later(disks: Disks) -> None:
    seen = watch(disks)
    disks.write(1, batch(0, 0, "a"), batch(1, 3, "mine"))
    disks.write(2, batch(0, 0, "a"))
    seen.look()
    disks.write(1, batch(0, 0, "a"))
    disks.write(2, batch(1, 3, "theirs"), append=True)
    seen.look()
    (clash,) = seen.clashes
    assert (clash.place, clash.epoch, clash.offset, clash.first[0], clash.second[0]) == (PAYS, 3, 1, 1, 2)


def test_what_a_deposed_leader_wrote_under_its_own_epoch_is_no_clash(disks: Disks) -> None:
    seen = watch(disks)
    disks.write(1, batch(0, 0, "a"), batch(1, 3, "old"), batch(2, 3, "older"))
    disks.write(2, batch(0, 0, "a"), batch(1, 4, "new"))
    seen.look()
    disks.write(1, batch(0, 0, "a"), batch(1, 4, "new"), batch(2, 4, "newer"), batch(3, 4, "newest"))
    seen.look()
    assert (seen.clashes, seen.batches) == ([], 6)


def test_recreated_topic_has_a_life_of_its_own_and_incomplete_batch_waits(disks: Disks) -> None:
    seen = watch(disks)
    whole = batch(0, 0, "a")
    disks.write(1, whole)
    seen.look()
    disks.write(1, batch(0, 0, "again"), batch(1, 0, "b")[:40], topic_id=SECOND)
    seen.look()
    assert (seen.clashes, seen.batches) == ([], 2)
    disks.write(1, batch(1, 0, "b")[40:], topic_id=SECOND, append=True)
    seen.look()
    assert seen.batches == 3


def test_leader_watch_keeps_one_report_per_epoch_and_leader(disks: Any) -> None:
    seen = LeaderWatch(disks)
    for leader, epoch in ((1, 0), (1, 0), (-1, 1), (2, 2), (3, 2)):
        seen.take("node 1", [Led("pays", FIRST, 0, leader, epoch, (1, 2, 3), (1,))])
    assert [(fact.epoch, fact.leader) for fact in seen.leaders] == [(0, 1), (2, 2), (2, 3)]
