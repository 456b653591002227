"""The cost of a durable run's steps."""

from __future__ import annotations

from ops.bench.bench import Bench
from ops.bench.clients import librdkafka
from ops.bench.controller.noop import no_op_activity_seconds
from ops.bench.moves import stack_moves
from ops.bench.table import Figure


def steps(bench: Bench) -> list[Figure]:
    """Measure a no-op activity, and a move of an empty partition."""
    bench.say("one no-op activity, one empty move ...")
    stack = bench.stack
    noop = no_op_activity_seconds(stack.temporal)
    librdkafka.create_topic(stack.bootstrap, "empty")
    empty = stack_moves.empty_move_seconds(stack.temporal, "rehome", "empty", stack.disks, bench.rounds)
    return [
        Figure("one sequential no-op activity", f"{noop * 1e3:.1f} ms"),
        Figure("move of an empty partition, start to swapped", f"{empty * 1e3:.0f} ms"),
    ]
