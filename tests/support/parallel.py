"""Which tests run in one process, and in which order, when pytest spreads them over several (`-n 2`).

Tests that share something dear (three nodes and a warm virtual machine, Spark, a stack, an engine of containers) stay
together, so that it is started once; of all others each file goes where there is room. What needs the machine for
itself comes last, in one process, when the others have ended.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

ALONE = "alone"

#: Group -> its files, as patterns; the first that fits counts. The longest begin.
GROUPS: dict[str, tuple[str, ...]] = {
    # Twelve processes and more that a nemesis kills, and clients that write as fast as they can: nothing is beside it.
    ALONE: ("tests/e2e/test_torture*.py",),
    "three nodes and Kafka's tools": ("tests/conformance/*",),
    "Spark": ("tests/ops/analytics/*",),
    "the command's stack": ("tests/ops/cli/*",),
    "a stack that is killed": ("tests/e2e/*",),
    "a cluster with a server": ("tests/activities/test_*_end_to_end.py",),
    "broken disks": ("tests/faults/*",),
    "crashes": ("tests/crash/*",),
    "containers": ("tests/ops/images/*",),
    # Demos take Kafka's and Temporal's usual ports, which a test beside them occupies.
    "the usual ports": ("tests/ops/demo/*",),
}


def group_of(nodeid: str) -> str:
    """The name of the group that a test belongs to: one of `GROUPS`, or its file."""
    path = nodeid.partition("::")[0]
    for group, patterns in GROUPS.items():
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            return group
    return path


def place(group: str) -> int:
    """Where a group stands in the queue: the named ones first, then files."""
    return list(GROUPS).index(group) if group in GROUPS else len(GROUPS)


class Spread(LoadScopeScheduling):
    """Whole groups go to processes as these become free; `ALONE` goes to the one that is left when the others ended.

    A process holds its last test back until it knows what comes next, or that nothing does.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def schedule(self) -> None:
        """Begin, or go on when a process has taken the place of one that died."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = list(next(iter(self.registered_collections.values())))
            for nodeid in sorted(self.collection, key=lambda nodeid: place(group_of(nodeid))):
                self.workqueue.setdefault(group_of(nodeid), {})[nodeid] = False
        for node in [*self.nodes, *self.nodes]:  # a second group where the first is small
            self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        if ALONE in self.workqueue:
            self.workqueue.move_to_end(ALONE)
        if list(self.workqueue) != [ALONE]:
            super()._reschedule(node)
        elif node is not next((each for each in self.nodes if not each.shutting_down), None):
            node.shutdown()
        elif self.nodes == [node]:
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """A process has ended, or died: answers the test it died in, which is not tried again; others are."""
        work = self.assigned_work.pop(node)
        died_in = next((name for unit in work.values() for name, done in unit.items() if not done), None)
        if died_in is not None:
            work[group_of(died_in)][died_in] = True
            self.workqueue.update({group: unit for group, unit in work.items() if not all(unit.values())})
        for each in self.nodes:
            self._reschedule(each)
        return died_in
