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
from tests.support.node_harness import until

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

TOPIC = "asked"


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


@pytest.mark.parametrize("after", [0.3, 0.9, 1.6, 2.5])
def test_a_killed_move_command_leaves_a_move_that_ends(asked: Crashable, tmp_path: Path, after: float) -> None:
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
        rehome("move", "--file", str(file), "--throttle", "2MB", "--wait", *data),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        time.sleep(after)  # the moment of the crash is what is varied here
        process.kill()
    run("move", "--file", str(file), "--throttle", "200MB", "--wait", *data)
    for name in names:
        assert asked.replica(name) == target[name]
    until(lambda: not open_moves(asked), 30, "the runs end")
    until(lambda: not asked.leftovers(), 60, "nothing is left")


def test_a_stack_whose_start_was_killed_starts_again(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack")
    first = ports.free_block(3, start=26500)
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
