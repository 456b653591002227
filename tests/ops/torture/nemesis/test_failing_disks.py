"""Disk faults: the rules applied, the recovery of directories and replicas, and the facts recorded."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from ops.faults.rules import Rule
from ops.stack.errors import OpsError
from ops.torture.nemesis import failing_disks
from ops.torture.nemesis.book import Book
from ops.torture.nemesis.decisions import Decision
from ops.torture.nemesis.failing_disks import FailingDisks
from ops.torture.nemesis.faults import Busy, Faults
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


def test_flushes_and_changes_that_fail_leave_reads_alone(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    deeds = disks(cluster, book)
    for kind in (0.5, 0.9):
        deeds.errors(at("disk-errors", 0.0, kind))
    changes, flushes = rules(cluster)
    assert not changes.hit("read", "/orders-3/0.log") and changes.hit("fsync", "/orders-3/0.log")
    assert not flushes.hit("write", "/orders-3/0.log") and flushes.hit("fsync", "/orders-3/0.log")


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


def test_copies_and_deleted_replicas_count_as_partitions_of_the_directory(tmp_path: Path, book: Book) -> None:
    disks(Cluster(tmp_path), book).errors(at("disk-errors", 0.9))
    assert book.faults[0].places == (("orders", 1), ("orders", 2), ("ticks", 0))


def test_without_any_replica_on_a_disk_there_is_no_bad_file(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    for node, names in HELD.items():
        for name in names:
            (Path(cluster.log_dirs(node)[-1]) / name).rmdir()
    with pytest.raises(IndexError):
        disks(cluster, book).bad_file(at("bad-file"))
    assert cluster.did == [] and book.faults == []


@pytest.mark.parametrize(("how", "end"), [(0.0, "kill"), (0.9, "stop")])
def test_directory_that_went_offline_is_back_by_a_restart(tmp_path: Path, book: Book, how: float, end: str) -> None:
    cluster = Cluster(tmp_path, down=("b",))
    _, outcome = disks(cluster, book).errors(at("disk-errors", 0.0, 0.0, 0.0, how))
    assert outcome.endswith("the directory was offline, back after a restart of the node")
    assert cluster.did[1:] == [("mend_disk", 1), (end, "node-1"), ("start", "node-1")]
    (fault,), (trouble,) = book.faults, book.troubles
    assert trouble.name == "node-1" and fault.until <= trouble.since <= trouble.until <= fault.back


BY_REQUEST = (0.0, 0.0, 0.0, 0.0, 0.6, 0.99, 0.0)


def test_directory_that_went_offline_is_back_on_request(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path, down=("b",))
    _, outcome = disks(cluster, book).errors(at("disk-errors", *BY_REQUEST))
    assert outcome.endswith("the directory was offline, back on request")
    assert cluster.did[1:] == [("mend_disk", 1), ("directory-online", 1, cluster.log_dirs(1)[-1])]
    assert book.troubles == [] and book.faults[0].back


def test_directory_that_stays_offline_on_request_is_back_by_a_restart(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path, down=("b",))
    cluster.reopens = False
    _, outcome = disks(cluster, book).errors(at("disk-errors", *BY_REQUEST))
    assert outcome.endswith("back after a restart of the node")
    assert [did[0] for did in cluster.did[1:]] == ["mend_disk", "directory-online", "kill", "start"]


def test_replicas_that_went_offline_alone_are_back_on_request(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path, alone=("orders-3",))
    _, outcome = disks(cluster, book).bad_file(at("bad-file"))
    assert outcome.endswith("individual replicas were offline, back on request")
    assert cluster.did[1:] == [("mend_disk", 1), ("replicas-online", 1, [["orders", 3]])]
    assert book.troubles == []


def test_replicas_that_stay_offline_on_request_are_back_by_a_restart(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path, alone=("orders-3",))
    cluster.reopens = False
    _, outcome = disks(cluster, book).bad_file(at("bad-file"))
    assert outcome.endswith("back after a restart of the node")


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


def test_directory_that_stays_offline_is_recorded_and_a_problem_after_healing(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path, down=("b",))
    cluster.restarts = False
    made = disks(cluster, book)
    _, outcome = made.errors(at("disk-errors"))
    assert "it stayed offline" in outcome and "stayed offline after a restart" in outcome
    assert book.faults[0].back == 0 and book.problems == []
    made.heal()
    assert len(book.problems) == 3 and "node 1" in book.problems[0]


def test_other_directories_that_go_offline_meanwhile_are_noted(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path, down=("a", "b"))
    disks(cluster, book).errors(at("disk-errors"))
    assert book.faults[0].offline == (cluster.log_dirs(1)[0],)


def test_disk_fault_ends_after_any_error(tmp_path: Path, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)

    def broken(_node: int) -> int:
        raise OpsError("it does not respond")

    monkeypatch.setattr(cluster, "disk_hits", broken)
    disks(cluster, book).errors(at("disk-errors"))
    assert cluster.did[-1] == ("mend_disk", 1) and len(book.faults) == 1


def test_node_is_started_while_its_disk_fails(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    _, outcome = disks(cluster, book).errors(at("disk-errors", 0.0, 0.0, 0.0, 0.0, 0.99))
    assert "while the node was started" in outcome
    assert [did[0] for did in cluster.did] == ["fail_disk", "kill", "start", "mend_disk"]
    assert len(book.troubles) == 1


def test_replica_is_moved_onto_the_disk_just_before(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    disks(cluster, book).full(at("disk-full", 0.0, 0.0, 0.0, 0.0, 0.1))
    assert cluster.did[0] == ("alter", 1, {("visits", 1): cluster.log_dirs(1)[-1]})


def test_action_that_is_alone_excludes_all_other_faults(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    made = disks(cluster, book)
    faults = made._faults
    refused: list[str] = []

    def look(*_rules: Mapping[str, Any]) -> None:
        for role in ("node-1", "node-2", "controller"):
            with pytest.raises(Busy), faults.held(role):
                pass
            refused.append(role)

    cluster.fail_disk = look  # type: ignore[attr-defined]
    _, outcome = made.errors(at("disk-errors", 0.0, 0.0, 0.0, 0.0, 0.6, 0.0))
    assert refused == ["node-1", "node-2", "controller"] and "alone" in outcome
    with faults.held("node-1"), faults.held("node-2"):  # all are released
        pass


def test_action_that_is_alone_waits_for_other_faults_to_end(
    tmp_path: Path, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.torture.nemesis.faults.ALONE_SECONDS", 0.05)
    made = disks(Cluster(tmp_path), book)
    with made._faults.held("node-2"), pytest.raises(Busy):
        made.errors(at("disk-errors", 0.0, 0.0, 0.0, 0.0, 0.6, 0.0))
    assert book.faults == []
    unsettled: Callable[[], bool] = lambda: False  # noqa: E731
    with pytest.raises(Busy, match="settle"), made._faults.alone("node-1", unsettled):
        pass
    with made._faults.held("node-1"), made._faults.held("node-2"):
        pass


def test_one_disk_fails_at_a_time_beside_faults_of_other_roles(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    made = disks(cluster, book)
    refused: list[str] = []

    def another(*_rules: Mapping[str, Any]) -> None:
        with pytest.raises(Busy, match="another disk"):
            made.errors(at("disk-errors", 0.9))
        with pytest.raises(Busy, match="node-1 has a fault"), made._faults.locked("node-1"):
            pass
        refused.append("both")

    cluster.fail_disk = another  # type: ignore[attr-defined]
    with made._faults.held("controller"), made._faults.held("node-3"):
        made.errors(at("disk-errors"))
    assert refused == ["both"] and len(book.faults) == 1


def test_healing_mends_every_disk(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    disks(cluster, book).heal()
    assert cluster.did == [("mend_disk", node) for node in cluster.nodes] and book.problems == []


def test_where_no_disk_can_fail_nothing_is_healed(tmp_path: Path, book: Book) -> None:
    cluster = Cluster(tmp_path)
    cluster.disks_cannot_fail = "needs /dev/fuse"
    disks(cluster, book).heal()
    assert cluster.did == []
