"""Who coordinates a consumer group."""

from __future__ import annotations

from tests.conformance.clusters import Cluster


def coordinator(cluster: Cluster, group: str) -> int:
    """The node that coordinates a group; waits until there is one."""

    def found() -> int:
        answer = cluster.call("FindCoordinator", 4, key_type=0, coordinator_keys=[group])
        (row,) = answer.coordinators
        if int(row.error_code):
            return 0
        # It may not know yet that it is the one, or still read what it has.
        (described,) = cluster.call("DescribeGroups", 5, node=row.node_id, groups=[group]).groups
        return 0 if int(described.error_code) else row.node_id

    return cluster.eventually(found, f"a coordinator of {group}")
