"""A directory fails at every step of a move, of its cancel, of the topic's deletion and of both (KIP-18).

Each ends in one of its own outcomes, in place and after the disk is mended: nothing stays half done, and nothing that
was acknowledged is lost. The controller's side of it: tests/workflows/model/metadata/test_failures_in_changes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from storage_node.model.moves import MoveState
from tests.simulation.crash.node import TP
from tests.simulation.node_actions import NodeActions
from tests.simulation.node_life import FAULTS
from tests.support.scale import scaled, tally

#: How a move may have ended, or why it waits; a run reports each with its reason.
ENDED = {MoveState.SWAPPED, MoveState.CANCELLED, MoveState.FAILED, MoveState.STOPPED, MoveState.IN_PLACE}


class Scene(NodeActions):
    """A replica with records on `source`, and a second disk for its copy."""

    source = target = ""

    def set(self) -> None:
        self.begin()
        self.produce(4, 2)
        assert self.partition is not None
        self.source = self.partition.directory.path.name
        self.target = next(disk for disk in sorted(self.machine.disks) if disk != self.source)

    def begin_move(self) -> None:
        self.start_move(self.target, heard=True)

    def whole_move(self) -> None:
        self.move_all(self.target, 0, [("produce", 0)])
        self.tell()
        self.delete_due()


def moved(life: Scene) -> None:
    life.whole_move()


def waiting(life: Scene) -> None:
    """The move waits for its turn, and a health check finds the failure."""
    life.begin_move()
    for _ in range(4):
        life.look_at_health()


def cancelled(life: Scene) -> None:
    life.begin_move()
    life.copy([("produce", 0)])
    life.cancel(mine=False)
    life.delete_due()


def deleted(life: Scene) -> None:
    life.delete_topic(known=True)
    life.delete_due()


def deleted_in_a_move(life: Scene) -> None:
    life.begin_move()
    life.copy([])
    deleted(life)


def moved_and_deleted(life: Scene) -> None:
    life.whole_move()
    deleted(life)


def deleted_and_created_again(life: Scene) -> None:
    life.begin_move()
    deleted(life)
    if life.node is not None:
        life.create_topic()
        life.produce(2)


CHANGES = [moved, waiting, cancelled, deleted, deleted_in_a_move, moved_and_deleted, deleted_and_created_again]


def outcome(life: Scene, disk: str) -> None:
    """What must hold at once, with the disk still failed: the other directories' replicas are served."""
    node = life.node
    assert node is not None, "one directory of three does not stop the node"
    failed = not node.directory_named(disk).online
    life.look()
    status = node.engine.status(TP)
    if failed and status is not None and life.machine.path(disk) in (status.source, status.directory):
        assert status.state in ENDED, f"a move from or to a failed directory does not go on: {status}"
        assert status.state is not MoveState.FAILED or disk in status.message, status
    partition = node.served
    if partition is not None:
        assert partition.directory.online, "nothing is served from a failed directory"
    if life.promises is None:
        assert partition is None or failed, "a deleted topic is served only until its image can be applied"


@pytest.mark.feature("18-11")
@pytest.mark.parametrize("fault", ["dead", "one error"])
@pytest.mark.parametrize("which", ["source", "target"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_directory_that_fails_at_any_step_leaves_one_of_the_outcomes(
    change: Callable[[Scene], None], which: str, fault: str
) -> None:
    assert fault in FAULTS
    with tally("directories that fail in a move or a deletion, every step") as counted:
        for steps in count(0, scaled(11, 1)):
            life = Scene()
            try:
                life.set()
                disk = getattr(life, which)
                life.fail(disk, fault, steps)
                change(life)
                reached = any(each.hits for each in life.machine.disks[disk].faults)
                outcome(life, disk)
                life.end()
            except AssertionError as error:
                error.add_note(f"{fault} on the {which} after {steps} operations")
                raise
            finally:
                life.close()
            counted.count += 1
            if not reached:
                break
    assert counted.count > 1
