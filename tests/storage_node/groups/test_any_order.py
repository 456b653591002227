"""Any interleaving of joins, syncs, heartbeats, leaves, commits, lost connections, restarts and time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage_node.config.group_limits import Limits
from storage_node.groups.group import Group
from storage_node.groups.values import GroupState, JoinAnswer, Leaving, Reply, Sync, SyncAnswer
from storage_node.model.error_codes import ErrorCode
from tests.storage_node.groups.scene import ask
from tests.support.scale import scaled

LIMITS = Limits(initial_delay=3.0, min_session=6.0, max_session=60.0, max_size=6, new_member=300.0)
SESSION, REBALANCE = 10.0, 30.0
CLIENTS = st.integers(0, 6)


@dataclass
class Client:
    """A consumer that follows the protocol."""

    name: int
    instance: str | None
    named: bool
    member: str = ""
    generation: int = -1
    token: object = None
    asked: str = ""
    since: float = 0.0
    leads: tuple[str, ...] = ()
    assigned: tuple[int, bytes] | None = None
    seen: list[int] = field(default_factory=list)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.count = 0
        self.group = Group("g", LIMITS, self.unique)
        self.clients = [Client(n, f"i{n}" if n in (5, 6) else None, named=n % 2 == 0) for n in range(7)]
        self.generation = 0
        self.assigned: dict[int, dict[str, bytes]] = {}
        """The assignment in each member's response, by generation and member."""
        self.kept = self.group.row()

    def unique(self) -> str:
        self.count += 1
        return str(self.count)

    # Events

    @rule(n=CLIENTS, other=st.booleans(), protocols=st.sampled_from([("a", "b"), ("b", "a"), ("b",)]))
    def join(self, n: int, other: bool, protocols: tuple[str, ...]) -> None:
        client = self.clients[n]
        if client.token is not None:
            return
        client.token, client.asked, client.since = object(), "join", self.now
        data = None if other else b"\0\0\0\0\0\0"
        request = ask(client.member, instance=client.instance, named=client.named, protocols=protocols, metadata=data)
        self.take(self.group.join(request, client.token, self.now))

    @rule(n=CLIENTS)
    def sync(self, n: int) -> None:
        client = self.clients[n]
        if client.token is not None or client.generation < 0:
            return
        client.token, client.asked, client.since = object(), "sync", self.now
        handed = {member: f"{client.generation}:{member}".encode() for member in client.leads}
        request = Sync(client.member, client.instance, client.generation, assignments=handed)
        self.take(self.group.sync(request, client.token, self.now))

    @rule(n=CLIENTS)
    def heartbeat(self, n: int) -> None:
        client = self.clients[n]
        if client.token is None and client.generation >= 0:
            error = self.group.heartbeat(client.member, client.instance, client.generation, self.now)
            self.react(client, error)

    @rule(n=CLIENTS)
    def commit(self, n: int) -> None:
        client = self.clients[n]
        if client.generation < 0:
            return
        error = self.group.may_commit(client.member, client.instance, client.generation, self.now)
        if error is ErrorCode.NONE:
            assert client.generation == self.group.generation, "an older generation has committed"
            assert client.member in self.group.members
        self.react(client, error)

    @rule(n=CLIENTS)
    def leave(self, n: int) -> None:
        client = self.clients[n]
        if client.token is None and client.member:
            results, replies = self.group.leave([Leaving(client.member, client.instance)], self.now)
            self.take(replies)
            if results[0] is ErrorCode.NONE:
                assert client.member not in self.group.members
            client.member, client.generation, client.leads = "", -1, ()

    @rule(n=CLIENTS)
    def hang_up(self, n: int) -> None:
        client = self.clients[n]
        if client.token is not None:
            token, client.token = client.token, None
            self.take(self.group.gone(token, self.now))
            if not client.named and not client.instance and client.generation < 0:
                client.member = ""

    @rule(n=CLIENTS)
    def die(self, n: int) -> None:
        """Restart a client, which loses its state."""
        client = self.clients[n]
        if client.token is not None:
            self.take(self.group.gone(client.token, self.now))
        self.clients[n] = Client(n, client.instance, client.named)

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 12.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.group.deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.take(self.group.tick(self.now))
            after = self.group.deadline
            assert after is None or after > self.now, "what was due is done"
        self.now = end

    @precondition(lambda self: self.group.state in (GroupState.STABLE, GroupState.EMPTY))
    @rule()
    def restart(self) -> None:
        """Kill the node: only the state on disk is left."""
        self.group.abandon(ErrorCode.NOT_COORDINATOR)
        self.group = Group.restored("g", LIMITS, self.kept, self.now)
        self.group._unique = self.unique
        for client in self.clients:
            client.token = None

    # Responses

    def take(self, replies: list[Reply]) -> None:
        if self.group.dirty:
            self.group.dirty = False
            self.kept = self.group.row()
        for token, answer in replies:
            client = next((one for one in self.clients if one.token is token), None)
            if client is None:
                continue
            client.token = None
            if isinstance(answer, JoinAnswer):
                self.joined(client, answer)
            else:
                self.synced(client, answer)

    def joined(self, client: Client, answer: JoinAnswer) -> None:
        assert client.asked == "join"
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member = answer.member_id
        elif answer.error is ErrorCode.NONE:
            assert answer.generation == self.group.generation and answer.member_id in self.group.members
            client.member, client.generation = answer.member_id, answer.generation
            leads = answer.leader == answer.member_id and not answer.skip
            client.leads = tuple(one.member_id for one in answer.members) if leads else ()
            if client.leads:
                assert set(client.leads) == set(self.group.members), "a leader assigns to all members"
        else:
            self.react(client, answer.error)

    def synced(self, client: Client, answer: SyncAnswer) -> None:
        assert client.asked == "sync"
        if answer.error is not ErrorCode.NONE:
            self.react(client, answer.error)
            return
        assert client.generation == self.group.generation
        told = self.assigned.setdefault(client.generation, {})
        if client.instance is None:
            assert answer.assignment == f"{client.generation}:{client.member}".encode()
            assert told.setdefault(client.member, answer.assignment) == answer.assignment, "an earlier response differs"

    def react(self, client: Client, error: ErrorCode) -> None:
        """Handle a heartbeat's error as clients do."""
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            client.member, client.generation, client.leads = "", -1, ()
        elif error is ErrorCode.ILLEGAL_GENERATION:
            client.generation, client.leads = -1, ()

    # Invariants

    @invariant()
    def generations_only_rise(self) -> None:
        # A restart restores the last generation of which a response may have had an assignment.
        assert self.group.generation >= max(self.assigned, default=0)

    @invariant()
    def nobody_waits_beyond_the_timeouts(self) -> None:
        for client in self.clients:
            if client.token is not None:
                # The initial delay ends with the rebalance timeout. A new member may restart the phase, and a phase
                # without a joining member lasts until the absent ones are removed.
                assert self.now - client.since <= 2 * (REBALANCE + SESSION) + 3, client

    @invariant()
    def what_is_counted_is_right(self) -> None:
        group = self.group
        for member in group.members.values():
            waits = member.joining is not None or member.syncing is not None
            assert waits or member.deadline is not None, "a member that nothing will ever remove"
        assert set(group._static.values()) <= set(group.members)
        assert group._unsynced <= set(group.members)
        assert group.leader is None or group.leader in group.members
        # Members that have not joined again do not count, as in Kafka: others may take their places.
        assert group._joined() <= LIMITS.max_size
        assert all(group._supported[name] <= len(group.members) for name in "ab")
        if group.state is GroupState.EMPTY:
            assert not group.members
        if group.state is GroupState.PREPARING:
            assert group._until is not None

    def teardown(self) -> None:
        """Stop all clients: in the end the group has no members."""
        for client in self.clients:
            if client.token is not None:
                self.take(self.group.gone(client.token, self.now))
                client.token = None
        self.pass_time(400.0)
        assert self.group.idle and self.group.deadline is None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=scaled(40, 5000), stateful_step_count=50, deadline=None)
