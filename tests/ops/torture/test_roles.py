"""Disk faults of a local node, and the state of nodes at the end of a run."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ops.faults.disk import Disk
from ops.stack.errors import OpsError
from ops.torture import ending
from ops.torture.roles import LocalRoles, Roles
from tests.faults.disk import needs_fuse


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[LocalRoles]:
    made = LocalRoles(tmp_path / "torture", lambda _line: None)
    made._faulty[1] = Disk(tmp_path, "disk-d")
    yield made
    made.down()


@pytest.mark.fuse
@needs_fuse
def test_disk_fails_by_rules_until_it_is_mended(roles: LocalRoles) -> None:
    directory = roles._faulty[1].path
    (directory / "before").write_text("x")
    roles.fail_disk(1, {"ops": ["write"], "errno": errno.EIO})
    with pytest.raises(OSError) as failed, (directory / "file").open("wb", buffering=0) as file:
        file.write(b"x")
    assert failed.value.errno == errno.EIO and roles.disk_hits(1) == 1
    # The watches and the checks read the backing folder, which no rule affects.
    roles.fail_disk(1, {"errno": errno.EIO})
    assert (roles.disk(1, str(directory)) / "before").read_text() == "x"
    assert roles.disk(1, "/elsewhere") == Path("/elsewhere") and roles.disk(2, str(directory)) == directory
    roles.mend_disk(1)
    (directory / "file").write_bytes(b"y")


@pytest.mark.fuse
@needs_fuse
def test_disk_that_hangs_is_mended_and_unmounted_in_the_end(roles: LocalRoles) -> None:
    path = roles._faulty[1].path
    roles.fail_disk(1, {"hang": True})
    roles.down()
    assert not path.is_mount() and not roles._faulty
    roles.down()


def test_node_without_a_faulty_disk_raises(tmp_path: Path) -> None:
    roles = LocalRoles(tmp_path, lambda _line: None)
    for method in (roles.fail_disk, roles.disk_hits, roles.mend_disk):
        with pytest.raises(OpsError, match="node 1 cannot be made to fail"):
            cast(Any, method)(1)


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
