"""What the steps of a durable run cost by themselves."""

from __future__ import annotations

from ops.bench import clients, moves
from ops.bench.bench import Bench
from ops.bench.noop import no_op_activity_seconds
from ops.bench.table import Figure


def steps(bench: Bench) -> list[Figure]:
    """One no-op activity of Temporal's, and a move that has nothing to copy."""
    bench.say("one no-op activity, one empty move ...")
    stack = bench.stack
    noop = no_op_activity_seconds(stack.temporal)
    clients.create_topic(stack.bootstrap, "empty")
    empty = moves.empty_move_seconds(stack.temporal, "rehome", "empty", stack.disks, bench.rounds)
    return [
        Figure("one sequential no-op activity", f"{noop * 1e3:.1f} ms"),
        Figure("move of an empty partition, start to swapped", f"{empty * 1e3:.0f} ms"),
    ]
