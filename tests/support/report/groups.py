"""Which tests share a process when pytest-xdist spreads them, and which begin.

Tests that share something dear (three nodes and a warm virtual machine, Spark, a stack, an engine of containers) stay
together, so that it starts once; of all others each file is a group.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

#: Group -> its tests, as patterns of their ids; the first that fits counts. The longest begin.
GROUPS: dict[str, tuple[str, ...]] = {
    "older brokers of Apache Kafka": ("tests/conformance/*[[]apache-3.9*",),
    "brokers of Apache Kafka": ("tests/conformance/*[[]apache*", "tests/conformance/storage/test_stopped_broker.py*"),
    "three nodes": ("tests/conformance/*",),
    "Spark": ("tests/ops/analytics/*",),
    "the command's stack": ("tests/ops/cli/*",),
    # Twelve processes and more that a nemesis kills, and clients that write as fast as they can: beside tests that
    # start little. Begun when these have ended, it would make the run longer by all of its time.
    "torture": ("tests/e2e/test_torture*.py*", "tests/e2e/test_hostile_clients.py*"),
    "a stack that is killed": ("tests/e2e/*",),
    "a cluster with a server": ("tests/activities/test_*_end_to_end.py*",),
    "broken disks": ("tests/faults/*",),
    "crashes": ("tests/crash/*",),
    "containers": ("tests/ops/images/*",),
    # Demos take Kafka's and Temporal's usual ports, which a test beside them occupies.
    "the usual ports": ("tests/ops/demo/*",),
}
LAST = "torture"
#: Files that take longest, mostly waiting: one that begins when all others have ended makes the run longer.
LONG = (
    "tests/workflows/plans/test_reassignment_plan.py",
    "tests/workflows/reassignment/test_partition_reassignment.py",
    "tests/workflows/controller/test_continuing.py",
    "tests/workflows/test_any_input.py",
    "tests/storage_node/protocol/test_traffic.py",
    "tests/storage_node/node/test_log_dirs.py",
    "tests/storage_node/lifecycle/test_start_beyond_end.py",
    "tests/activities/plans/test_lane_steps.py",
    "tests/workflows/plans/test_going_back.py",
)


def group_of(nodeid: str) -> str:
    """Return the name of the group that a test belongs to: one of `GROUPS`, or its file."""
    for group, patterns in GROUPS.items():
        if any(fnmatchcase(nodeid, pattern) for pattern in patterns):
            return group
    return nodeid.partition("::")[0]


def place(group: str) -> int:
    """Return where a group stands in the queue: named ones first, `LAST` as their last, then files, long ones first."""
    if group == LAST:
        return len(GROUPS)
    return list(GROUPS).index(group) if group in GROUPS else len(GROUPS) + 1 + (group not in LONG)


class Groups:
    """A plugin of pytest: orders the tests by their groups, and has xdist's scheduler keep each group together.

    (xdist's own `--dist loadgroup` appends the group to the ids of tests, which pytest 9.2 ignores.)
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: place(group_of(item.nodeid)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScopeScheduling:
        from xdist.scheduler import LoadScopeScheduling

        class ByGroup(LoadScopeScheduling):
            def _split_scope(self, nodeid: str) -> str:
                return group_of(nodeid)

        config.option.loadscopereorder = False  # the order is ours
        return ByGroup(config, log)
