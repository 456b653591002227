"""What holds a move, as people see it on a real stack: the table, --json, the query of the run, and its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from temporalio.client import Client

from ops.cli.moves import runs
from ops.cli.target import resolve
from ops.stack.stack import Stack
from tests.ops.cli.conftest import Rehome, fill, known
from tests.ops.cli.test_on_stack import another, where
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]


@pytest.fixture
def topics(stack: Stack, rehome: Rehome, producer: Producer) -> Iterator[Callable[..., list[str]]]:
    """Makes topics of one partition and 12 MB; their moves are cancelled afterwards, none has ended by then."""
    made: list[str] = []

    def make(count: int) -> list[str]:
        names = sorted(f"s{uuid4().hex[:8]}" for _ in range(count))
        for name in names:
            rehome("topic", "create", name)
            made.append(name)
            fill(producer, name, 1200)
            known(stack, name)
        return names

    yield make
    for row in rehome("moves")["moves"]:
        if row["topic"] in made:
            rehome("cancel", row["id"])
    for name in made:
        rehome("topic", "delete", name)


def line(rehome: Rehome, topic: str) -> Any:
    return next((row for row in rehome("moves")["moves"] if row["topic"] == topic), {})


def progress(data: Path, workflow_id: str) -> Any:
    async def query(client: Client) -> Any:
        return await client.get_workflow_handle(workflow_id).query("progress")

    return runs.with_temporal(resolve(data), query)


def move(rehome: Rehome, topic: str, throttle: str, *more: str) -> tuple[str, int, Path]:
    node, directory = where(rehome, topic)
    target = str(another(directory))
    started = rehome("move", f"{topic}-0", "--node", str(node), "--to", target, "--throttle", throttle, *more)
    return started["id"], node, directory


def test_stall_of_a_queued_and_of_a_throttled_move_is_reported(
    rehome: Rehome, topics: Callable[..., list[str]], data: Path
) -> None:
    pairs: dict[int, list[str]] = {}
    while not any(len(pair) >= 2 for pair in pairs.values()):
        (name,) = topics(1)
        pairs.setdefault(where(rehome, name)[0], []).append(name)
    first, second = next(pair for pair in pairs.values() if len(pair) >= 2)[:2]
    holds, _node, directory = move(rehome, first, "300kB")
    until(lambda: line(rehome, first).get("bytes_copied"))
    waits, _, _ = move(rehome, second, "300kB")

    target = another(directory)
    queued = f"queued behind {first}-0 ({directory} -> {target}), which has the only copying thread"
    behind = until(lambda: (row := line(rehome, second)).get("stall_message") == queued and row, what="who holds it")
    assert (behind["stall"], behind["eta"]) == ("queued", None)

    throttled = until(lambda: (row := line(rehome, first)).get("stall") == "run_limit" and row)
    assert "by the move's own limit of 300 kB/s" in throttled["stall_message"]
    assert throttled["eta"] > 1

    shown = rehome("moves", table=True)
    assert f"{second}-0: queued behind {first}-0 ({directory.name} -> {target.name})" in shown
    assert f"{first}-0: held back" in shown and "its limit" in shown and "other moves" in shown

    reported = until(
        lambda: (found := progress(data, waits))["stall_message"] == queued and found, what="the run says so"
    )
    assert reported["stall"] == "queued"
    assert progress(data, holds)["replicas"][0]["stall"] in ("run_limit", "")

    rehome("cancel", holds)
    until(lambda: line(rehome, second).get("bytes_copied"))
    row = until(lambda: progress(data, waits)["replicas"][0]["seconds_by_reason"])
    assert row["queued"] > 0


def test_eta_of_a_copy_slower_than_its_growing_source_is_unknown(
    rehome: Rehome, topics: Callable[..., list[str]], producer: Producer, data: Path
) -> None:
    (name,) = topics(1)
    stop = threading.Event()

    def grow() -> None:
        while not stop.wait(0.05):
            fill(producer, name, 10)  # about 2 MB/s

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        started, _node, _directory = move(rehome, name, "200kB")
        row = until(lambda: (row := line(rehome, name)).get("stall") == "growing_source" and row)
        shown = rehome("moves", table=True)
    finally:
        stop.set()
        growing.join()
    assert row["append_rate"] > 500_000 > row["rate"] and row["eta"] is None
    assert row["stall_message"].startswith("the source grows by ")
    assert "by the move's own limit of 200 kB/s): there is no end in sight" in row["stall_message"]
    assert f"{name}-0: the source grows by" in shown and "growing source" in shown
    assert started

    until(lambda: (row := line(rehome, name)).get("stall") == "run_limit" and row["eta"])


def test_move_on_a_dead_node_reports_the_node(
    stack: Stack, rehome: Rehome, topics: Callable[..., list[str]], data: Path
) -> None:
    (name,) = topics(1)
    started, node, _directory = move(rehome, name, "300kB")
    until(lambda: line(rehome, name).get("bytes_copied"))
    rehome("stack", "kill", f"node-{node}")
    try:
        row = line(rehome, name)
        assert (row["stall"], row["eta"]) == ("dead", None)
        dead = f"node {node} is dead: its address refuses connections"
        assert row["stall_message"].startswith(dead)
        fenced = f"{dead}, and the controller has fenced it"
        until(lambda: line(rehome, name).get("stall_message") == fenced, 60, "its lease is over")
        shown = until(lambda: (found := progress(data, started))["stall"] == "dead" and found, 60, "the run knows")
        assert shown["stall_message"].startswith(f"{dead}, and the controller has fenced it; its last report is")
    finally:
        rehome("stack", "start", f"node-{node}")
    until(lambda: line(rehome, name).get("phase") in ("copying", "throttled"), 60)
    row = until(lambda: (row := progress(data, started)["replicas"][0])["seconds_by_reason"].get("dead") and row, 60)
    assert row["seconds_by_reason"]["dead"] > 3, "the row keeps the time without its node"
