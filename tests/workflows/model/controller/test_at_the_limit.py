"""What the controller's decisions cost in a cluster that is filled to its limit: 20,000 replicas on three and on nine
nodes.

Seconds of CPU of this thread, at several times what they take: a workflow task that takes longer than two seconds of a
machine that is busy with other things is given up, and what the run has done so far is gone through again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.workflows.model.support import new_id
from workflows.model.calls import ImageResult
from workflows.model.controller.controller import Controller
from workflows.model.metadata import image

TOPICS, PARTITIONS, FACTOR = 952, 7, 3
#: Of an operation, of which each is a workflow task at most.
SECONDS = 0.5


class Limit:
    """A controller, and its nodes' parts in what happens."""

    def __init__(self, nodes: int) -> None:
        self.it = Controller.start("c", {})
        self.nodes = range(1, nodes + 1)
        self.spent: dict[str, float] = {}
        for node in self.nodes:
            self.register(node, f"i{node}")
        for at in range(0, TOPICS, 100):
            rows = [
                {
                    "name": f"limit-{number}",
                    "assignment": [[(number + p + k) % nodes + 1 for k in range(FACTOR)] for p in range(PARTITIONS)],
                }
                for number in range(at, min(at + 100, TOPICS))
            ]
            self.submit(1, {"do": "create_topics", "topics": rows})
        self.sent()
        for node in self.nodes:
            rows = [
                [topic.name, each.index, topic.id, f"directory-{node}", 0]
                for topic, each in self.state.partitions()
                if node in each.replicas
            ]
            self.submit(node, {"do": "assign_directories", "node": node, "replicas": rows})
        self.it.make_urgent()
        self.sent()

    @property
    def state(self) -> Any:
        assert self.it.state is not None
        return self.it.state

    def timed(self, what: str, do: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = do()
        self.spent[what] = max(self.spent.get(what, 0.0), time.thread_time() - began)
        return result

    def batch(self, node: int, incarnation: str, *commands: Any, pair: tuple[int, int] | None = None) -> dict[str, Any]:
        generation, version = pair or self.it.pair
        return {
            "node": node,
            "incarnation": incarnation,
            "generation": generation,
            "version": version,
            "commands": json.loads(json.dumps(commands)),
        }

    def submit(self, node: int, *commands: Any) -> dict[str, Any]:
        batch = self.batch(node, self.state.nodes[node].incarnation, *commands)
        reply = self.timed(commands[0]["do"], lambda: self.it.submit(batch, new_id))
        assert not any(row.get("error") for rows in reply["results"] for row in rows)
        return reply

    def register(self, node: int, incarnation: str, whole: str = "", pair: tuple[int, int] | None = None) -> None:
        command = {
            "do": "register",
            "node": node,
            "incarnation": incarnation,
            "host": "localhost",
            "port": 9092,
            "directories": [[f"directory-{node}", "/a", 1]],
            "image": whole,
        }
        batch = self.batch(node, incarnation, command, pair=pair)
        self.timed("register", lambda: self.it.submit(batch, new_id))

    def sent(self) -> int:
        """Push to all nodes in one task; how often images were packed for it."""
        before = self.it.packed
        due = self.it.to_push()
        self.timed("push to all", lambda: [self.it.images_for(node) for node in due])
        for node in due:
            assert self.it.pushed(node, ImageResult(*self.it.pair, self.state.nodes[node].incarnation), self.it.pair)
        return self.it.packed - before

    def joined(self, node: int) -> None:
        """Every leader takes the node into the ISRs again."""
        for leader in self.nodes:
            rows = [
                [t.name, p.index, t.id, p.leader_epoch, p.partition_epoch, [[each, -1] for each in (*p.isr, node)]]
                for t, p in self.state.partitions()
                if p.leader == leader and node in p.replicas and node not in p.isr
            ]
            for at in range(0, len(rows), 2000):  # as many as a node puts into one command
                self.submit(leader, {"do": "alter_partitions", "node": leader, "partitions": rows[at : at + 2000]})


@pytest.mark.parametrize("nodes", [3, 9])
def test_every_operation_takes_less_than_a_second(nodes: int, own_time: None) -> None:
    limit = Limit(nodes)
    limit.timed("fence", lambda: limit.it.fence(nodes, f"i{nodes}"))
    assert limit.sent() == 1, "one delta for all nodes, which know the same"
    limit.register(nodes, "again")
    assert limit.sent() <= 1
    limit.joined(nodes)
    limit.it.make_urgent()
    assert limit.sent() <= 2
    carried = limit.timed("carry", limit.it.carry)
    limit.timed("start", lambda: Controller.start("c", carried))
    assert max(limit.spent.values()) < SECONDS, limit.spent


@pytest.mark.parametrize("nodes", [3, 9])
def test_collecting_takes_less_than_a_second_per_node(nodes: int, own_time: None) -> None:
    limit = Limit(nodes)
    (whole,) = image.whole(limit.state)
    limit.it, pair = Controller.start("c", {}), limit.it.pair
    for node in limit.nodes:
        limit.register(node, f"i{node}", whole, pair)
    assert len(limit.state.topics) == TOPICS and limit.it.pair[0] == pair[0] + 1
    # The last node's registration merges all images, once in a cluster generation.
    assert limit.spent["register"] < 2 * SECONDS, limit.spent
