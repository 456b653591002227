"""Define the values that `table.decide` takes and returns, and turn each verdict into actions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from storage_node.directories.names import delete_name, replica_name
from storage_node.model.ids import TopicPartition
from storage_node.replicas.marker import Marker, Reason, State


@dataclass(frozen=True, slots=True)
class Copy:
    """One directory that holds, or held, a partition. `kind` is current, move or delete.

    `end` is the log end offset of a replica beside which a sealed copy was found, -1 where it was not read.
    """

    directory_id: str
    path: Path
    kind: str
    marker: Marker | None = None
    corrupt: bool = False  # the marker exists and cannot be read
    end: int = -1
    unborn: bool = False  # a folder without marker and segments: its creation did not complete
    topic_id: str = ""  # from its marker or its partition.metadata
    unreadable: str = ""  # why the folder cannot be read, on an otherwise good disk
    link: bool = False  # a symlink under the replica's name

    @property
    def generation(self) -> int:
        return self.marker.generation if self.marker is not None else 0

    @property
    def created(self) -> int:
        """The created epoch: higher than that of an earlier replica of the partition on this node; see `Marker`."""
        return self.marker.created_epoch if self.marker is not None else -1

    @property
    def age(self) -> tuple[int, int]:
        """The order of copies: of two, the one with the higher age is newer."""
        return self.created, self.generation

    @property
    def claim(self) -> int:
        return self.marker.claim if self.marker is not None else 0

    @property
    def can_come_back(self) -> bool:
        """Whether this is a `.delete` that holds a whole replica: the source of a swap, its marker rewritten since or
        not yet.
        """
        marker = self.marker
        return (
            self.kind == "delete"
            and marker is not None
            and marker.state in (State.CURRENT, State.SEALED, State.DELETED)
            and marker.reason in ("", Reason.SWAP)
        )


@dataclass(frozen=True, slots=True)
class Found:
    """All that the good directories hold of one partition; `taken` are names of folders of another topic."""

    tp: TopicPartition
    current: tuple[Copy, ...] = ()
    move: tuple[Copy, ...] = ()
    deletes: tuple[Copy, ...] = ()
    taken: frozenset[Path] = frozenset()


@dataclass(frozen=True, slots=True)
class WriteMarker:
    """Write this marker, durably, before the next action."""

    path: Path
    marker: Marker


@dataclass(frozen=True, slots=True)
class Rename:
    """Rename a directory inside its log directory and flush the log directory, before the next action."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class ScheduleDelete:
    """Remove this `.delete` when it is due (`delete_at_ms`, or the delay from now where it is 0).

    `guarded`: only while the replica is online with a higher generation than this.
    """

    tp: TopicPartition
    path: Path
    generation: int
    delete_at_ms: int
    guarded: bool


@dataclass(frozen=True, slots=True)
class ResumeMove:
    """Continue copying into this `.move`, as if the request had just arrived."""

    tp: TopicPartition
    path: Path
    marker: Marker


@dataclass(frozen=True, slots=True)
class SuspendMove:
    """Leave this `.move` alone, for a reason."""

    tp: TopicPartition
    path: Path
    marker: Marker | None
    reason: str


Action = WriteMarker | Rename | ScheduleDelete | ResumeMove | SuspendMove


@dataclass(frozen=True, slots=True)
class BootPlan:
    """The actions, in order, and the state of the replica after them.

    `state` is online (served from `path`, in directory `directory_id`, at `generation`), offline (for `reason`) or
    absent (this node holds nothing of it). A copy that is left alone has a SuspendMove, or `reason` mentions it.
    """

    tp: TopicPartition
    actions: tuple[Action, ...]
    state: str
    reason: str = ""
    path: Path | None = None
    directory_id: str = ""
    generation: int = 0


class Verdict(StrEnum):
    """The right-hand side of the table in `table`."""

    SERVE = "serve"
    SERVE_RESUME = "serve, copy on"
    SERVE_SUSPEND = "serve, leave the copy until the missing directory is back"
    SERVE_LEAVE = "serve, leave the copy to the operator"
    SERVE_CANCEL = "serve, finish the cancel"
    PROMOTE = "the copy becomes the replica"
    ROLL_BACK = "the source becomes the replica again"
    ROLL_BACK_RESUME = "the source becomes the replica again, copy on"
    ROLL_BACK_CANCEL = "the source becomes the replica again, finish the cancel"
    OFFLINE = "touch nothing"
    ABSENT = "no replica"
    DELETE = "finish the deletion"


def newer_source(copy: Copy, replica: Copy) -> bool:
    """Return whether a `.delete` is the source of a swap and newer than the replica under the plain name."""
    return copy.can_come_back and copy.age > replica.age


