"""rehome move --file --throttle: the nodes have the rate while the moves are in progress, then the earlier one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.cli import main as cli
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.moves.throttling import note_of
from ops.stack.stack import Stack
from tests.ops.cli.conftest import Rehome
from tests.support.no_cluster import no_cluster_around
from tests.support.nodes.node_harness import until
from workflows.model.throttles import MOVE_RATE

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

BEFORE = "77000000"


@pytest.fixture
def admin(stack: Stack, data: Path) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(stack.spec().bootstrap) as it:
        yield it
        for node in stack.spec().node_ids:
            it.change_configs("broker", {str(node): {MOVE_RATE: ("DELETE", None)}})


def rate(admin: KafkaAdmin, node: int) -> str | None:
    return admin.configs("broker", [str(node)])[str(node)].get(MOVE_RATE)


def plan(rehome: Rehome, folder: Path, topic: str) -> tuple[Path, int]:
    """A file by which the topic's replica goes to another directory of its node; returns the node, too."""
    held = [each for each in rehome("topic", "describe", topic)["partitions"][0]["log_dirs"] if not each["future"]]
    (here,) = held
    directory = Path(here["directory"])
    target = next(each for each in sorted(directory.parent.glob("disk-*")) if each != directory)
    entry = {"topic": topic, "partition": 0, "replicas": [here["node"]], "log_dirs": [str(target)]}
    file = folder / "moves.json"
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return file, here["node"]


@pytest.mark.parametrize("before", [None, BEFORE])
def test_throttle_lease_restores_the_earlier_throttle_when_the_moves_end(
    rehome: Rehome, topic: str, tmp_path: Path, admin: KafkaAdmin, before: str | None
) -> None:
    file, node = plan(rehome, tmp_path, topic)
    if before is not None:
        admin.set_node_config(node, {MOVE_RATE: before})
    (row,) = rehome("move", "--file", str(file), "--throttle", "300KB")
    assert (row["outcome"], rate(admin, node)) == ("accepted", "300000")
    # Another rate, by a second call, for those who do not want to wait that long.
    (row,) = rehome("move", "--file", str(file), "--throttle", "50MB", "--wait")
    assert row["outcome"] == "in_place"
    until(lambda: rate(admin, node) == before, 60, "the earlier throttle is restored")


def test_throttle_of_a_killed_command_is_removed(
    rehome: Rehome, topic: str, tmp_path: Path, admin: KafkaAdmin, data: Path
) -> None:
    file, node = plan(rehome, tmp_path, topic)
    program = "from ops.cli.entry import main; main()"
    call = ["move", "--file", str(file), "--throttle", "2MB", "--wait", "--data", str(data)]
    with subprocess.Popen([sys.executable, "-c", program, *call], stdout=subprocess.DEVNULL) as process:
        until(lambda: topic in str(rehome("moves")["moves"]), 60, "the move is under way")
        assert rate(admin, node) == "2000000"
        process.kill()
    until(lambda: rate(admin, node) is None, 120, "the throttle is gone")


@pytest.mark.parametrize("interrupted", [False, True])
def test_command_without_temporal_restores_the_earlier_throttle(
    rehome: Rehome,
    topic: str,
    tmp_path: Path,
    admin: KafkaAdmin,
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
) -> None:
    file, node = plan(rehome, tmp_path, topic)
    no_cluster_around(monkeypatch, tmp_path)
    admin.set_node_config(node, {MOVE_RATE: BEFORE})
    call = ["move", "--file", str(file), "--throttle", "50MB", "--bootstrap-server", stack.spec().bootstrap]
    assert cli.run(call) == 2, "only the command could put it back: it has to wait"
    if interrupted:
        until(lambda: rate(admin, node) == BEFORE, 40, "the node has heard of it")
        note_of(file).write_text(json.dumps({str(node): {"before": BEFORE, "set": "1000000"}}))
        admin.set_node_config(node, {MOVE_RATE: "1000000"})
        until(lambda: rate(admin, node) == "1000000", 40, "as a killed command leaves it")
    assert cli.run([*call, "--wait"]) == 0
    until(lambda: rate(admin, node) == BEFORE, 40, "the earlier throttle is restored")
    assert not note_of(file).exists()
