"""The demo's choice of replicas and targets, and its report of misplaced ones."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from ops.cli.kafka_admin import LogDirectoryView, PlacedReplica
from ops.demo import between, choice, disk, folder
from ops.stack import ports
from ops.stack.errors import OpsError
from storage_node.model.ids import TopicPartition
from workflows.model.plans.document import parse_reassignment


def view(node: int, path: str, *partitions: int, future: tuple[int, ...] = ()) -> LogDirectoryView:
    replicas = [PlacedReplica(node, path, TopicPartition("orders", p), 100, 0, False) for p in partitions]
    replicas += [PlacedReplica(node, path, TopicPartition("orders", p), 50, 5, True) for p in future]
    return LogDirectoryView(node, path, "", 1000, 500, tuple(replicas))


VIEWS = [view(1, "/n1/a", 0), view(1, "/n1/b", 3), view(1, "/n1/c", 6), view(2, "/n2/a", 1, 4), view(2, "/n2/b", 7)]


def test_two_moves_per_node_between_different_directories() -> None:
    moves = choice.choose_moves(VIEWS, "orders")
    assert [(m.partition, m.source, m.directory) for m in moves] == [
        (0, "/n1/a", "/n1/b"),
        (3, "/n1/b", "/n1/c"),
        (1, "/n2/a", "/n2/b"),
        (7, "/n2/b", "/n2/a"),
    ]


def test_too_few_directories_with_replicas() -> None:
    with pytest.raises(OpsError, match="node 1 has replicas of orders in only 1"):
        choice.choose_moves([view(1, "/n1/a", 0, 1), view(1, "/n1/b")], "orders")


def test_json_is_valid_for_kafka_reassign_partitions() -> None:
    parsed = parse_reassignment(choice.reassignment_json(choice.choose_moves(VIEWS, "orders")))
    first = parsed[0]
    assert (first.topic, first.partition, first.replicas, first.log_dirs) == ("orders", 0, (1,), ("/n1/b",))


def test_replicas_in_their_targets() -> None:
    moves = choice.choose_moves(VIEWS, "orders")
    done = [view(1, "/n1/a"), view(1, "/n1/b", 0, 3), view(2, "/n2/a", 4, 7), view(2, "/n2/b", 1)]
    assert choice.misplaced(moves, moves[1], done) == []


def report_row(move: choice.PlannedMove, **more: object) -> dict[str, object]:
    row = {"kind": "disk", "replica": str(move), "node": move.node, "outcome": "moved"}
    return {**row, "attempts": 1, "bytes_resumed": 0, **more}


def test_report_with_every_move_of_the_demo() -> None:
    moves = choice.choose_moves(VIEWS, "orders")
    rows = [report_row(move) for move in moves]
    rows[0] |= {"bytes_resumed": 5}
    rows[1] |= {"outcome": "cancelled"}
    again = [choice.Reassigned(5, (1,), (2,)), choice.Reassigned(2, (3,), (1,), cancelled=True)]
    rows.append({"kind": "node", "replica": "orders-5", "node": 2, "outcome": "moved"})
    rows.append({"kind": "node", "replica": "orders-2", "node": 1, "outcome": "cancelled"})
    assert choice.unreported(moves, moves[1], moves[0], again, rows) == []


def test_move_that_the_report_lacks_is_named() -> None:
    moves = choice.choose_moves(VIEWS, "orders")
    rows = [report_row(move) for move in moves[1:]]
    problems = choice.unreported(moves, moves[1], moves[2], [choice.Reassigned(5, (1,), (1, 2))], rows)
    assert problems == [
        "the report has orders-0 on node 1 as None, not as moved",
        "the report has orders-3 on node 1 as moved, not as cancelled",
        "the report does not show that the copy of orders-1 was interrupted",
        "the report has orders-5 to node 2 as None, not as moved",
    ]


def test_counts_that_sql_finds_are_those_of_the_demo() -> None:
    moves = choice.choose_moves(VIEWS, "orders")
    again = [choice.Reassigned(5, (1,), (1, 2, 3)), choice.Reassigned(2, (3,), (1,), cancelled=True)]
    found = "kind,outcome,moves\ndisk,cancelled,1\ndisk,moved,3\nnode,cancelled,1\nnode,moved,2\n"
    assert choice.miscounted(moves, moves[1], again, found) == []
    assert choice.miscounted(moves, None, again, found) == [
        "the tables have 1 disk moves that are cancelled, not 0",
        "the tables have 3 disk moves that are moved, not 4",
    ]
    assert choice.miscounted([], None, again[1:], "") == ["the tables have 0 node moves that are cancelled, not 1"]


def test_replicas_elsewhere_are_named() -> None:
    moves = choice.choose_moves(VIEWS, "orders")
    problems = choice.misplaced(
        moves, None, [view(1, "/n1/a", 0), view(1, "/n1/b", 3, future=(0,)), view(2, "/n2/b", 1)]
    )
    assert "orders-0 is in /n1/a of node 1, not in /n1/b" in problems
    assert "orders-0 still has a future replica on node 1" in problems
    assert "orders-7 is in no directory of node 2" in problems


def test_leftovers_on_a_disk(tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1.move", f"orders-2.{'a' * 32}.delete"):
        (tmp_path / name).mkdir()
    assert [path.name for path in disk.leftovers([tmp_path])] == ["orders-1.move", f"orders-2.{'a' * 32}.delete"]
    assert len(disk.wait_until_clean([tmp_path], 0.0)) == 2


def test_demos_own_folder_is_used_again(tmp_path: Path) -> None:
    folder.prepare(tmp_path / "demo")
    (tmp_path / "demo" / "node-1").mkdir()
    folder.prepare(tmp_path / "demo")


def test_demo_chooses_only_free_ports() -> None:
    """None of the chosen ports is in use, regardless of the machine's listeners."""
    with contextlib.ExitStack() as others:
        for port in (9093, 7233, 8234):
            listener = others.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
            with contextlib.suppress(OSError):  # in use already, which is as good
                listener.bind(("127.0.0.1", port))
                listener.listen(1)
        chosen = folder.choose_ports()
        needed = [*range(chosen["port"], chosen["port"] + folder.NODES), chosen["temporal_port"]]
        assert all(ports.is_free(port) for port in [*needed, chosen["temporal_port"] + 1000])
        assert {9093, 7233, 7234}.isdisjoint(needed)


