"""Disk faults: the rules applied, the recovery of directories and replicas, and the facts recorded."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ops.faults.rules import Rule
from ops.stack.errors import OpsError
from ops.torture.nemesis import failing_disks
from ops.torture.nemesis.book import Book
from ops.torture.nemesis.decisions import Decision
from ops.torture.nemesis.failing_disks import FailingDisks
from ops.torture.nemesis.faults import Faults
from ops.torture.nemesis.moving import Moving
from ops.torture.roles import Roles

HELD = {1: ("orders-3",), 2: ("ticks-0", "orders-1.move", f"orders-2.{'0' * 32}.delete"), 3: ()}


class Cluster:
    """Roles whose directories are plain folders, which record all calls. `down` are each node's offline directories."""

    nodes = (1, 2, 3)
    by_engine = False
    disks_cannot_fail = ""

    def __init__(self, root: Path, down: tuple[str, ...] = (), alone: tuple[str, ...] = ()) -> None:
        self._root, self.down, self.alone = root, down, alone
        self.did: list[tuple[Any, ...]] = []
        self.reopens = True
        self.restarts = True
        self.in_sync: list[str] = []
        for node, names in HELD.items():
            for directory in self.log_dirs(node):
                Path(directory).mkdir(parents=True)
            for name in names:
                (Path(self.log_dirs(node)[-1]) / name).mkdir()
            (Path(self.log_dirs(node)[0]) / f"visits-{node}").mkdir()

    def log_dirs(self, node: int) -> tuple[str, ...]:
        return tuple(str(self._root / f"n{node}" / name) for name in ("a", "b"))

    def disk(self, node: int, directory: str) -> Path:
        return Path(directory)

    def alive(self, name: str) -> bool:
        return True

    def disk_hits(self, node: int) -> int:
        return 7

    def call(self, node: int, op: str, timeout: float = 3.0, **fields: Any) -> dict[str, Any]:
        if op == "status":
            return {
                "directories": [{"path": p, "online": Path(p).name not in self.down} for p in self.log_dirs(node)],
                "offline": dict.fromkeys(self.alone, "bad"),
            }
        if op == "directory-online":
            self.did.append((op, node, fields["path"]))
            if not self.reopens:
                raise OpsError("the controller has not recorded yet that it failed")
            self.down = self.alone = ()
            return {"outcome": "reopened"}
        if op == "directory-losses":
            return {"online": not self.down, "in_sync": self.in_sync}
        if op == "directory-replace":
            self.did.append((op, node, fields["path"], [*Path(fields["path"]).iterdir()]))
            self.down = self.alone = ()
            return {"outcome": "replaced"}
        self.did.append((op, node, fields["partitions"]))
        if self.reopens:
            self.alone = ()
        return {"replicas": [{"outcome": "reopened" if self.reopens else "offline"}]}

    def start(self, name: str) -> None:
        self.did.append(("start", name))
        if self.restarts:
            self.down = self.alone = ()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.did.append((name, *arguments))


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path / "book", lambda _line: None)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTICED_SECONDS", "RECORDED_SECONDS", "TURN_SECONDS", "PATIENCE_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(failing_disks, name, 0.01)
    for name in ("FAILS", "FULL", "BAD", "HANGS", "HANGS_FOR_GOOD"):
        monkeypatch.setattr(failing_disks, name, (0.02, 0.03))
    monkeypatch.setattr("ops.torture.nemesis.faults.RECOVERY_SECONDS", 0.0)


def disks(cluster: Cluster, book: Book) -> FailingDisks:
    roles = cast(Roles, cluster)
    moving = Moving(roles)
    moving.alter = lambda node, moves: cluster.did.append(("alter", node, moves))  # type: ignore[method-assign,assign,func-returns-value]
    return FailingDisks(roles, moving, book, Faults(roles, moving, book), lambda: True)


