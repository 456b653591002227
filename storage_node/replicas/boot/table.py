"""Decide what a start does with whatever it finds on disk for one partition: one pure function over one table.

The rules are KIP-113's four (continue the copy, promote, leave alone, delete), completed by the marker: a partial copy
is never promoted, the only good copy is never deleted, and an unknown state is left alone and reported. A directory
that is not visible now counts as missing only for what it may hold: the two directories that a marker names and the one
that the metadata assigns. For a `.move` or `.delete` without a marker the KIP's rules apply.

`decide` is pure. `storage_node.lifecycle.start_up` calls it, and puts aside first what is no replica of this node;
`apply` marks and renames what it returns, and the move engine resumes copies and schedules deletions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from storage_node.replicas.boot.actions import Actions, BootPlan, Copy, Found, Verdict, newer_source
from storage_node.replicas.marker import GOES, Reason, State


class Current(StrEnum):
    """What is found under the plain name."""

    NONE = "none"
    ONE = "one"  # one whole copy, or several of which one is the newest and whole
    TIED = "tied"  # several, and the newest is not determined
    PARTIAL = "partial"  # its marker says that it is incomplete
    STALE = "stale"  # older than in the metadata, and the directory of the newer one is missing
    UNREADABLE = "unreadable"  # its marker is corrupt
    BEHIND = "behind"  # it lacks records that its sealed copy holds
    DELETING = "deleting"  # a deletion of the topic had begun


class Moving(StrEnum):
    """What is found as `.move`."""

    NONE = "none"
    BARE = "bare"  # without a marker
    COPYING = "copying"
    SEALED = "sealed"
    OUTDATED = "outdated"  # sealed, but older than in the metadata
    CANCELLED = "cancelled"  # or superseded by a newer claim
    UNREADABLE = "unreadable"  # its marker is corrupt, or is not valid for a `.move`


class Deleted(StrEnum):
    """The `.delete` that may still be needed, if any."""

    NONE = "none"
    BARE = "bare"  # without a marker, and the metadata does not place the replica on this node
    KEEP = "keep"  # without a usable marker, and the metadata places it here
    SWAP = "swap"  # the source of a swap, which can be rolled back
    TAKEN_BACK = "taken back"  # the same, newer than the copy: a rollback had begun
    OUTDATED = "outdated"  # the source of a swap that has been superseded since


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table; an empty set means any value, `missing` None for either."""

    current: Current
    moving: frozenset[Moving]
    deleted: frozenset[Deleted]
    missing: bool | None
    verdict: Verdict
    reason: str = ""


def _row(
    current: Current,
    moving: Iterable[Moving],
    deleted: Iterable[Deleted],
    missing: bool | None,
    verdict: Verdict,
    reason: str = "",
) -> Row:
    return Row(current, frozenset(moving), frozenset(deleted), missing, verdict, reason)


_ANY: tuple[()] = ()
_UNFINISHED = (Moving.BARE, Moving.COPYING, Moving.SEALED, Moving.OUTDATED)
_UNMARKED = (Deleted.NONE, Deleted.BARE, Deleted.KEEP)
_WHOLE = (Deleted.SWAP, Deleted.TAKEN_BACK)
_LOST = "only an unfinished copy is left; the replica itself does not exist"
_ELSEWHERE = "a directory that may hold the newer copy is missing"
_LAST = "only a directory that was to be deleted is left"

