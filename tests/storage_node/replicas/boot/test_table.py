"""What a start does with what it finds: the table, row by row, with and without markers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.replicas.boot.actions import (
    BootPlan,
    Copy,
    Found,
    Rename,
    ResumeMove,
    ScheduleDelete,
    SuspendMove,
    WriteMarker,
)
from storage_node.replicas.boot.table import TABLE, Current, Deleted, Moving, decide
from storage_node.replicas.marker import Marker, Reason, State

TP = TopicPartition("t", 0)
HEX = "0" * 32
MARKER = Marker("t", 0, source_id="a", target_id="b")
NONE: frozenset[str] = frozenset()


def current(disk: str, generation: int = 0, *, bare: bool = False, **fields: object) -> Copy:
    marker = None if bare else replace(MARKER, generation=generation, source_id=disk, **fields)  # type: ignore[arg-type]
    return Copy(disk, Path(f"/{disk}/t-0"), "current", marker)


def moving(disk: str, state: State | None, generation: int = 1, claim: int = 1, source: str = "a") -> Copy:
    marker = None
    if state is not None:
        marker = replace(MARKER, state=state, generation=generation, claim=claim, source_id=source, target_id=disk)
    return Copy(disk, Path(f"/{disk}/t-0.move"), "move", marker)


def deleted(disk: str, generation: int | None = 0, reason: str = Reason.SWAP, target: str = "b") -> Copy:
    marker = None
    if generation is not None:
        marker = replace(
            MARKER, state=State.DELETED, reason=reason, generation=generation, source_id=disk, target_id=target
        )
    return Copy(disk, Path(f"/{disk}/t-0.{HEX}.delete"), "delete", marker)


def boot(*copies: Copy, missing: str = "", assigned: str | None = "a", generation: int = 0) -> BootPlan:
    kinds = {kind: tuple(c for c in copies if c.kind == kind) for kind in ("current", "move", "delete")}
    found = Found(TP, kinds["current"], kinds["move"], kinds["delete"])
    return decide(found, frozenset(missing), assigned, generation, visible=frozenset("abc") - frozenset(missing))


def names(plan: BootPlan, kind: type) -> list[str]:
    return [str(a.path if hasattr(a, "path") else a.source) for a in plan.actions if isinstance(a, kind)]


# KIP-113's words, for folders that no marker speaks for


@pytest.mark.feature("113-21")
def test_replica_and_copy_without_markers_copies_on() -> None:
    plan = boot(current("a", bare=True), moving("b", None))
    assert plan.state == "online" and str(plan.path) == "/a/t-0"
    [resumed] = [a for a in plan.actions if isinstance(a, ResumeMove)]
    assert (resumed.marker.state, resumed.marker.generation, resumed.marker.source_id) == (State.COPYING, 1, "a")
    assert plan.actions.index(resumed) > plan.actions.index(WriteMarker(resumed.path, resumed.marker))


@pytest.mark.feature("113-22")
def test_only_a_copy_without_marker_is_promoted() -> None:
    plan = boot(moving("b", None), assigned=None)
    assert plan.actions[0] == Rename(Path("/b/t-0.move"), Path("/b/t-0"))
    assert (plan.state, str(plan.path), plan.directory_id) == ("online", "/b/t-0", "b")


@pytest.mark.feature("113-23")
def test_only_a_copy_without_marker_and_any_directory_missing_is_left_alone() -> None:
    plan = boot(moving("b", None), missing="z", assigned=None)
    assert (plan.state, plan.actions) == ("offline", ())


@pytest.mark.feature("113-24")
@pytest.mark.parametrize("with_replica", [True, False])
def test_delete_without_marker_is_scheduled(with_replica: bool) -> None:
    copies = [current("b")] if with_replica else []
    plan = boot(deleted("a", None), *copies, assigned="b" if with_replica else None)
    assert names(plan, ScheduleDelete) == [f"/a/t-0.{HEX}.delete"]
    assert plan.state == ("online" if with_replica else "absent")


def test_last_folder_of_an_assigned_replica_is_never_deleted() -> None:
    assert boot(deleted("a", None)).actions == ()
    assert boot(deleted("a", None)).state == "offline"


# What markers change


def test_sealed_copy_is_not_sealed_any_more_before_the_source_accepts_records() -> None:
    plan = boot(current("a"), moving("b", State.SEALED))
    written = plan.actions[0]
    assert isinstance(written, WriteMarker)
    assert (written.marker.state, written.marker.seal_leo) == (State.COPYING, -1)


def test_copy_keeps_the_generation_that_the_metadata_gave_it() -> None:
    plan = boot(current("a", 2), moving("b", State.COPYING, 5), generation=5)
    assert [a.marker.generation for a in plan.actions if isinstance(a, ResumeMove)] == [5]
    plan = boot(current("a", 6), moving("b", State.COPYING, 5), generation=5)
    assert [a.marker.generation for a in plan.actions if isinstance(a, ResumeMove)] == [7]


def test_only_a_sealed_copy_is_promoted_then_its_source_deleted() -> None:
    plan = boot(moving("b", State.SEALED), deleted("a"), generation=1)
    assert [type(a) for a in plan.actions] == [Rename, WriteMarker, ScheduleDelete]
    assert plan.actions[2].guarded  # type: ignore[union-attr]
    assert (plan.state, plan.generation, plan.directory_id) == ("online", 1, "b")


@pytest.mark.parametrize("missing", ["a", "b", "c"])
def test_sealed_copy_alone_waits_for_every_directory_that_matters(missing: str) -> None:
    plan = boot(moving("b", State.SEALED), missing=missing, assigned="a")
    assert plan.state == ("online" if missing == "c" else "offline")
    assert (plan.actions == ()) is (missing != "c")


def test_sealed_copy_that_is_older_than_the_metadata_is_left_alone() -> None:
    plan = boot(moving("b", State.SEALED, generation=1), generation=2)
    assert (plan.state, plan.actions) == ("offline", ())
    assert boot(moving("b", State.SEALED, generation=2), generation=2).state == "online"


def test_partial_copy_is_never_promoted() -> None:
    assert boot(moving("b", State.COPYING)).state == "offline"
    assert boot(moving("b", State.COPYING), assigned=None).actions == ()
    plan = boot(moving("b", State.COPYING), deleted("a"))
    assert plan.state == "online" and str(plan.path) == "/a/t-0"
    assert names(plan, ResumeMove) == ["/b/t-0.move"]


def test_source_that_is_taken_back_is_two_generations_higher_before_its_name_says_so() -> None:
    plan = boot(deleted("a", 4))
    assert [type(a) for a in plan.actions] == [WriteMarker, Rename]
    marker = plan.actions[0].marker  # type: ignore[union-attr]
    assert marker is not None
    assert (marker.state, marker.generation, plan.generation) == (State.CURRENT, 6, 6)


@pytest.mark.parametrize("missing", ["b", "c"])
def test_source_alone_is_kept_while_its_successor_may_come_back(missing: str) -> None:
    plan = boot(deleted("a"), missing=missing, assigned="c")
    assert (plan.state, plan.actions) == ("offline", ())


def test_source_that_was_moved_on_from_since_does_not_come_back() -> None:
    plan = boot(deleted("a", 1), generation=7)
    assert (plan.state, plan.actions) == ("offline", ())


def test_of_two_replicas_the_newer_one_wins() -> None:
    plan = boot(current("a", 1), current("b", 2))
    assert str(plan.path) == "/b/t-0"
    [rename] = [a for a in plan.actions if isinstance(a, Rename)]
    assert rename.source == Path("/a/t-0")
    assert [a.guarded for a in plan.actions if isinstance(a, ScheduleDelete)] == [True]


def test_replica_that_was_being_set_aside_waits_for_the_newer_one() -> None:
    """The start that set it aside was killed before the rename: what came after it may be in the missing directory."""
    first = boot(current("a", 2), current("b", 1, state=State.SEALED))
    mark = next(a for a in first.actions if isinstance(a, WriteMarker) and a.path == Path("/b/t-0"))
    cut_off = Copy("b", mark.path, "current", mark.marker)
    assert (boot(cut_off, missing="a").state, boot(cut_off, missing="c").state) == ("offline", "online")
    again = boot(current("a", 2), cut_off)
    assert str(again.path) == "/a/t-0"
    assert [str(a.source) for a in again.actions if isinstance(a, Rename)] == ["/b/t-0"]


def test_removal_of_a_folder_that_never_was_a_replica_is_finished() -> None:
    """A start that was killed between its marker and its name must not leave two replicas."""
    never = Copy("b", Path("/b/t-0"), "current", unborn=True)
    first = boot(current("a", bare=True), never)
    mark = next(a for a in first.actions if isinstance(a, WriteMarker))
    again = boot(current("a", bare=True), replace(never, marker=mark.marker, unborn=False))
    assert str(again.path) == "/a/t-0"
    assert [str(a.source) for a in again.actions if isinstance(a, Rename)] == ["/b/t-0"]


def test_of_two_equal_replicas_none_is_served() -> None:
    assert boot(current("a", 1), current("b", 1)).state == "offline"
    assert boot(current("a", bare=True), current("b", bare=True)).actions == ()


def test_folder_of_an_interrupted_creation_is_no_replica_while_a_directory_that_may_have_one_is_missing() -> None:
    never = Copy("b", Path("/b/t-0"), "current", unborn=True)
    assert boot(never, missing="a", assigned="a").state == "offline"
    again = boot(never, missing="a", assigned="b", generation=1)
    assert (again.state, [str(a.source) for a in again.actions if isinstance(a, Rename)]) == ("absent", ["/b/t-0"])
    assert boot(never, assigned="b").state == "online"


@pytest.mark.parametrize("bare", [False, True])
def test_replica_gets_the_generation_of_one_that_was_to_be_made_again_and_never_was(bare: bool) -> None:
    """The metadata would take no report with a lower one."""
    served = current("a", bare=True) if bare else current("a", 1)
    plan = boot(served, assigned="b", generation=3)
    assert (plan.state, plan.directory_id, plan.generation) == ("online", "a", 3)
    assert boot(current("a", 1), missing="b", assigned="b", generation=3).state == "offline"
    assert boot(current("a", 1), assigned="a", generation=3).generation == 1
    assert boot(current("a", 1), deleted("b", 0, target="a"), assigned="b", generation=3).generation == 1
    beside = boot(current("a", 1), moving("b", State.COPYING), assigned="b", generation=3)
    assert (beside.generation, [m.marker.generation for m in beside.actions if isinstance(m, ResumeMove)]) == (3, [4])
    forgotten = boot(current("a", 1), assigned="z", generation=3)
    assert (forgotten.state, forgotten.generation) == ("online", 1), "what it had is lost by the operator's word"


def test_old_replica_is_not_served_while_the_newer_one_may_come_back() -> None:
    assert boot(current("a", 1), missing="b", assigned="b", generation=2).state == "offline"
    # Its own directory is the one that is assigned: the higher generation is that of a cancelled move.
    assert boot(current("a", 1), missing="b", assigned="a", generation=2).state == "online"


def test_moves_between_good_directories_continue_while_another_is_missing() -> None:
    plan = boot(current("a"), moving("b", State.COPYING), missing="c")
    assert names(plan, ResumeMove) == ["/b/t-0.move"]


def test_move_whose_source_is_missing_is_suspended() -> None:
    plan = boot(current("b", 3), moving("c", State.SEALED, 4, source="a"), missing="a", assigned="b")
    assert plan.state == "online"
    assert names(plan, SuspendMove) == ["/c/t-0.move"] and names(plan, ResumeMove) == []


@pytest.mark.feature("113-05")
def test_cancel_is_finished() -> None:
    plan = boot(current("a"), moving("b", State.CANCELLED))
    [rename] = [a for a in plan.actions if isinstance(a, Rename)]
    assert rename.source == Path("/b/t-0.move") and rename.target.name.endswith(".delete")
    [due] = [a for a in plan.actions if isinstance(a, ScheduleDelete)]
    assert due.path == rename.target and not due.guarded


def test_copy_of_an_older_claim_is_cancelled() -> None:
    plan = boot(current("a", claim=3), moving("b", State.COPYING, claim=2), moving("c", State.COPYING, claim=3))
    assert names(plan, ResumeMove) == ["/c/t-0.move"]
    assert [a.source for a in plan.actions if isinstance(a, Rename)] == [Path("/b/t-0.move")]


def test_replica_that_was_created_again_is_newer_than_what_an_absent_disk_brings_back() -> None:
    """The replica had gone to other nodes meanwhile, and generations began again."""
    anew = current("b", 0, created_epoch=8)
    for old in (current("a", 1), current("a", bare=True), current("a", 9, created_epoch=5)):
        plan = boot(old, anew)
        assert (plan.path, plan.state) == (anew.path, "online")
        gone = [action.target for action in plan.actions if isinstance(action, Rename)]
        deletions = [action for action in plan.actions if isinstance(action, ScheduleDelete)]
        assert [each.path for each in deletions] == gone
        # What is removed later is older than what is served, by the generations, too.
        assert all(plan.generation > each.generation for each in deletions)


def test_copy_of_an_earlier_replica_is_not_gone_on_with() -> None:
    plan = boot(current("a", 0, created_epoch=8), moving("b", State.COPYING, generation=3))
    assert names(plan, ResumeMove) == [] and plan.generation == 0
    assert [a.source for a in plan.actions if isinstance(a, Rename)] == [Path("/b/t-0.move")]
    sealed = boot(current("a", 0, created_epoch=8), moving("b", State.SEALED, generation=3))
    assert sealed.path == Path("/a/t-0")


def test_source_of_an_earlier_replica_does_not_come_back() -> None:
    plan = boot(current("a", 0, created_epoch=8), deleted("b", 3))
    assert plan.path == Path("/a/t-0") and plan.state == "online"
    (due,) = (a for a in plan.actions if isinstance(a, ScheduleDelete))
    assert due.generation < plan.generation


def test_of_one_replica_the_generation_decides() -> None:
    plan = boot(current("a", 2, created_epoch=8), current("b", 1, created_epoch=8))
    assert plan.path == Path("/a/t-0")


def test_deleted_topic_goes_copy_first() -> None:
    found = Found(TP, (current("a"),), (moving("b", State.SEALED),), (deleted("c"),))
    plan = decide(found, NONE, None, 0, gone=Reason.TOPIC)
    assert [str(a.source) for a in plan.actions if isinstance(a, Rename)] == ["/b/t-0.move", "/a/t-0"]
    assert len([a for a in plan.actions if isinstance(a, ScheduleDelete)]) == 3
    assert plan.state == "absent"


def test_deletion_that_had_begun_is_finished() -> None:
    plan = boot(current("a", state=State.DELETED, reason=Reason.TOPIC))
    assert plan.state == "absent" and len(plan.actions) == 3


def test_corrupt_markers() -> None:
    broken = replace(current("a"), marker=None, corrupt=True)
    alone = boot(broken, generation=4)
    assert (alone.state, alone.generation) == ("online", 4)
    assert boot(broken, moving("b", State.SEALED)).state == "offline"
    copy = replace(moving("b", None), corrupt=True)
    beside = boot(current("a"), copy)
    assert beside.state == "online" and names(beside, SuspendMove) == ["/b/t-0.move"]
    assert not [a for a in beside.actions if isinstance(a, WriteMarker | Rename)]
    assert boot(current("a", 1), replace(deleted("b", None), corrupt=True)).actions == ()


def test_nothing_found() -> None:
    assert boot(assigned=None).state == "absent"
    assert boot(missing="a").state == "offline"


def test_table_has_a_row_for_everything() -> None:
    for now in Current:
        for move in Moving:
            for gone in Deleted:
                for missing in (True, False):
                    fitting = [
                        row
                        for row in TABLE
                        if row.current is now
                        and (not row.moving or move in row.moving)
                        and (not row.deleted or gone in row.deleted)
                        and row.missing in (None, missing)
                    ]
                    assert fitting, (now, move, gone, missing)
