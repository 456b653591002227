"""The disks of one machine and the system calls on them: descriptors, locks, paths below `/sim/<name>`.

One thread at a time. Descriptors of simulated files begin at `FIRST_FD` and are never given out twice, so that what a
dead process still holds can do no harm. See `patching.simulated` for how `os` comes here, and `disks` for the disks.

API::

    machine = Machine("a", "b", capacity=None, names_follow=True)    # /sim/a and /sim/b
    machine.disks["a"], machine.clock
    machine.before = hook     # called with a Step before every operation that changes a disk or flushes
    machine.steps             # how many of those there were; a hook may raise Crash, see `crash_at`
    machine.crash_at(n)       # raise Crash instead of the n-th step from now (1 is the next)
    machine.kill()            # the process is gone: descriptors and locks are; the disks are as they were
    machine.power_loss(choose)            # and each disk lost what a power loss may, see Disk.power_loss
    machine.power_loss_states(limit=...)  # iterator over {name: State}, all disks combined, bounded per disk
    machine.snapshot() / machine.restore(snapshot)

After a Crash every operation raises Crash again, so that no clean-up code of the dead process gets to a disk, until
`kill`, `power_loss` or `restore` says that the machine was started again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from tests.simulation.calls import FIRST_FD, ROOT, Calls, Step
from tests.simulation.disks import State

__all__ = ["FIRST_FD", "ROOT", "Machine", "Step"]


class Machine(Calls):
    """See the module."""

    def path(self, name: str) -> str:
        """Where a disk is mounted."""
        return f"{ROOT}/{name}"

    # Crashes

    def crash_at(self, steps: int | None) -> None:
        """Raise Crash instead of the `steps`-th step from now; None: never."""
        self._crash_at = None if steps is None else self.steps + steps

    def kill(self) -> None:
        """The process died, and the machine lives on: no descriptor and no lock is left, and nothing is lost."""
        self._fds.clear()
        self._locks.clear()
        self._alive_from = next(self._next_fd)
        self._crash_at = None
        self.crashed = False
        for disk in self.disks.values():
            disk.restore(disk.state)  # what was open without a name is gone

    def power_loss(self, choose: Callable[[int], int]) -> None:
        """The machine stops, and each disk keeps what `choose` leaves it (see `Disk.power_loss`)."""
        self.kill()
        for disk in self.disks.values():
            disk.power_loss(choose)

    def power_loss_states(self, limit: int | None = None) -> Iterator[dict[str, State]]:
        """What a power loss may leave of all disks together, at most `limit` states of each (see the disk's)."""
        each = [list(disk.power_loss_states(limit)) for disk in self.disks.values()]
        for states in itertools.product(*each):
            yield dict(zip(self.disks, states, strict=True))

    def snapshot(self) -> dict[str, State]:
        """A copy of all disks, what is not flushed included."""
        return {name: disk.snapshot() for name, disk in self.disks.items()}

    def restore(self, states: Mapping[str, State]) -> None:
        """Start a machine with these disks."""
        self.kill()
        for name, state in states.items():
            self.disks[name].restore(state)