#: The first row that matches decides.
TABLE: tuple[Row, ...] = (
    _row(Current.DELETING, _ANY, _ANY, None, Verdict.DELETE),
    _row(Current.UNREADABLE, (Moving.NONE,), _UNMARKED, False, Verdict.SERVE),
    _row(Current.UNREADABLE, _ANY, _ANY, None, Verdict.OFFLINE, "its marker is corrupt and other copies may exist"),
    _row(Current.TIED, _ANY, _ANY, None, Verdict.OFFLINE, "several directories hold it and none is the newest"),
    _row(Current.PARTIAL, _ANY, _ANY, None, Verdict.OFFLINE, "an unfinished copy stands under the replica's name"),
    _row(Current.STALE, _ANY, _ANY, None, Verdict.OFFLINE, _ELSEWHERE),
    # The replica lost its unflushed end in a power loss, or an operator replaced it by an older one.
    _row(Current.BEHIND, _ANY, _ANY, False, Verdict.PROMOTE),
    _row(Current.BEHIND, _ANY, _ANY, True, Verdict.OFFLINE, _ELSEWHERE),
    _row(Current.ONE, (Moving.NONE,), _ANY, None, Verdict.SERVE),
    _row(Current.ONE, (Moving.CANCELLED,), _ANY, None, Verdict.SERVE_CANCEL),
    _row(Current.ONE, (Moving.UNREADABLE,), _ANY, None, Verdict.SERVE_LEAVE, "the marker of its copy is corrupt"),
    _row(Current.ONE, _UNFINISHED, _ANY, False, Verdict.SERVE_RESUME),
    _row(Current.ONE, _UNFINISHED, _ANY, True, Verdict.SERVE_SUSPEND, _ELSEWHERE),
    # From here on nothing has the plain name. First: every directory that could matter is visible.
    _row(Current.NONE, _UNFINISHED, (Deleted.TAKEN_BACK,), False, Verdict.ROLL_BACK_RESUME),
    _row(Current.NONE, (Moving.SEALED,), _ANY, False, Verdict.PROMOTE),
    _row(Current.NONE, (Moving.BARE,), _UNMARKED, False, Verdict.PROMOTE),
    _row(Current.NONE, (Moving.NONE,), _WHOLE, False, Verdict.ROLL_BACK),
    _row(Current.NONE, (Moving.CANCELLED,), _WHOLE, False, Verdict.ROLL_BACK_CANCEL),
    _row(Current.NONE, (Moving.UNREADABLE,), _ANY, None, Verdict.OFFLINE, "the marker of the only copy is corrupt"),
    _row(Current.NONE, _UNFINISHED, (Deleted.SWAP,), False, Verdict.ROLL_BACK_RESUME),
    _row(Current.NONE, (Moving.OUTDATED,), _ANY, False, Verdict.OFFLINE, "the copy is older than the metadata says"),
    _row(Current.NONE, (Moving.BARE, Moving.COPYING, Moving.CANCELLED), _ANY, False, Verdict.OFFLINE, _LOST),
    _row(Current.NONE, (Moving.NONE,), (Deleted.KEEP, Deleted.OUTDATED), None, Verdict.OFFLINE, _LAST),
    _row(Current.NONE, (Moving.NONE,), (Deleted.NONE, Deleted.BARE), False, Verdict.ABSENT),
    # A directory that could hold the newer copy is missing: nothing is touched until it returns.
    _row(Current.NONE, _ANY, _ANY, True, Verdict.OFFLINE, _ELSEWHERE),
)


