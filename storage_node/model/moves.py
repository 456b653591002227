"""The words of a move between two log directories: its states, phases, outcomes, events, and what stalls it.

Each word is defined here once, for the storage node, the activities, the workflows and the analytics. The values are
what markers, histories, `progress`, tables and the command line show.
"""

from __future__ import annotations

from enum import StrEnum


class MoveState(StrEnum):
    """The state of a move on its node, as the move engine has it."""

    QUEUED = "queued"  # `.move` is on disk, no copying thread is free
    COPYING = "copying"
    THROTTLED = "throttled"  # copying, and a limiter holds it back now
    CAUGHT_UP = "caught_up"  # the copy has reached the source: the swap can be tried
    SWAPPING = "swapping"
    SWAPPED = "swapped"
    CANCELLED = "cancelled"
    FAILED = "failed"  # `error` and `message` give the reason
    STOPPED = "stopped"  # paused, or all moves of the node are stopped; `.move` stays
    SUSPENDED = "suspended"  # the start of the node left it alone; `message` gives the reason
    IN_PLACE = "in_place"  # the replica is in the requested directory

    @property
    def under_way(self) -> bool:
        """Whether the engine changes this state by itself, so that it can be awaited."""
        return self in (MoveState.QUEUED, MoveState.COPYING, MoveState.THROTTLED, MoveState.SWAPPING)

    @property
    def copies(self) -> bool:
        """Whether a copying thread is at work on it."""
        return self in (MoveState.COPYING, MoveState.THROTTLED)

    @property
    def open(self) -> bool:
        """Whether the move still has its `.move` on disk and its engine accepts another step of its run."""
        return self.copies or self in (MoveState.QUEUED, MoveState.CAUGHT_UP, MoveState.STOPPED)

    @property
    def ended(self) -> bool:
        """Whether nothing of the move is on disk that a run could continue."""
        return self in (MoveState.SWAPPED, MoveState.CANCELLED, MoveState.IN_PLACE)

    @property
    def halted(self) -> bool:
        """Whether its copy was stopped, and stays as it is until an operator, its run or a start continues it."""
        return self in (MoveState.STOPPED, MoveState.SUSPENDED)

    @property
    def given_up(self) -> bool:
        """Whether the engine does not continue it by itself, although no one stopped it: it failed, or the node's
        start left it alone.
        """
        return self in (MoveState.FAILED, MoveState.SUSPENDED)


class Outcome(StrEnum):
    """The result of one step of a move for one replica."""

    CREATED = "created"  # `.move` and marker are on disk
    CAUGHT_UP = "caught_up"  # the copy has reached the source: the swap can be tried
    BEHIND = "behind"  # the source grew faster before the swap had its lock: copy again
    SWAPPED = "swapped"  # the replica is in the requested directory
    DELETED = "deleted"  # the source's `.delete` is gone
    IN_PLACE = "in_place"  # the replica was in the requested directory already
    CANCELLED = "cancelled"  # the `.move` is gone, and the source serves on
    FAILED = "failed"  # ended with a reason; the source serves on, or is offline
    SUPERSEDED = "superseded"  # a newer generation is on disk: nothing was touched


#: The outcomes of a replica that is in the requested directory.
MOVED = frozenset({Outcome.SWAPPED, Outcome.DELETED, Outcome.IN_PLACE})


class Phase(StrEnum):
    """The phase of one replica of a run."""

    CREATING = "creating"  # `.move` and its marker are to be made
    COPYING = "copying"  # queued for a copying thread, or copying
    SWAPPING = "swapping"  # the last chunk, the two renames
    DELETE_DELAY = "delete_delay"  # in place; the source's `.delete` is not due yet
    DELETING = "deleting"  # the `.delete` is due
    CANCELLING = "cancelling"  # the `.move` is to be removed
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUPERSEDED = "superseded"

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self in (Phase.DONE, Phase.CANCELLED, Phase.FAILED, Phase.SUPERSEDED)

    @property
    def before_swap(self) -> bool:
        """Whether the replica can still be cancelled, and get another target."""
        return self in (Phase.CREATING, Phase.COPYING, Phase.SWAPPING)

    @property
    def in_place(self) -> bool:
        """Whether the replica is in the requested directory."""
        return self in (Phase.DELETE_DELAY, Phase.DELETING, Phase.DONE)


class Event(StrEnum):
    """What can change the phase of a replica: the outcomes of its steps, requests of operators, and timers.

    A pause is none of them: it holds the run between two steps, and every replica keeps its phase.
    """

    CREATED = Outcome.CREATED.value
    CAUGHT_UP = Outcome.CAUGHT_UP.value
    BEHIND = Outcome.BEHIND.value
    SWAPPED = Outcome.SWAPPED.value
    DELETED = Outcome.DELETED.value
    IN_PLACE = Outcome.IN_PLACE.value
    CANCELLED = Outcome.CANCELLED.value
    FAILED = Outcome.FAILED.value
    SUPERSEDED = Outcome.SUPERSEDED.value
    FAILED_WITH_COPY = "failed_with_copy"  # the step failed and may have left a `.move` on a good disk
    TARGET_REJECTED = "target_rejected"  # the node rejected the new directory of a `retarget`
    COPY_REMOVED = "copy_removed"  # a failed move's `.move` was handled; the move's own failure remains its outcome
    CANCEL = "cancel"  # the run is to be cancelled
    DROP = "drop"  # this replica alone is to be cancelled
    RETARGET = "retarget"  # this replica is to go to another directory
    DELETE_DUE = "delete_due"  # the timer of the source's `.delete` has fired

    @property
    def of_step(self) -> bool:
        """Whether a step's row brings it, not a request or a timer."""
        return self not in (Event.CANCEL, Event.DROP, Event.RETARGET, Event.DELETE_DUE)


class StallReason(StrEnum):
    """What holds a move or has held it; `COPYING` when nothing does.

    The node reports the first eight. The run adds the `ABSENCES` of a node without reports, and `rehome moves` adds
    `PAUSED_BY_SERVER`.
    """

    COPYING = "copying"
    QUEUED = "queued"  # other moves have the copying threads
    RUN_LIMIT = "run_limit"  # throttled by the move's own limit
    NODE_LIMIT = "node_limit"  # throttled by the limit that all moves of the node share
    SLOW_DISK = "slow_disk"  # slower than the same directory was before
    GROWING_SOURCE = "growing_source"  # appended to faster than it is copied: there is no end in sight
    STOPPED = "stopped"  # paused, stopped by an operator, or left alone by the node's start
    OFFLINE = "offline"  # one of its directories is
    PAUSED_BY_SERVER = "paused_by_server"  # the Temporal server has paused the run
    DEAD = "dead"  # the node's process has ended
    CUT_OFF = "cut_off"  # the controller or the Temporal server cannot reach the node, or the node cannot reach them
    FENCED = "fenced"  # by the controller, for another reason or for one that it no longer knows
    UNAVAILABLE = "unavailable"  # the node does not report, and the controller has not reported why

    @property
    def stalled(self) -> bool:
        """Whether it holds the move."""
        return self is not StallReason.COPYING

    @property
    def halted(self) -> bool:
        """Whether nothing is copied while it lasts, so that there is no ETA."""
        return self in _HALTED


#: Reasons why a node does not report.
ABSENCES = frozenset({StallReason.DEAD, StallReason.CUT_OFF, StallReason.FENCED, StallReason.UNAVAILABLE})
_HALTED = ABSENCES | {StallReason.STOPPED, StallReason.OFFLINE, StallReason.PAUSED_BY_SERVER}
