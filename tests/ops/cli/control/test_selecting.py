"""Which runs an id, a partition, a topic and a prefix stand for."""

from __future__ import annotations

import pytest

from ops.cli.control.selecting import Candidate, listed, select, wanted
from ops.stack.errors import UsageError
from storage_node.model.ids import TopicPartition


def partitions(*names: str) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2])) for name in names)


def run(name: str, *names: str) -> Candidate:
    return Candidate(name, "", "MoveReplica", frozenset(partitions(*names)))


RUNS = [
    run("d", "orders-10"),
    run("a", "orders-1", "orders-2"),
    run("b", "orders-2", "pay-0"),
    run("c", "orders-old-1"),
]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("orders-1", [("a", ("orders-1",), ("orders-2",))]),
        ("orders-2", [("a", ("orders-2",), ("orders-1",)), ("b", ("orders-2",), ("pay-0",))]),
        (
            "orders-",
            [
                ("a", ("orders-1", "orders-2"), ()),
                ("b", ("orders-2",), ("pay-0",)),
                ("d", ("orders-10",), ()),
            ],
        ),
        ("orders-old-", [("c", ("orders-old-1",), ())]),
        ("orders--", []),
        (
            "orders-*",
            [
                ("a", ("orders-1", "orders-2"), ()),
                ("b", ("orders-2",), ("pay-0",)),
                ("c", ("orders-old-1",), ()),
                ("d", ("orders-10",), ()),
            ],
        ),
        ("orders-old-*", [("c", ("orders-old-1",), ())]),
        ("pa*", [("b", ("pay-0",), ("orders-2",))]),
        ("orders-3", []),
    ],
)
def test_runs_that_move_what_is_meant(what: str, expected: list[tuple[str, tuple[str, ...], tuple[str, ...]]]) -> None:
    assert [(each.run.workflow_id, each.partitions, each.others) for each in select(wanted(what), RUNS)] == [
        (name, partitions(*mine), partitions(*others)) for name, mine, others in expected
    ]


@pytest.mark.parametrize("what", ["orders", "", "-", "*", "c/move/1/orders-1/7", "orders-x"])
def test_other_text_is_a_wrong_usage(what: str) -> None:
    with pytest.raises(UsageError, match="is not the id of a run; pass an id"):
        wanted(what)


def test_long_list_says_how_many_more() -> None:
    assert listed(partitions("t-0", "t-1")) == "t-0, t-1"
    assert listed(partitions(*(f"t-{number}" for number in range(9)))) == "t-0, t-1, t-2 and 6 more"
