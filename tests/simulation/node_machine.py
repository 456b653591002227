"""The random lives as a hypothesis state machine: rules draw what is done next, `NodeActions` does and judges it."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.simulation.node_actions import Between, NodeActions
from tests.simulation.node_life import DISKS, FAULTS

up = precondition(lambda self: self.life.node is not None)
down = precondition(lambda self: self.life.node is None)
serving = precondition(lambda self: self.life.partition is not None)
moving = precondition(lambda self: self.life.move() is not None)

disks: Final = st.sampled_from(DISKS)
kept: Final = st.lists(st.integers(0, 5), max_size=6)
"""What a power loss keeps, see `Disk.power_loss`."""
parts: Final = st.integers(0, 4)
between: Final[st.SearchStrategy[Between]] = st.lists(
    st.tuples(st.sampled_from(["produce", "roll", "truncate", "delete_records", "retention", "pause"]), parts),
    max_size=3,
)


class NodeMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.life = NodeActions()

    @initialize(follow=st.booleans())
    def begin(self, follow: bool) -> None:
        self.life.begin(follow)

    @invariant()
    def look(self) -> None:
        self.life.look()

    def teardown(self) -> None:
        try:
            self.life.end()
        finally:
            self.life.close()

    # Life

    @down
    @rule()
    def boot(self) -> None:
        self.life.boot()

    @rule(
        how=st.sampled_from(["stop", "kill", "power loss"]),
        choose=kept,
        then=st.sampled_from(["boot", "mend and boot", "wait"]),
    )
    def end_life(self, how: str, choose: list[int], then: str) -> None:
        self.life.end_life(how, choose, then)

    @up
    @rule(steps=st.integers(1, 30), power=st.booleans(), choose=kept)
    def crash_soon(self, steps: int, power: bool, choose: list[int]) -> None:
        self.life.crash_soon(steps, power, choose)

    # Disks

    @rule(disk=disks, what=st.sampled_from(sorted(FAULTS)), after=st.integers(0, 12))
    def fail(self, disk: str, what: str, after: int) -> None:
        self.life.fail(disk, what, after)

    @up
    @rule(disk=disks, room=st.integers(0, 6))
    def fill(self, disk: str, room: int) -> None:
        self.life.fill(disk, room)

    @precondition(lambda self: self.life.trouble())
    @rule()
    def mend_all(self) -> None:
        self.life.mend_all()

    @down
    @rule(disk=disks)
    def unmount(self, disk: str) -> None:
        self.life.unmount(disk)

    # Clients and housekeeping

    @serving
    @rule(count=st.integers(1, 4), records=st.integers(1, 3), flush=st.booleans())
    def produce(self, count: int, records: int, flush: bool) -> None:
        self.life.produce(count, records)
        if flush:
            self.life.flush()

    @serving
    @rule(what=st.sampled_from(["roll", "truncate", "delete_records", "retention", "flush"]), part=parts)
    def change_log(self, what: str, part: int) -> None:
        self.life.change_log(what, part)

    @up
    @rule(what=st.sampled_from(["tidy", "recovery_points", "log_starts", "high_watermarks", "health", "deletions"]))
    def housekeeping(self, what: str) -> None:
        if what == "health":
            self.life.look_at_health()
        elif what == "deletions":
            self.life.delete_due()
        else:
            self.life.housekeeping(what)

    # The controller

    @up
    @rule()
    def tell(self) -> None:
        self.life.tell()

    @rule(known=st.booleans())
    def topic(self, known: bool) -> None:
        if self.life.promises is not None:
            self.life.delete_topic(known)
        elif self.life.node is not None:
            self.life.create_topic()

    # Moves

    @serving
    @rule(where=disks, heard=st.booleans())
    def start_move(self, where: str, heard: bool) -> None:
        self.life.start_move(where, heard)

    @serving
    @rule(where=disks, between=between)
    def go_on(self, where: str, between: Between) -> None:
        self.life.go_on(where, between)

    @serving
    @rule(where=disks, steps=st.integers(1, 30), power=st.booleans(), choose=kept)
    def die_moving(self, where: str, steps: int, power: bool, choose: list[int]) -> None:
        """In the next thing that a run does, which is then more likely than by chance."""
        self.life.crash_soon(steps, power, choose)
        self.life.go_on(where, [])
        self.life.machine.crash_at(None)
        if self.life.node is None:
            self.life.boot()

    @serving
    @rule(where=disks, count=st.integers(0, 6), between=between)
    def move_all(self, where: str, count: int, between: Between) -> None:
        self.life.move_all(where, count, between)

    @moving
    @rule(rate=st.sampled_from([None, 2_000, 100_000]), node_rate=st.booleans())
    def throttle(self, rate: int | None, node_rate: bool) -> None:
        self.life.throttle(rate, node_rate)

    @moving
    @rule(mine=st.booleans())
    def cancel(self, mine: bool) -> None:
        self.life.cancel(mine)

    @up
    @rule()
    def stop_or_resume_moves(self) -> None:
        self.life.stop_moves()

    @moving
    @rule(which=st.integers(1, 3), what=st.sampled_from(["start_copy", "swap", "cancel"]))
    def late_request(self, which: int, what: str) -> None:
        self.life.late_request(which, what)
