"""The `rehome` command dies by SIGKILL at any moment: what it had asked for goes on, and it can be asked again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.cli.kafka_admin import KafkaAdmin
from ops.demo import traffic
from ops.stack import ports
from ops.stack.stack import Stack
from tests.e2e.conftest import Crashable
from tests.support.nodes.node_harness import until
from workflows.model.throttles import MOVE_RATE

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

TOPIC = "asked"
#: Another dynamic config of the node: one without any cannot be told from one that does not respond.
OTHER = {"leader.replication.throttled.rate": str(10**12)}
#: Seconds until a run gives a throttle back whose command was killed before it named the accepted moves.
GIVEN_BACK = 150.0


def rehome(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ops.cli.main", *arguments]


def run(*arguments: str) -> Any:
    done = subprocess.run(rehome(*arguments), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def open_moves(stack: Crashable) -> list[dict[str, Any]]:
    moves: list[dict[str, Any]] = run("moves", "--json", "--data", str(stack.stack.data))["moves"]
    return moves


@pytest.fixture(scope="module")
def asked(crashable: Crashable) -> Iterator[Crashable]:
    with KafkaAdmin(crashable.bootstrap) as admin:
        admin.create_topic(TOPIC, 2, 1, {})
    traffic.load(traffic.Acknowledged(crashable.bootstrap, TOPIC, linger_ms=20), 2, 2_000_000, 1000, lambda _done: None)
    yield crashable
    with KafkaAdmin(crashable.bootstrap) as admin:
        admin.delete_topic(TOPIC)


def move_rate(stack: Crashable) -> str | None:
    """The node's dynamic move rate."""
    with KafkaAdmin(stack.bootstrap) as admin:
        return admin.configs("broker", ["1"])["1"].get(MOVE_RATE)


def set_move_rate(stack: Crashable, rate: str | None) -> None:
    with KafkaAdmin(stack.bootstrap) as admin:
        admin.set_node_config(1, OTHER)
        admin.change_configs("broker", {"1": {MOVE_RATE: ("SET", rate) if rate else ("DELETE", None)}})
    until(lambda: move_rate(stack) == rate, 30, "the rate is set")


#: Instead of a number of seconds: once the node has the throttle, before or while the moves are requested.
AS_IT_IS_SET = None


@pytest.mark.parametrize(
    ("after", "before"), [(0.3, None), (0.9, "77000000"), (AS_IT_IS_SET, None), (1.6, None), (2.5, "77000000")]
)
def test_killed_move_command_leaves_moves_that_end_and_no_throttle(
    asked: Crashable, tmp_path: Path, after: float | None, before: str | None
) -> None:
    set_move_rate(asked, before)
    names = [f"{TOPIC}-0", f"{TOPIC}-1"]
    here = {name: asked.replica(name) for name in names}
    target = {name: asked.disks[(asked.disks.index(here[name] or Path()) + 1) % 3] for name in names}
    plan = {
        "version": 1,
        "partitions": [
            {"topic": TOPIC, "partition": p, "replicas": [1], "log_dirs": [str(target[f"{TOPIC}-{p}"])]} for p in (0, 1)
        ],
    }
    file = tmp_path / "moves.json"
    file.write_text(json.dumps(plan))
    data = ("--data", str(asked.stack.data))
    with subprocess.Popen(
        rehome("move", "--file", str(file), "--throttle", "2MB", "--wait", "--timeout", "1", *data),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        if after is AS_IT_IS_SET:
            until(lambda: move_rate(asked) == "2000000", 60)
        else:
            time.sleep(after)  # the moment of the crash is what is varied here
        process.kill()
    # The moves go on, and the rate of before is there again without another command.
    until(lambda: not open_moves(asked), 60, "the runs end")
    until(lambda: move_rate(asked) == before, GIVEN_BACK, f"the rate is {before} again")
    run("move", "--file", str(file), "--throttle", "200MB", "--wait", *data)
    assert move_rate(asked) == before
    for name in names:
        assert asked.replica(name) == target[name]
    until(lambda: not open_moves(asked), 30, "the runs end")
    until(lambda: not asked.leftovers(), 60, "nothing is left")


def test_stack_whose_start_was_killed_starts_again(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack")
    first = ports.some_block(3)
    options = ["--data", str(stack.data), "--nodes", "1", "--dirs", "2"]
    options += ["--port", str(first), "--temporal-port", str(first + 1), "--detach"]
    try:
        for after in (0.8, 2.0):
            with subprocess.Popen(
                rehome("stack", "up", *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                time.sleep(after)  # the moment of the crash is what is varied here
                process.kill()
        run("stack", "up", *options)
        status = run("stack", "status", "--data", str(stack.data), "--json")
        assert {each["name"]: bool(each["pid"]) for each in status} == {
            "temporal": True,
            "controller": True,
            "node-1": True,
        }
    finally:
        stack.down()
    assert stack.running() == {}
