"""The open moves of Apache Kafka's brokers: their future replicas in DescribeLogDirs, one line each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView
from ops.cli.moves import view
from ops.cli.moves.view import MoveLine, ReplicaKey
from ops.stack.errors import OpsError
from storage_node.model.moves import Phase

#: Seconds for one response.
BROKER_SECONDS = 5.0


def lines(views: Sequence[LogDirectoryView]) -> list[MoveLine]:
    """Return a line for each future replica; Kafka reports neither its run nor its rate."""
    current = {(r.node, r.partition): r for each in views for r in each.replicas if not r.future}
    found = []
    for future in (r for each in views for r in each.replicas if r.future):
        source = current.get((future.node, future.partition))
        total = source.size if source else future.size
        found.append(
            MoveLine(
                id="",
                topic=future.partition.topic,
                partition=future.partition.partition,
                node=future.node,
                source=source.directory if source else "",
                directory=future.directory,
                phase=Phase.COPYING,
                bytes_total=total,
                bytes_copied=min(future.size, total),
                rate=0.0,
                eta=None,
                attempt=0,
            )
        )
    return sorted(found, key=lambda line: (line.node, line.topic, line.partition))


class FutureReplicas:
    """Reads the future replicas repeatedly; rates are measured between two reads."""

    def __init__(self, bootstrap: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._bootstrap, self._clock = bootstrap, clock
        self._before: dict[ReplicaKey, tuple[float, int]] = {}

    def read(self) -> tuple[list[MoveLine], list[str]]:
        """Return the lines of all brokers that respond, and a sentence for each other one. Raises `OpsError` if none
        responds.
        """
        notes: list[str] = []
        views: list[LogDirectoryView] = []
        with KafkaAdmin(self._bootstrap, timeout=BROKER_SECONDS) as admin:
            for node in admin.nodes():
                try:
                    views += admin.log_dirs([node.node])
                except OpsError as error:
                    notes.append(f"broker {node.node} is not read: {error}")
        return self.measured(lines(views)), notes

    def measured(self, now: Sequence[MoveLine]) -> list[MoveLine]:
        """Return the lines with the rate and ETA since the last read."""
        at, before = self._clock(), self._before
        self._before = {_key(line): (at, line.bytes_copied) for line in now}
        return [_since(line, at, before.get(_key(line))) for line in now]


def _key(line: MoveLine) -> ReplicaKey:
    return line.node, line.topic, line.partition


def _since(line: MoveLine, at: float, before: tuple[float, int] | None) -> MoveLine:
    if before is None or at <= before[0]:
        return line
    rate = max(0.0, (line.bytes_copied - before[1]) / (at - before[0]))
    return replace(line, rate=rate, eta=view.eta(line.bytes_total, line.bytes_copied, rate))
