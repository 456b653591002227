"""The state machine of one classic consumer group, like Apache Kafka's ClassicGroup: the members' requests.

It has no clock, network or disk: each method takes the time (seconds of a monotonic clock) and returns the responses
to send. `deadline` is when `tick` is due next. `dirty` is True after a call if the changed membership must be on disk
before the responses are sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from storage_node.config.group_limits import Limits
from storage_node.groups import rows
from storage_node.groups.offsets import LONGEST_ID
from storage_node.groups.phases import Phases
from storage_node.groups.values import GroupState, Join, JoinAnswer, Leaving, Member, Reply, Sync, SyncAnswer, Token
from storage_node.model.error_codes import ErrorCode

__all__ = ["Group"]


class Group(Phases):
    """One group. Not thread-safe."""

    @classmethod
    def restored(cls, name: str, limits: Limits, row: list[Any], now: float) -> Group:
        """Return a group from its row on disk; the members' session timeouts begin now."""
        group = cls(name, limits)
        kept = rows.read(row)
        group.generation, group.protocol_type = kept.generation, kept.protocol_type
        if kept.members:
            group.state, group.protocol, group.leader = GroupState.STABLE, kept.protocol, kept.leader
            for member in kept.members:
                group._add(member)
                group._set_deadline(member, now + member.session)
        return group

    def row(self, at: int | None = None) -> list[Any]:
        """Return the row for the disk, from which `restored` creates the group; `at`: the time of the change, in ms."""
        members = self.members.values() if self.state is GroupState.STABLE else ()
        return rows.write(self.generation, self.protocol_type, self.protocol, self.leader, members, at)

    # The members' requests

    def join(self, ask: Join, token: Token, now: float) -> list[Reply]:
        """Handle JoinGroup; the response may follow with a later call."""
        error = self._may_join(ask)
        if error is not ErrorCode.NONE:
            full = error is ErrorCode.GROUP_MAX_SIZE_REACHED
            self._replies.append((token, JoinAnswer(error, "" if full else ask.member_id)))
        elif not ask.member_id:
            self._join_new(ask, token, now)
        elif ask.member_id in self.pending:
            self._remove_pending(ask.member_id)
            self._join_as(ask.member_id, ask, token, now, named=True)
        else:
            self._rejoin(ask, token, now)
        return self._take_replies()

    def _may_join(self, ask: Join) -> ErrorCode:
        known = ask.member_id in self.members
        most = self.limits.max_size
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self.state is GroupState.PREPARING:
            waits = known and self.members[ask.member_id].joining is not None
            if not waits and self._joined() >= most:
                if known:
                    self._remove(self.members[ask.member_id])
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        elif self.state is not GroupState.EMPTY and not known and len(self.members) >= most:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self._supports(ask):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if ask.member_id and ask.member_id not in self.pending:
            return self.check_member(ask.member_id, ask.instance_id)
        return ErrorCode.NONE

    def _supports(self, ask: Join) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(ask.protocol_type and ask.protocols)
        common = any(self._supported[name] == len(self.members) for name, _ in ask.protocols)
        return self.protocol_type == ask.protocol_type and common

    def _join_new(self, ask: Join, token: Token, now: float) -> None:
        member_id = f"{ask.client_id if ask.instance_id is None else ask.instance_id}-{self._unique()}"
        if len(member_id.encode()) > LONGEST_ID:
            # No response can hold the id; Apache Kafka fails to encode it.
            self._replies.append((token, JoinAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)))
            return
        if ask.instance_id is not None:
            known = self._static.get(ask.instance_id)
            if known is not None:
                self._replace(self.members[known], member_id, ask, token, now)
                return
        elif ask.id_required:
            if len(self.members) + len(self.pending) >= self.limits.max_size:
                self._replies.append((token, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED)))
                return
            self._add_pending(member_id, now + ask.session, ask.host)
            self._replies.append((token, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)))
            return
        self._join_as(member_id, ask, token, now)

    def _join_as(self, member_id: str, ask: Join, token: Token, now: float, named: bool = False) -> None:
        member = Member(member_id, ask.instance_id, ask.client_id, ask.host, ask.protocols, ask.session, ask.rebalance)
        member.nameless = not named and not member.static
        member.joining = token
        self._newcomers = self._newcomers or self.state is GroupState.PREPARING
        if not self.members:
            self.protocol_type = ask.protocol_type
        self._add(member)
        self._set_deadline(member, now + self.limits.new_member)
        self._rebalance_or_complete(now)

    def _rejoin(self, ask: Join, token: Token, now: float) -> None:
        member = self.members[ask.member_id]
        same = member.protocols == ask.protocols
        match self.state:
            case GroupState.COMPLETING if same:
                members = self._joined_members() if member.id == self.leader else ()
                self._replies.append((token, self._generation_of(member, members)))
            case GroupState.STABLE if same and member.id != self.leader:
                self._replies.append((token, self._generation_of(member)))
            case GroupState.EMPTY | GroupState.DEAD:
                self._replies.append((token, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member.id)))
            case _:
                self._update(member, ask, token)
                self._rebalance_or_complete(now)

    def _replace(self, old: Member, member_id: str, ask: Join, token: Token, now: float) -> None:
        """Replace a static member that joins again with a new id (KIP-345), without a rebalance of a stable group."""
        leader = self.leader
        self._reply_error(old, ErrorCode.FENCED_INSTANCE_ID)
        member = Member(
            member_id,
            old.instance_id,
            ask.client_id,
            ask.host,
            old.protocols,
            old.session,
            old.rebalance,
            old.assignment,
        )
        self._drop(old)
        self._add(member)
        if leader == old.id:
            self.leader = member_id
        before = self.protocol
        self._update(member, ask, token)
        if self.state is not GroupState.STABLE or self._choose() != before:
            self._rebalance_or_complete(now)
            return
        # With the old id as leader in the response, the member does not assign; version 9 has a field for it (KIP-814).
        leads = self.leader == member_id
        skip = ask.can_skip and leads
        answer = self._generation_of(member, self._joined_members() if skip else (), skip=skip)
        if not ask.can_skip and leader is not None:
            answer = JoinAnswer(
                answer.error, member_id, self.generation, self.protocol_type, self.protocol, leader=leader
            )
        self._reply_joining(member, answer)
        self._set_deadline(member, now + member.session)
        self.dirty = True

    def sync(self, ask: Sync, token: Token, now: float) -> list[Reply]:
        """Handle SyncGroup: the leader sets the assignments; each member's response has its own."""
        error = self._may_sync(ask)
        if error is not ErrorCode.NONE:
            return [(token, SyncAnswer(error))]
        member = self.members[ask.member_id]
        self._unsynced.discard(member.id)
        if self.state is GroupState.STABLE:
            self._set_deadline(member, now + member.session)
            self._replies.append((token, self._assignment_of(member)))
        else:
            self._supersede(member.syncing, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
            member.syncing = token
            self._set_deadline(member, None)
            if member.id == self.leader:
                self._assign(ask.assignments, now)
        if not self._unsynced:
            self._until = None
        return self._take_replies()

    def _may_sync(self, ask: Sync) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._check_generation(ask.member_id, ask.instance_id, ask.generation)
        if error is not ErrorCode.NONE:
            return error
        if ask.protocol_type is not None and ask.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if ask.protocol is not None and ask.protocol != self.protocol:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def _assign(self, assignments: dict[str, bytes], now: float) -> None:
        self.state = GroupState.STABLE
        self.dirty = True
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            self._weigh(member)
            if member.syncing is not None:
                self._replies.append((member.syncing, self._assignment_of(member)))
                member.syncing = None
                self._set_deadline(member, now + member.session)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """Handle Heartbeat; REBALANCE_IN_PROGRESS requests the member to join again."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._check_generation(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self._extend_session(self.members[member_id], now)
            if self.state is GroupState.PREPARING:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def leave(self, leaving: Iterable[Leaving], now: float) -> tuple[list[ErrorCode], list[Reply]]:
        """Handle LeaveGroup; returns a result for each leaving member, in order."""
        results = [self._leave(one) for one in leaving]
        if ErrorCode.NONE in results:
            self._after_removal(now)
        return results, self._take_replies()

    def _leave(self, one: Leaving) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if one.member_id in self.pending:
            self._remove_pending(one.member_id)
            return ErrorCode.NONE
        member_id = one.member_id
        if not member_id and one.instance_id is not None:
            member_id = self._static.get(one.instance_id, "")
        error = self.check_member(member_id, one.instance_id)
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id])
        return error

    def may_commit(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """Return the error of a commit: NONE for a member of this generation, or for any client of an empty group.

        Extends the member's session, like Kafka's coordinator.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._check_generation(member_id, instance_id, generation)
        if error is ErrorCode.NONE and self.state is GroupState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if error is ErrorCode.NONE:
            self._extend_session(self.members[member_id], now)
        return error

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error of a member id: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has its instance
        id now.
        """
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _check_generation(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self.check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error