@dataclass(slots=True)
class Actions:
    """A collector of the actions that a verdict asks for."""

    tp: TopicPartition
    actions: list[Action] = field(default_factory=list)
    served: Copy | None = None
    _taken: set[Path] = field(default_factory=set)

    def finish(self, state: str, reason: str) -> BootPlan:
        """Return the plan as a value."""
        if self.served is None:
            return BootPlan(self.tp, tuple(self.actions), state, reason)
        served = self.served
        return BootPlan(
            self.tp, tuple(self.actions), state, reason, served.path, served.directory_id, served.generation
        )

    def carry_out(
        self,
        verdict: Verdict,
        found: Found,
        winner: Copy | None,
        move: Copy | None,
        back: Copy | None,
        known: int,
        missing_ids: frozenset[str],
        floor: int = 0,
    ) -> None:
        """Add the actions of a verdict; `known` is the generation in the metadata, `floor` the least that is served."""
        match verdict:
            case Verdict.DELETE:
                self.delete_everything(found, Reason.TOPIC)
                return
            case Verdict.OFFLINE | Verdict.ABSENT:
                self._final_deletes(found, unmarked=verdict is Verdict.ABSENT)
                return
            case Verdict.PROMOTE:
                assert move is not None
                for copy in found.current:
                    self._discard(copy, found, Reason.SWAP, move.directory_id)
                self._promote(move, known)
            case Verdict.ROLL_BACK | Verdict.ROLL_BACK_RESUME | Verdict.ROLL_BACK_CANCEL:
                assert back is not None
                self._roll_back(back)
            case _:
                assert winner is not None
                self._serve(winner, found, known, missing_ids, floor)
        self._moves(verdict, found, move)
        self._old_deletes(found, back)

    def discard_unborn(self, unborn: Iterable[Copy], found: Found) -> None:
        """Discard folders without segments beside something better, first, since a name of theirs may be needed."""
        for copy in unborn:
            self._discard(copy, found, Reason.CANCEL)

    def delete_everything(self, found: Found, reason: Reason) -> None:
        """Discard everything; copies go first, so that a partial one can never be promoted in the replica's place."""
        for copy in (*found.move, *found.current):
            self._discard(copy, found, reason)
        for copy in found.deletes:
            self._schedule(copy, guarded=False)

    # Parts of a verdict

    def _serve(self, winner: Copy, found: Found, known: int, missing_ids: frozenset[str], floor: int) -> None:
        if winner.corrupt:
            marker = Marker(self.tp.topic, self.tp.partition, source_id=winner.directory_id, generation=known)
            winner = self._mark(winner, marker)
        elif winner.marker is not None:
            newer = [copy.generation + 1 for copy in found.deletes if newer_source(copy, winner)]
            # The generation exceeds those of an earlier replica that this node held: nothing of it may count as newer.
            earlier = [
                copy.generation + 1 for copy in (*found.current, *found.deletes) if copy.created < winner.created
            ]
            settled = winner.marker.settled(max([winner.generation, floor, *newer, *earlier]))
            if settled.target_id in missing_ids and settled.target_id != winner.directory_id:
                # A sealed copy may be there. It must be the older one, should it return; raising the generation once is
                # enough.
                settled = replace(settled, generation=settled.generation + 2, target_id="")
            if settled != winner.marker:
                winner = self._mark(winner, settled)
        elif floor:
            marker = Marker(self.tp.topic, self.tp.partition, source_id=winner.directory_id, generation=floor)
            winner = self._mark(winner, marker)
        self.served = winner
        for other in found.current:
            if other.path != winner.path:
                self._discard(other, found, Reason.SWAP, winner.directory_id)

    def _promote(self, move: Copy, known: int) -> None:
        path = move.path.with_name(replica_name(self.tp))
        self.actions.append(Rename(move.path, path))
        promoted = replace(move, path=path, kind="current")
        marker = promoted.marker or Marker(
            self.tp.topic, self.tp.partition, source_id=move.directory_id, generation=known
        )
        self.served = self._mark(promoted, marker.settled())

    def _roll_back(self, back: Copy) -> None:
        # The generation rises by two: a sealed copy that returns later must not win over what is appended from now on.
        # The marker is flushed under the old name, so that a replica with the old generation never has the plain one.
        assert back.marker is not None
        marked = self._mark(back, back.marker.settled(back.generation + 2))
        path = back.path.with_name(replica_name(self.tp))
        self.actions.append(Rename(back.path, path))
        self.served = replace(marked, path=path, kind="current")

    def _moves(self, verdict: Verdict, found: Found, move: Copy | None) -> None:
        served = self.served
        assert served is not None
        for copy in found.move:
            if copy is not move:
                # Of two copies of one replica, the one with the newer claim continues; the other was superseded.
                self._discard(copy, found, Reason.CANCEL)
        if move is None or verdict is Verdict.PROMOTE:
            return
        if verdict in (Verdict.SERVE_CANCEL, Verdict.ROLL_BACK_CANCEL):
            self._discard(move, found, Reason.CANCEL)
        elif verdict is Verdict.SERVE_LEAVE:
            self.actions.append(SuspendMove(self.tp, move.path, None, "its marker is corrupt"))
        else:
            # The seal is undone before the source accepts an append, whatever becomes of the move.
            copying = self._copying(move, served)
            if copying.marker is not None and verdict is Verdict.SERVE_SUSPEND:
                reason = "a directory that may hold the newer copy is missing"
                self.actions.append(SuspendMove(self.tp, move.path, copying.marker, reason))
            elif copying.marker is not None:
                self.actions.append(ResumeMove(self.tp, move.path, copying.marker))

    def _copying(self, move: Copy, served: Copy) -> Copy:
        marker = move.marker or Marker(
            self.tp.topic, self.tp.partition, target_id=move.directory_id, claim=served.claim
        )
        wanted = replace(
            marker,
            state=State.COPYING,
            reason="",
            source_id=served.directory_id,
            target_id=move.directory_id,
            topic_id=marker.topic_id or (served.marker.topic_id if served.marker is not None else ""),
            # The metadata may have assigned a higher one than the next.
            generation=max(marker.generation, served.generation + 1),
            claim=max(marker.claim, served.claim),
            seal_leo=-1,
            seal_hw=-1,
        )
        return move if wanted == move.marker else self._mark(move, wanted)

    def _old_deletes(self, found: Found, back: Copy | None) -> None:
        served = self.served
        assert served is not None
        for copy in found.deletes:
            if copy.corrupt or (back is not None and copy.path == back.path and self._rolled_back(back)):
                continue
            if not copy.can_come_back:
                self._schedule(copy, guarded=False)
            elif copy.generation < served.generation:
                self._schedule(copy, guarded=True)

    def _rolled_back(self, back: Copy) -> bool:
        return any(isinstance(action, Rename) and action.source == back.path for action in self.actions)

    def _final_deletes(self, found: Found, *, unmarked: bool) -> None:
        for copy in found.deletes:
            final = copy.marker is not None and not copy.can_come_back
            if not copy.corrupt and (final or (copy.marker is None and unmarked)):
                self._schedule(copy, guarded=False)

    # Single actions

    def _mark(self, copy: Copy, marker: Marker) -> Copy:
        self.actions.append(WriteMarker(copy.path, marker))
        return replace(copy, marker=marker, corrupt=False)

    def _discard(self, copy: Copy, found: Found, reason: Reason, successor: str = "") -> None:
        """Turn a directory into a `.delete`; its marker has the reason before the name changes.

        For the source of a swap, `successor` is the id of the directory that holds the newer copy.
        """
        marker = copy.marker or Marker(self.tp.topic, self.tp.partition, generation=copy.generation)
        name, full = self._delete_path(copy, found)
        if reason is Reason.CANCEL and marker.state is not State.CANCELLED:
            marker = replace(marker, state=State.CANCELLED)
        marker = replace(marker, state=State.DELETED, reason=reason, full_name=full)
        if successor:
            marker = replace(marker, source_id=copy.directory_id, target_id=successor)
        gone = replace(self._mark(copy, marker), kind="delete")
        self.actions.append(Rename(copy.path, name))
        self._schedule(replace(gone, path=name), guarded=reason is Reason.SWAP)

    def _delete_path(self, copy: Copy, found: Found) -> tuple[Path, str]:
        taken = {other.path for other in found.deletes} | found.taken | self._taken
        for attempt in range(len(taken) + 1):
            seed = f"{copy.path}\0{copy.claim}\0{copy.generation}\0{attempt}".encode()
            unique = hashlib.blake2s(seed, digest_size=16).hexdigest()
            path = copy.path.with_name(delete_name(self.tp, unique))
            if path not in taken:
                self._taken.add(path)
                return path, f"{replica_name(self.tp)}.{unique}.delete"
        raise AssertionError("more names than attempts")

    def _schedule(self, copy: Copy, *, guarded: bool) -> None:
        due = copy.marker.delete_at_ms if copy.marker is not None else 0
        if copy.marker is not None and copy.marker.reason in (Reason.CANCEL, Reason.REMOVING):
            due = 1  # due at once: no reader needs it
        self.actions.append(ScheduleDelete(self.tp, copy.path, copy.generation, due, guarded))
