"""Single-partition clients, against a real node."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

from ops.torture import steady
from ops.torture.history import ASSIGN, OK, POLL, SEND, Event, Recorder, read
from ops.torture.orders import Orders, Stopping
from tests.support.nodes.node_harness import running, until


class Stop:
    """The stop command."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.hurried = False


def test_each_partition_has_a_client_that_sends_and_reads_there_alone(tmp_path: Path) -> None:
    stopping = Stop()
    with running(tmp_path) as harness:
        harness.create_topic("t", partitions=2)
        topics = {"label": ("t", 2)}
        orders = Orders("steady", "steady", harness.bootstrap, tmp_path / "steady.jsonl", topics, 20.0, acks="1")
        with Recorder(orders.history) as recorder:
            counts: dict[str, int] = {}

            def run() -> None:
                counts.update(steady.run(orders, recorder, cast(Stopping, stopping)))

            def noted() -> dict[tuple[str, str], list[Event]]:
                recorder.flush()
                found: dict[tuple[str, str], list[Event]] = defaultdict(list)
                for event in read([orders.history]):
                    found[event.process, event.op].append(event)
                return found

            thread = threading.Thread(target=run)
            thread.start()
            names = ["steady-label-0", "steady-label-1"]
            until(lambda: all(len(noted()[name, POLL]) > 3 for name in names), 60, "both are read")
            stopping.asked.set()
            thread.join(60)
            found = noted()
    assert {process for process, _ in found} == set(names)
    for number, name in enumerate(names):
        assert {event.place for op in (SEND, POLL, ASSIGN) for event in found[name, op]} == {("label", number)}
        assert all(event.type == OK and not event.sound for event in found[name, SEND])
        values = {event.offset: event.value for event in found[name, SEND]}
        given: dict[int, Any] = {offset: value for event in found[name, POLL] for offset, value in event.records}
        assert given and given.items() <= values.items()
    assert counts[OK] == sum(len(found[name, SEND]) for name in names)