def decide(
    found: Found,
    missing_ids: frozenset[str],
    assigned_id: str | None,
    metadata_generation: int = 0,
    gone: Reason | None = None,
    visible: frozenset[str] = frozenset(),
) -> BootPlan:
    """Decide what to do with one partition.

    `missing_ids` are the directory ids of any meta.properties that are not online now; `assigned_id` and
    `metadata_generation` are those of this replica in the newest cluster image (None and 0 where it has none); `gone`
    is why nothing of the partition may stay: the topic, by its id, is among the deleted ones, or other nodes hold it;
    `visible` are the ids of the directories that are online. A second decision after the plan was carried out returns
    no more changes.
    """
    plan = Actions(found.tp)
    if gone is not None:
        plan.delete_everything(found, gone)
        return plan.finish("absent", GOES[gone])
    found, unborn = _apart(found, assigned_id in missing_ids or (bool(missing_ids) and metadata_generation > 0))
    winner, current = _current(found, missing_ids, assigned_id, metadata_generation)
    move, moving = _moving(found.move, winner, metadata_generation)
    back, deleted = _deleted(found.deletes, move, metadata_generation, assigned_id)
    missing = _missing(found, move, missing_ids, assigned_id)
    if current is Current.ONE and moving is Moving.SEALED and _behind(winner, move):
        current = Current.BEHIND
    row = next(row for row in TABLE if _fits(row, current, moving, deleted, missing))
    if row.verdict is not Verdict.OFFLINE:
        plan.discard_unborn(unborn, found)
    floor = metadata_generation if _never_made(found, winner, visible, assigned_id) else 0
    plan.carry_out(row.verdict, found, winner, move, back, metadata_generation, missing_ids, floor)
    return plan.finish(_STATE.get(row.verdict, "online"), row.reason)


_STATE = {Verdict.OFFLINE: "offline", Verdict.ABSENT: "absent", Verdict.DELETE: "absent"}


def _fits(row: Row, current: Current, moving: Moving, deleted: Deleted, missing: bool) -> bool:
    return (
        current is row.current
        and (not row.moving or moving in row.moving)
        and (not row.deleted or deleted in row.deleted)
        and (row.missing is None or row.missing is missing)
    )


def _current(
    found: Found, missing_ids: frozenset[str], assigned_id: str | None, metadata_generation: int
) -> tuple[Copy | None, Current]:
    copies = found.current
    if not copies:
        return None, Current.NONE
    if any(copy.corrupt for copy in copies):
        return (copies[0] if len(copies) == 1 else None), Current.UNREADABLE
    deleting = [copy for copy in copies if copy.marker and copy.marker.reason == Reason.TOPIC]
    if len(deleting) == len(copies):
        return None, Current.DELETING
    best = max(copies, key=lambda copy: copy.age)
    if sum(copy.age == best.age for copy in copies) > 1:
        return None, Current.TIED
    if best.marker is not None and best.marker.state in (State.COPYING, State.CANCELLED):
        return None, Current.PARTIAL
    if best.generation < metadata_generation and assigned_id in missing_ids and assigned_id != best.directory_id:
        return None, Current.STALE
    if _successor_missing(best, missing_ids):
        return None, Current.STALE
    if not all(_taking_back(copy, best) for copy in found.deletes if newer_source(copy, best)):
        return None, Current.STALE
    return best, Current.ONE


def _apart(found: Found, known: bool) -> tuple[Found, tuple[Copy, ...]]:
    """Return what counts, and the folders that were never a replica, where something better exists.

    A replica whose creation fails (a full disk), or that a crash interrupts, may leave one and be created elsewhere.
    `known`: a missing directory may have the replica, or have had it before it was to be made again; it is better than
    such a folder.
    """
    unborn = tuple(copy for copy in found.current if _never_was(copy))
    born = tuple(copy for copy in found.current if not _never_was(copy))
    marked = any(copy.marker is not None for copy in found.move) or any(copy.can_come_back for copy in found.deletes)
    if not born and not marked and not known:
        born, unborn = unborn[:1], unborn[1:]
    return (replace(found, current=born), unborn) if unborn else (found, ())


def _never_made(found: Found, winner: Copy | None, visible: frozenset[str], assigned_id: str | None) -> bool:
    """Return whether the metadata has the replica in another directory, which is visible and holds nothing of it.

    It was to be made again there, and its own directory came back first; the metadata takes no lower generation. (The
    source of a swap that the metadata does not know yet is still there as a `.delete`.)
    """
    return (
        winner is not None
        and assigned_id in visible
        and assigned_id != winner.directory_id
        and all(copy.directory_id != assigned_id for copy in found.current)
        and not any(copy.directory_id == assigned_id and copy.can_come_back for copy in found.deletes)
    )