def test_one_partition_of_each_node_is_reassigned() -> None:
    leaders = {p: p % 3 + 1 for p in range(9)}
    moves = [choice.PlannedMove("orders", p, leaders[p], "/a", "/b") for p in (0, 3, 1, 4)]
    chosen = choice.choose_reassigned(leaders, moves)
    assert [(each.partition, each.before, each.replicas, each.cancelled) for each in chosen] == [
        (6, (1,), (2,), False),
        (7, (2,), (2, 3, 1), False),
        (2, (3,), (1,), True),
    ]
    with pytest.raises(OpsError, match="orders has no further replicas"):
        choice.choose_reassigned(dict.fromkeys(range(3), 1), [])


def test_differences_of_reassigned_partitions_are_reported() -> None:
    moved, back = choice.Reassigned(6, (1,), (2, 3)), choice.Reassigned(2, (3,), (1,), cancelled=True)
    assert between.wrong(moved, {"replicas": [2, 3], "isr": [3, 2]}, {2, 3}) == []
    assert between.wrong(back, {"replicas": [3], "isr": [3]}, {3}) == []
    assert between.wrong(back, {"replicas": [1], "isr": [1]}, {1}) == [
        "orders-2 is on nodes [1], not on [3]",
        "the ISR of orders-2 is [1], not [3]",
        "orders-2 has data on nodes [1], not on [3]",
    ]
    assert between.wrong(moved, {"replicas": [2, 3], "isr": [2]}, {1, 2, 3}) == [
        "the ISR of orders-6 is [2], not [2, 3]",
        "orders-6 has data on nodes [1, 2, 3], not on [2, 3]",
    ]
