"""The dashboard on a real stack, in a real browser: a percent rises, a killed node and a killed Temporal show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ops.cli.dashboard import readers
from ops.dashboards.live import hub
from ops.dashboards.live.board import STALE_SECONDS
from ops.stack.stack import Stack
from tests.ops.cli.conftest import Rehome, fill
from tests.ops.cli.test_on_stack import another, where
from tests.support.nodes.node_harness import until
from tests.support.programs.chromium import Watched, aside

#: A silent source shows within so many seconds; on a machine that is busy with other tests, within this multiple.
SHOWS, SLACK = 5.0, 4

pytestmark = [pytest.mark.temporal, pytest.mark.browser, pytest.mark.timeout(400)]


@pytest.fixture
def url(data: Path) -> Iterator[str]:
    """The address that the command prints."""
    command = [sys.executable, "-m", "ops.cli.main", "dashboard", "--port", "0", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        yield running.stdout.readline().strip()
        running.send_signal(2)
        assert running.wait(10) == 130
        assert running.stderr is not None and "Traceback" not in running.stderr.read()


def percent(watched: Watched, key: str) -> float:
    text = watched.page.locator(f'[data-key="{key}"] .pct').inner_text()
    return float(text.removesuffix("%")) if text != "–" else 0.0


def source(watched: Watched, name: str) -> str:
    return str(watched.page.locator(f'[data-source="{name}"]').inner_text())


def test_silent_source_shows_within_five_seconds_by_the_intervals() -> None:
    """The longest way: a read has just begun, the next one waits for its response in vain, and a board follows."""
    assert readers.NODE_SECONDS + 2 * hub.SECONDS < SHOWS
    assert STALE_SECONDS + hub.SECONDS <= SHOWS


def within(seconds: float, holds: Any, what: str) -> None:
    """Wait for what must show within so many seconds of now."""
    until(holds, seconds, what)


def test_live_page_follows_a_move_a_killed_node_and_a_killed_temporal(
    stack: Stack, rehome: Rehome, topic: str, producer: Producer, browser: Any, url: str, tmp_path: Path
) -> None:
    fill(producer, topic)  # once more: the move is not to end by itself
    node, directory = aside(lambda: where(rehome, topic))
    options = ("--node", str(node), "--to", str(another(directory)), "--throttle", "100kB")
    started = aside(lambda: rehome("move", f"{topic}-0", *options))
    key = f"disk/{node}/{topic}-0"
    with Watched(browser, url) as watched:
        within(60, lambda: percent(watched, key) > 0, "the copy's percent shows")
        first = percent(watched, key)
        within(60, lambda: percent(watched, key) > first, "it rises")
        row = watched.page.locator(f'[data-key="{key}"]')
        until(lambda: "its limit" in row.inner_text(), what="what holds the copy")
        assert re.search(r"\d+(\.\d+)? kB/s", row.inner_text())
        row.click()
        until(lambda: started["id"] in watched.text("detail"), what="the run's id")
        assert f"by node {node}" in watched.text("detail") and "by Temporal" in watched.text("detail")
        assert "ago" in source(watched, "Temporal") and "ago" in source(watched, f"node {node}")

        aside(lambda: stack.kill("temporal"))
        within(
            SHOWS * SLACK,
            lambda: re.search(r"stale since \d\d:\d\d:\d\d", source(watched, "Temporal")),
            "Temporal is stale",
        )
        seen = percent(watched, key)
        within(40, lambda: percent(watched, key) > seen, "the node's facts go on without Temporal")
        assert "Temporal" in watched.text("notes")

        aside(lambda: stack.kill(f"node-{node}"))
        within(SHOWS * SLACK, lambda: "dead" in row.inner_text(), "the killed node shows")
        assert re.search(r"stale since \d\d:\d\d:\d\d", source(watched, f"node {node}"))
        assert percent(watched, key) >= seen

        aside(stack.up)
        within(60, lambda: "stale" not in watched.text("sources"), "all sources are fresh again")
        within(60, lambda: "its limit" in row.inner_text(), "the copy goes on")

        other = tmp_path / "plan.json"
        moves = {"topic": topic, "partition": 0, "replicas": [3 - node]}
        other.write_text(json.dumps({"version": 1, "partitions": [moves]}))
        aside(lambda: rehome("cancel", started["id"]))
        within(60, lambda: row.count() == 0, "the cancelled move leaves the page")
        aside(lambda: rehome("plan", "submit", str(other), "--name", f"plan-{topic}", "--approval", "required"))
        shown = watched.page.get_by_test_id("section-plan")
        within(60, lambda: shown.count() and "approval" in shown.inner_text(), "the plan waits for an approval")
        assert f"plan-{topic}" in shown.inner_text()
        aside(lambda: rehome("plan", "cancel", f"plan-{topic}"))
        assert watched.outside(url) == [] and not [each for each in watched.problems if "ERR_" not in each]
