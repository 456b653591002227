"""The phases of one classic consumer group: its members, generations and timeouts.

`group.Group` adds the members' requests. Neither has a clock, network or disk.

A member joins and waits until all members have joined again, or the rebalance timeout has passed. Then a generation
begins, the leader sends all assignments, and the group is stable until a member joins or leaves.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable

from storage_node.config.group_limits import Limits
from storage_node.groups.deadlines import Deadlines
from storage_node.groups.subscriptions import topics_of
from storage_node.groups.values import (
    CONSUMER,
    GROUP_WEIGHT,
    GroupState,
    Join,
    JoinAnswer,
    JoinedMember,
    Member,
    Reply,
    SyncAnswer,
    Token,
    weight_of_pending,
)
from storage_node.model.error_codes import ErrorCode

__all__ = ["Phases"]


class Phases:
    """One group's members and phases. Not thread-safe."""

    def __init__(self, name: str, limits: Limits, unique: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        self.name = name
        self.limits = limits
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.pending: dict[str, tuple[float, str]] = {}
        """Member ids sent with MEMBER_ID_REQUIRED that have not joined yet, with their deadline and host (KIP-394)."""
        self.dirty = False
        self.weight = GROUP_WEIGHT
        """About how many bytes of memory the group and all its members take."""
        self.by_host: Counter[str] = Counter()
        """The part of `weight` that members and pending ids take, by their hosts; the rest is the group's own."""
        self.host = ""
        """The host of the first client that joined."""
        self._deadlines = Deadlines()
        """The deadlines of members and pending ids."""
        self._unique = unique
        self._static: dict[str, str] = {}
        self._supported: Counter[str] = Counter()
        self._unsynced: set[str] = set()
        self._initial = False
        self._newcomers = False
        self._remaining = 0.0
        self._until: float | None = None
        """The end of the join phase, or of the time in which all members must send SyncGroup (KAFKA-12890)."""
        self._replies: list[Reply] = []

    # Properties

    def subscribes(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic; malformed subscriptions of consumers count as all topics."""
        if self.protocol_type != CONSUMER or not self.members:
            return False
        topics = self.subscribed()
        return topics is None or topic in topics

    def subscribed(self) -> frozenset[str] | None:
        """Return the topics to which members subscribe; None if a subscription is malformed. Any thread may call it."""
        # A member that is joining does not have the group's protocol yet: its preferred protocol counts.
        members = list(self.members.values())
        return topics_of(member.metadata(self.protocol) or member.protocols[0][1] for member in members)

    def may_delete_offsets(self) -> bool:
        """Return whether single offsets may be deleted: the group is empty or its members' subscriptions are known."""
        return self.state is GroupState.EMPTY or self.protocol_type == CONSUMER

    @property
    def idle(self) -> bool:
        """Whether the group has neither members nor pending ids: it has no state but that on disk."""
        return self.state in (GroupState.EMPTY, GroupState.DEAD) and not self.pending and not self.members

    @property
    def deadline(self) -> float | None:
        """When `tick` is due; None without any timeout."""
        earliest, until = self._deadlines.earliest(), self._until
        return until if earliest is None else earliest if until is None else min(earliest, until)

    # Timeouts, and the end of the group

    def tick(self, now: float) -> list[Reply]:
        """Remove the members whose session has expired, and end the phase that is over."""
        due = self._deadlines.take_due(now)
        for id_ in due:
            if id_ in self.pending:
                self._remove_pending(id_)
            else:
                self._remove(self.members[id_])
        if due:
            self._after_removal(now)
        if self._until is not None and self._until <= now:
            self._phase_over(now)
        return self._take_replies()

    def _phase_over(self, now: float) -> None:
        self._until = None
        if self.state is GroupState.PREPARING:
            if self._initial and self._newcomers and self._remaining > 0:
                # A member has joined during the initial delay: others may follow.
                self._newcomers = False
                delay = min(self.limits.initial_delay, self._remaining)
                self._remaining -= delay
                self._until = now + delay
            else:
                self._complete(now)
        elif self.state in (GroupState.COMPLETING, GroupState.STABLE) and self._unsynced:
            for member_id in tuple(self._unsynced):
                self._remove(self.members[member_id])
            self._rebalance(now)

    def gone(self, token: Token, now: float) -> list[Reply]:
        """Cancel the response to a client that has disconnected; the member's session timeout begins."""
        for member in self.members.values():
            if member.joining is token or member.syncing is token:
                member.joining = member.syncing = None
                self._set_deadline(member, now + member.session)
                if member.nameless:
                    self._remove(member)
                    self._after_removal(now)
                break
        return self._take_replies()

    def rebalance(self, now: float) -> list[Reply]:
        """Begin another rebalance, after a failed write of the assignments."""
        if self.state in (GroupState.COMPLETING, GroupState.STABLE):
            self._rebalance(now)
        return self._take_replies()

    def abandon(self, error: ErrorCode) -> list[Reply]:
        """Close the group, with an error for all waiting members: this node does not coordinate it any more."""
        for member in self.members.values():
            self._reply_error(member, error)
        self.state = GroupState.DEAD
        self.members, self.pending, self._until = {}, {}, None
        self._deadlines, self.weight, self.by_host = Deadlines(), GROUP_WEIGHT, Counter()
        return self._take_replies()

    # Steps

    def _take_replies(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def _charge(self, host: str, more: int) -> None:
        self.host = self.host or host
        self.weight += more
        self.by_host[host] += more
        if not self.by_host[host]:
            del self.by_host[host]

    def _add_pending(self, member_id: str, until: float, host: str) -> None:
        """Add the id with which a new member is to join."""
        self.pending[member_id] = until, host
        self._deadlines.set(member_id, until)
        self._charge(host, weight_of_pending(member_id))

    def _remove_pending(self, member_id: str) -> None:
        """Remove a pending id."""
        _, host = self.pending.pop(member_id)
        self._deadlines.clear(member_id)
        self._charge(host, -weight_of_pending(member_id))

    def _set_deadline(self, member: Member, when: float | None) -> None:
        """Set when the member's session expires; None while the member waits for a response."""
        member.deadline = when
        if when is None:
            self._deadlines.clear(member.id)
        else:
            self._deadlines.set(member.id, when)

    def _weigh(self, member: Member) -> None:
        """Update the weight of a changed member."""
        before, member.weighed = member.weighed, member.weight
        self._charge(member.host, member.weighed - before)

    def _add(self, member: Member) -> None:
        self.members[member.id] = member
        self._weigh(member)
        self._supported.update(name for name, _ in member.protocols)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id
        self.leader = self.leader or member.id

    def _drop(self, member: Member) -> None:
        del self.members[member.id]
        self._deadlines.clear(member.id)
        self._charge(member.host, -member.weighed)
        self._supported.subtract(name for name, _ in member.protocols)
        self._unsynced.discard(member.id)
        if member.instance_id is not None and self._static.get(member.instance_id) == member.id:
            del self._static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def _remove(self, member: Member) -> None:
        self._reply_error(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._drop(member)

    def _update(self, member: Member, ask: Join, token: Token) -> None:
        self._supported.subtract(name for name, _ in member.protocols)
        self._supported.update(name for name, _ in ask.protocols)
        member.protocols, member.session, member.rebalance = ask.protocols, ask.session, ask.rebalance
        self._weigh(member)
        self._supersede(member.joining, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.id))
        member.joining = token
        self._set_deadline(member, None)

    def _supersede(self, token: Token, answer: JoinAnswer | SyncAnswer) -> None:
        """End the wait of a member's earlier request, which it has repeated over another connection."""
        if token is not None:
            self._replies.append((token, answer))

    def _extend_session(self, member: Member, now: float) -> None:
        if member.joining is None and member.syncing is None:
            self._set_deadline(member, now + member.session)

    def _joined(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    def _reply_joining(self, member: Member, answer: JoinAnswer) -> None:
        if member.joining is not None:
            self._replies.append((member.joining, answer))
            member.joining = None

    def _reply_error(self, member: Member, error: ErrorCode) -> None:
        self._reply_joining(member, JoinAnswer(error, member.id))
        if member.syncing is not None:
            self._replies.append((member.syncing, SyncAnswer(error)))
            member.syncing = None

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(member.as_joined(self.protocol) for member in self.members.values())

    def _generation_of(self, member: Member, members: tuple[JoinedMember, ...] = (), skip: bool = False) -> JoinAnswer:
        return JoinAnswer(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            members,
            skip,
        )

    def _assignment_of(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def _choose(self) -> str:
        """Return the protocol that all members support, chosen by the most votes."""
        common = {name for name, count in self._supported.items() if count == len(self.members)}
        votes = Counter(next(name for name, _ in one.protocols if name in common) for one in self.members.values())
        return max(votes, key=lambda name: votes[name])

    def _after_removal(self, now: float) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._rebalance(now)
        elif self.state is GroupState.PREPARING and not self._initial:
            self._complete_if_all(now)

    def _rebalance_or_complete(self, now: float) -> None:
        if self.state is not GroupState.PREPARING:
            self._rebalance(now)
        elif not self._initial:
            self._complete_if_all(now)

    def _rebalance(self, now: float) -> None:
        if self.state is GroupState.COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                if member.syncing is not None:
                    self._replies.append((member.syncing, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)))
                    member.syncing = None
                    self._set_deadline(member, now + member.session)
        self._initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        self._unsynced.clear()
        timeout = max((member.rebalance for member in self.members.values()), default=0.0)
        if self._initial:
            self._newcomers = False
            self._until = now + self.limits.initial_delay
            self._remaining = max(timeout - self.limits.initial_delay, 0.0)
        else:
            self._until = now + timeout
            self._complete_if_all(now)

    def _complete_if_all(self, now: float) -> None:
        if not self.pending and self._joined() == len(self.members):
            self._complete(now)

    def _complete(self, now: float) -> None:
        """End the join phase: remove the dynamic members that have not joined again, and begin a generation."""
        for member in [one for one in self.members.values() if one.joining is None and not one.static]:
            self._remove(member)
        timeout = max((member.rebalance for member in self.members.values()), default=0.0)
        if self.members and not self._elect():
            self._until = now + timeout
            return
        self.generation += 1
        self._initial, self._until = False, None
        if not self.members:
            self.state, self.protocol, self.leader, self.dirty = GroupState.EMPTY, None, None, True
            return
        self.protocol = self._choose()
        self.state = GroupState.COMPLETING
        self._unsynced = set(self.members)
        self._until = now + timeout
        for member in self.members.values():
            members = self._joined_members() if member.id == self.leader else ()
            self._reply_joining(member, self._generation_of(member, members))
            member.nameless = False
            self._set_deadline(member, now + member.session)

    def _elect(self) -> bool:
        """Make a member that waits for its JoinGroup response the leader; returns False if there is none."""
        if self.leader is None or self.members[self.leader].joining is None:
            joined = next((member.id for member in self.members.values() if member.joining is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True