def _never_was(copy: Copy) -> bool:
    """Return whether a folder never was a replica: it has no segments, or an earlier start was about to remove it."""
    marker = copy.marker
    return copy.unborn or (marker is not None and marker.state is State.DELETED and marker.reason == Reason.CANCEL)


def _successor_missing(copy: Copy, missing_ids: frozenset[str]) -> bool:
    """Return whether a directory is missing that may hold this copy's successor.

    Of a sealed copy: the last flush of the swap may have failed, and the source been rolled back and written to. A copy
    that a start was about to set aside had a newer one beside it.
    """
    marker = copy.marker
    if marker is None or marker.state not in (State.SEALED, State.DELETED):
        return False
    return bool(({marker.source_id, marker.target_id} - {copy.directory_id}) & missing_ids)


def _taking_back(source: Copy, best: Copy) -> bool:
    """Return whether a crash interrupted the rollback of `source` from `best`: it was never served since, so both are
    whole.
    """
    return (
        source.marker is not None
        and source.marker.target_id == best.directory_id
        and best.marker is not None
        and best.marker.state is State.SEALED
    )


def _behind(winner: Copy | None, move: Copy | None) -> bool:
    """Return whether a sealed copy holds records that the replica beside it lacks; the replica was not written to
    since.
    """
    assert winner is not None and move is not None and move.marker is not None
    return winner.generation < move.generation and 0 <= winner.end < move.marker.seal_leo


def _moving(copies: tuple[Copy, ...], winner: Copy | None, metadata_generation: int) -> tuple[Copy | None, Moving]:
    if not copies:
        return None, Moving.NONE
    move = max(copies, key=lambda copy: (copy.claim, copy.generation))
    if move.corrupt:
        return move, Moving.UNREADABLE
    if move.marker is None:
        return move, Moving.BARE
    if winner is not None and (move.claim < winner.claim or move.created < winner.created):
        return move, Moving.CANCELLED
    match move.marker.state:
        case State.CANCELLED | State.DELETED:
            return move, Moving.CANCELLED
        case State.SEALED:
            return move, Moving.OUTDATED if move.generation < metadata_generation else Moving.SEALED
        case State.COPYING:
            return move, Moving.COPYING
        case _:
            return move, Moving.UNREADABLE


def _deleted(
    copies: tuple[Copy, ...], move: Copy | None, metadata_generation: int, assigned_id: str | None
) -> tuple[Copy | None, Deleted]:
    """Return the `.delete` that may be the last good copy."""
    swapped = [copy for copy in copies if copy.can_come_back]
    if swapped:
        best = max(swapped, key=lambda copy: copy.generation)
        # A copy in progress, or the metadata, shows how new the replica was: anything older had been replaced.
        known = max(metadata_generation, move.generation if move is not None else 0)
        if move is not None and move.marker is not None and best.generation > move.generation:
            return best, Deleted.TAKEN_BACK
        return best, Deleted.SWAP if best.generation >= known - 1 else Deleted.OUTDATED
    if any(copy.corrupt or copy.marker is None for copy in copies):
        unclear = assigned_id is not None or any(copy.corrupt for copy in copies)
        return None, Deleted.KEEP if unclear else Deleted.BARE
    return None, Deleted.NONE


def _missing(found: Found, move: Copy | None, missing_ids: frozenset[str], assigned_id: str | None) -> bool:
    if not found.current:
        bare = [copy for copy in found.deletes if copy.marker is None and not copy.corrupt]
        if move.marker is None if move is not None else bare:
            return bool(missing_ids)  # nothing shows where its source was, or what came after it
    relevant = {assigned_id} if assigned_id is not None else set()
    last = [copy for copy in found.deletes if copy.can_come_back and not found.current]
    for copy in (*([move] if move is not None else []), *last):
        if copy.marker is not None:
            relevant |= {copy.marker.source_id, copy.marker.target_id}
    return bool(relevant & missing_ids)