def at(action: str, *picks: float) -> Decision:
    """Return a decision: by default not alone, without a move, on the first node with replicas on its faulty disk, and
    with a restart at the end.
    """
    usual = (0.0, 0.0, 0.0, 0.0, 0.6, 0.99, 0.99)
    return Decision(1, action, 0.0, (*picks, *usual[len(picks) :]))


def rules(cluster: Cluster) -> list[Rule]:
    return [Rule(**did[2]) for did in cluster.did if did[0] == "fail_disk"]


@pytest.mark.parametrize(
    ("action", "kind", "op", "effect"),
    [
        ("disk-errors", 0.0, "read", errno.EIO),
        ("disk-errors", 0.5, "write", errno.EIO),
        ("disk-errors", 0.9, "fdatasync", errno.EIO),
        ("disk-hangs", 0.0, "write", "hang"),
        ("disk-hangs", 0.9, "getattr", "hang"),
        ("disk-full", 0.0, "write", errno.ENOSPC),
    ],
)
def test_disk_fails_and_is_mended(
    tmp_path: Path, book: Book, action: str, kind: float, op: str, effect: int | str
) -> None:
    cluster = Cluster(tmp_path)
    what, outcome = disks(cluster, book).deeds[action](at(action, 0.0, kind))
    assert what == f"{cluster.log_dirs(1)[-1]} of node-1" and outcome.endswith("(7 hits): nothing went offline")
    (rule,) = rules(cluster)
    assert rule.hit(op, "/orders-3/0.log") and (rule.hang if effect == "hang" else rule.errno == effect)
    assert [did[0] for did in cluster.did] == ["fail_disk", "mend_disk"]
    (fact,) = book.faults
    assert (fact.node, fact.directory, fact.kind, fact.hits) == (1, cluster.log_dirs(1)[-1], action, 7)
    assert fact.since < fact.until <= fact.back and fact.looks and fact.offline == ()
    assert fact.places == (("orders", 3),) and book.troubles == []


@pytest.mark.parametrize(("files", "hit"), [(0.0, False), (0.9, True)], ids=["records", "folder"])
@pytest.mark.parametrize(("code", "number"), [(0.0, errno.EPERM), (0.9, errno.EIO)])
def test_bad_file_affects_one_replica(
    tmp_path: Path, book: Book, files: float, hit: bool, code: float, number: int
) -> None:
    cluster = Cluster(tmp_path)
    disks(cluster, book).bad_file(at("bad-file", 0.0, code, files))
    (rule,) = rules(cluster)
    assert rule.errno == number and rule.hit("write", "/orders-3/00.log")
    assert rule.hit("create", "/orders-3/00.index") is hit and rule.hit("mkdir", "/orders-3") is hit
    for other in ("/orders-31/00.log", "/orders-3.move/00.log", "/ticks-0/00.log", "/health-check"):
        assert not rule.hit("write", other)


def test_failed_disk_is_replaced_by_an_empty_one(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path, down=("b",))
    _, outcome = disks(cluster, book).replaced(at("disk-replaced", 0.6))
    assert outcome.endswith("the disk was replaced") and book.faults[0].outcome == "the disk was replaced"
    assert cluster.did[-1] == ("directory-replace", 2, cluster.log_dirs(2)[-1], [])


def test_disk_with_a_replica_in_sync_is_not_replaced(tmp_path: Path, book: Book) -> None:
    """By the metadata it may hold records that no other one has."""
    cluster = Cluster(tmp_path, down=("b",))
    cluster.in_sync = ["ticks-0"]
    _, outcome = disks(cluster, book).replaced(at("disk-replaced", 0.6))
    assert outcome.endswith("back after a restart of the node")
    assert (Path(cluster.log_dirs(2)[-1]) / "ticks-0").is_dir()


def test_healing_mends_every_disk(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    disks(cluster, book).heal()
    assert cluster.did == [("mend_disk", node) for node in cluster.nodes] and book.problems == []
