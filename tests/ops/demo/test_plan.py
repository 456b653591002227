"""Which replicas the demo moves where, and what it calls misplaced."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from ops.cli.kafka_admin import LogDirectoryView, PlacedReplica
from ops.demo import between, disk, folder, plan
from ops.stack import ports
from ops.stack.errors import OpsError
from storage_node.types import TopicPartition
from workflows.model.plan import parse_reassignment


def view(node: int, path: str, *partitions: int, future: tuple[int, ...] = ()) -> LogDirectoryView:
    replicas = [PlacedReplica(node, path, TopicPartition("orders", p), 100, 0, False) for p in partitions]
    replicas += [PlacedReplica(node, path, TopicPartition("orders", p), 50, 5, True) for p in future]
    return LogDirectoryView(node, path, "", 1000, 500, tuple(replicas))


VIEWS = [view(1, "/n1/a", 0), view(1, "/n1/b", 3), view(1, "/n1/c", 6), view(2, "/n2/a", 1, 4), view(2, "/n2/b", 7)]


def test_two_moves_per_node_between_different_directories() -> None:
    moves = plan.choose_moves(VIEWS, "orders")
    assert [(m.partition, m.source, m.directory) for m in moves] == [
        (0, "/n1/a", "/n1/b"),
        (3, "/n1/b", "/n1/c"),
        (1, "/n2/a", "/n2/b"),
        (7, "/n2/b", "/n2/a"),
    ]


def test_too_few_directories_with_replicas() -> None:
    with pytest.raises(OpsError, match="node 1 holds replicas of orders in only 1"):
        plan.choose_moves([view(1, "/n1/a", 0, 1), view(1, "/n1/b")], "orders")


def test_the_json_is_what_kafkas_tool_takes() -> None:
    parsed = parse_reassignment(plan.reassignment_json(plan.choose_moves(VIEWS, "orders")))
    first = parsed[0]
    assert (first.topic, first.partition, first.replicas, first.log_dirs) == ("orders", 0, (1,), ("/n1/b",))


def test_replicas_where_they_are_to_be() -> None:
    moves = plan.choose_moves(VIEWS, "orders")
    done = [view(1, "/n1/a"), view(1, "/n1/b", 0, 3), view(2, "/n2/a", 4, 7), view(2, "/n2/b", 1)]
    assert plan.misplaced(moves, moves[1], done) == []


def test_replicas_elsewhere_are_named() -> None:
    moves = plan.choose_moves(VIEWS, "orders")
    problems = plan.misplaced(moves, None, [view(1, "/n1/a", 0), view(1, "/n1/b", 3, future=(0,)), view(2, "/n2/b", 1)])
    assert "orders-0 is in /n1/a of node 1, not in /n1/b" in problems
    assert "orders-0 still has a copy under way on node 1" in problems
    assert "orders-7 is in no directory of node 2" in problems


def test_leftovers_on_a_disk(tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1.move", f"orders-2.{'a' * 32}.delete"):
        (tmp_path / name).mkdir()
    assert [path.name for path in disk.leftovers([tmp_path])] == ["orders-1.move", f"orders-2.{'a' * 32}.delete"]
    assert len(disk.wait_until_clean([tmp_path], 0.0)) == 2


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OpsError, match="holds something else than a demo"):
        folder.prepare(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_the_demos_own_folder_is_used_again(tmp_path: Path) -> None:
    folder.prepare(tmp_path / "demo")
    (tmp_path / "demo" / "node-1").mkdir()
    folder.prepare(tmp_path / "demo")


def test_the_demo_goes_round_ports_that_others_have() -> None:
    """Whatever listens on this machine already: nothing that is chosen is in use."""
    with contextlib.ExitStack() as others:
        for port in (9093, 7233, 8234):
            listener = others.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that were closed do not count
            with contextlib.suppress(OSError):  # taken already: as good
                listener.bind(("127.0.0.1", port))
                listener.listen(1)
        chosen = folder.choose_ports()
        needed = [*range(chosen["port"], chosen["port"] + folder.NODES), chosen["temporal_port"]]
        assert all(ports.is_free(port) for port in [*needed, chosen["temporal_port"] + 1000])
        assert {9093, 7233, 7234}.isdisjoint(needed)


def test_one_partition_of_each_node_is_reassigned() -> None:
    leaders = {p: p % 3 + 1 for p in range(9)}
    moves = [plan.PlannedMove("orders", p, leaders[p], "/a", "/b") for p in (0, 3, 1, 4)]
    chosen = plan.choose_reassigned(leaders, moves)
    assert [(each.partition, each.before, each.replicas, each.cancelled) for each in chosen] == [
        (6, (1,), (2,), False),
        (7, (2,), (2, 3, 1), False),
        (2, (3,), (1,), True),
    ]
    with pytest.raises(OpsError, match="no replicas of orders are left"):
        plan.choose_reassigned(dict.fromkeys(range(3), 1), [])


def test_what_of_a_reassigned_partition_is_wrong() -> None:
    moved, back = plan.Reassigned(6, (1,), (2, 3)), plan.Reassigned(2, (3,), (1,), cancelled=True)
    assert between.wrong(moved, {"replicas": [2, 3], "isr": [3, 2]}, {2, 3}) == []
    assert between.wrong(back, {"replicas": [3], "isr": [3]}, {3}) == []
    assert between.wrong(back, {"replicas": [1], "isr": [1]}, {1}) == [
        "orders-2 is on nodes [1], not on [3]",
        "of orders-2 nodes [1] are in sync, not [3]",
        "of orders-2 there is data on nodes [1], not on [3]",
    ]
    assert between.wrong(moved, {"replicas": [2, 3], "isr": [2]}, {1, 2, 3}) == [
        "of orders-6 nodes [2] are in sync, not [2, 3]",
        "of orders-6 there is data on nodes [1, 2, 3], not on [2, 3]",
    ]
