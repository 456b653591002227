"""A group without clock and network: its members' requests and their responses."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field

from storage_node.config.group_limits import Limits
from storage_node.groups.group import Group
from storage_node.groups.values import Join, JoinAnswer, Leaving, Reply, Sync, SyncAnswer
from storage_node.model.error_codes import ErrorCode

LIMITS = Limits(initial_delay=3.0, min_session=6.0, max_session=60.0, new_member=300.0)
SESSION = 10.0
REBALANCE = 30.0


def subscription(*topics: str) -> bytes:
    """Return the first fields of a consumer's metadata."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def ask(
    member: str = "",
    *,
    instance: str | None = None,
    protocols: tuple[str, ...] = ("range",),
    kind: str = "consumer",
    named: bool = True,
    metadata: bytes | None = None,
    can_skip: bool = False,
    session: float = SESSION,
) -> Join:
    """Return a JoinGroup request."""
    data = subscription("t") if metadata is None else metadata
    return Join(
        member,
        instance,
        "client",
        "/127.0.0.1",
        kind,
        tuple((name, data) for name in protocols),
        session,
        REBALANCE,
        id_required=named,
        can_skip=can_skip,
    )


@dataclass
class Scene:
    """One group; only `pass_time` advances the time."""

    limits: Limits = LIMITS
    now: float = 1000.0
    told: dict[str, JoinAnswer | SyncAnswer] = field(default_factory=dict)
    """The response to each token."""

    def __post_init__(self) -> None:
        numbers = itertools.count(1)
        self.group = Group("g", self.limits, lambda: str(next(numbers)))

    def take(self, replies: list[Reply]) -> None:
        for token, answer in replies:
            assert token not in self.told, f"{token} has two responses"
            self.told[token] = answer

    def join(self, token: str, join: Join) -> JoinAnswer | None:
        """Return the response to a token, None while it is pending."""
        self.told.pop(token, None)
        self.take(self.group.join(join, token, self.now))
        return self.joined(token)

    def joined(self, token: str) -> JoinAnswer | None:
        answer = self.told.get(token)
        assert answer is None or isinstance(answer, JoinAnswer)
        return answer

    def sync(self, token: str, member: str, generation: int, **assignments: bytes) -> SyncAnswer | None:
        self.told.pop(token, None)
        by_id = {name.replace("_", "-"): data for name, data in assignments.items()}
        self.take(self.group.sync(Sync(member, None, generation, assignments=by_id), token, self.now))
        return self.synced(token)

    def synced(self, token: str) -> SyncAnswer | None:
        answer = self.told.get(token)
        assert answer is None or isinstance(answer, SyncAnswer)
        return answer

    def leave(self, member: str, instance: str | None = None) -> ErrorCode:
        results, replies = self.group.leave([Leaving(member, instance)], self.now)
        self.take(replies)
        return results[0]

    def pass_time(self, seconds: float) -> None:
        """Advance the time, and run each `tick` when it is due."""
        end = self.now + seconds
        while (due := self.group.deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.take(self.group.tick(self.now))
        self.now = end

    def name(self) -> str:
        """Return the id of a new dynamic member."""
        answer = self.join("name", ask())
        assert answer is not None and answer.error is ErrorCode.MEMBER_ID_REQUIRED
        return answer.member_id

    def stable(self, *instances: str | None) -> list[str]:
        """Create a stable group of members by instance ids (None: dynamic); returns their ids, the leader's first."""
        tokens = [f"m{index}" for index in range(len(instances))]
        for token, instance in zip(tokens, instances, strict=True):
            # Versions before 4 join without an id.
            assert self.join(token, ask(instance=instance, named=False)) is None
        while not self.told.keys() >= set(tokens):
            self.pass_time(1.0)
        answers = [self.joined(token) for token in tokens]
        ids = [answer.member_id for answer in answers if answer is not None and answer.error is ErrorCode.NONE]
        assert len(ids) == len(instances)
        leader = answers[0].leader if answers[0] is not None else ""
        for index, id_ in enumerate(ids):
            assignments = {one: one.encode() for one in ids} if id_ == leader else {}
            self.take(
                self.group.sync(
                    Sync(id_, instances[index], self.group.generation, assignments=assignments),
                    f"s{index}",
                    self.now,
                )
            )
        for index, id_ in enumerate(ids):
            answer = self.synced(f"s{index}")
            assert answer is not None and answer.assignment == id_.encode()
        return ids
