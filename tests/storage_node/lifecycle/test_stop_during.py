"""A stop while something is under way: it ends first or gives way; nothing touches the disk afterwards."""

from __future__ import annotations

import threading
from pathlib import Path

from storage_node import failpoints
from storage_node.errors import RequestRefused
from storage_node.model.ids import TopicPartition
from storage_node.move.status import SwapOutcome
from tests.support.nodes.node_harness import running, until

TP = TopicPartition("t", 0)


def test_swap_under_way_ends_before_the_directories_are_given_up(tmp_path: Path) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.controller.hold_moves = True
        harness.create_topic("t")
        harness.produce("t", [b"%d" % number for number in range(100)])
        harness.settle()
        engine = harness.node.engine
        target = harness.other_directory("t")
        claim = engine.create(TP, target, owner="run").claim
        engine.start_copy(TP, claim)
        until(lambda: engine.statuses()[0].state == "caught_up")
        going_on = threading.Event()
        outcomes: list[SwapOutcome] = []
        with failpoints.active({"swap.after_source_flushed": lambda: going_on.wait(20)}) as armed:
            swapping = threading.Thread(target=lambda: outcomes.append(engine.swap(TP, claim)))
            swapping.start()
            assert armed.wait_hit("swap.after_source_flushed")
            stopping = threading.Thread(target=harness.stop)
            stopping.start()
            stopping.join(0.5)
            assert stopping.is_alive(), "the stop waits for the swap"
            assert all((Path(path) / ".lock").exists() for path in harness.paths)
            going_on.set()
            stopping.join(20)
            swapping.join(20)
        assert [outcome.outcome for outcome in outcomes] == ["swapped"]
        try:
            engine.create(TP, target)
        except RequestRefused as error:
            assert "stop" in str(error)
        else:
            raise AssertionError("a stopped node makes no moves")
        harness.node = harness._new(0)
        harness.start()
        assert harness.directory_of("t") == target and harness.node.recovered_bytes == 0
        assert [int(m.value()) for m in harness.consume("t", 100)] == list(range(100))
