"""Disk faults of a local node, and the state of nodes at the end of a run."""

from __future__ import annotations

from typing import Any, cast

from ops.torture import ending
from ops.torture.roles import Roles


def test_node_with_a_directory_offline_at_the_end_does_not_work() -> None:
    def status(online: bool) -> dict[str, Any]:
        directory = {"path": "/n1/disk-d", "online": online, "failure": "" if online else "I/O error"}
        return {"directories": [directory], "offline": {}, "generation": 1}

    def fact(online: bool) -> Any:
        class OneNode:
            nodes = (1,)

            def alive(self, name: str) -> bool:
                return True

            def call(self, node: int, op: str, timeout: float) -> dict[str, Any]:
                return status(online)

        return ending.roles_at_end(cast(Roles, OneNode()))[-1]

    assert fact(True).works
    assert not fact(False).works and fact(False).why == "/n1/disk-d is offline: I/O error"
