"""The README's examples do what they say: Temporal's command line and the Python SDK drive moves on a real stack."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.cli.kafka_admin import KafkaAdmin
from ops.demo import traffic
from tests.e2e.conftest import Crashable
from tests.support.nodes.node_harness import until
from tests.support.programs.binary import ensure_temporal
from tests.support.report.readme import README, block, commands

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

THIS = "tests/e2e/test_readme.py"
TOPIC, RECORD_BYTES = "orders", 10_000
#: So many bytes that the move is still under way when the last of the commands has come.
SLOW_BYTES, OTHER_BYTES = 120_000_000, 2_000_000
#: Where the examples have a path that only their reader can know.
PATH = "/data/disk-b"


@pytest.fixture(scope="module")
def orders(crashable: Crashable) -> Iterator[Crashable]:
    with KafkaAdmin(crashable.bootstrap) as admin:
        admin.create_topic(TOPIC, 3, 1, {})
    loaded = traffic.Acknowledged(crashable.bootstrap, TOPIC, linger_ms=20)
    for partition, size in enumerate((SLOW_BYTES, OTHER_BYTES, OTHER_BYTES)):
        for number in range(size // RECORD_BYTES):
            loaded.send(f"r-{partition}-{number}", partition, RECORD_BYTES)
    loaded.flush()
    assert not loaded.failures
    yield crashable
    with KafkaAdmin(crashable.bootstrap) as admin:
        admin.delete_topic(TOPIC)


def next_disk(stack: Crashable, name: str) -> Path:
    here = stack.replica(name)
    assert here is not None
    return stack.disks[(stack.disks.index(here) + 1) % len(stack.disks)]


class Shell:
    """A terminal with `temporal` on its PATH, and what the run says of itself there."""

    def __init__(self, folder: Path, address: str) -> None:
        (folder / "temporal").symlink_to(ensure_temporal())
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "TEMPORAL_ADDRESS": address}

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, timeout=60, env=self._environment, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def progress(self, workflow_id: str) -> Any:
        asked = f"temporal workflow query --type progress --workflow-id {workflow_id} --output json"
        (answer,) = json.loads(self.run(asked))["queryResult"]
        return answer


def copied(copy: Path) -> int:
    return sum(file.stat().st_size for file in copy.glob("*.log"))


def test_temporals_command_line_drives_a_move(orders: Crashable, tmp_path: Path) -> None:
    name, run = f"{TOPIC}-0", "move-orders-0"
    source, target = orders.replica(name), next_disk(orders, name)
    copy = target / f"{name}.move"
    shell = Shell(tmp_path, orders.temporal)
    start, query, set_throttle, pause, resume, cancel = commands(THIS)

    assert start.count(PATH) == 1
    assert run in shell.run(start.replace(PATH, str(target)))
    assert '"phase"' in shell.run(query).replace("\\", "")
    until(lambda: copied(copy) > 0, 60, "the copy begins")
    assert shell.progress(run)["throttle"] == 1_000_000

    shell.run(set_throttle)
    assert shell.progress(run)["throttle"] == 5_000_000

    shell.run(pause)
    assert shell.progress(run)["paused"] is True
    stopped = copied(copy)
    with pytest.raises(AssertionError, match="not within"):
        until(lambda: copied(copy) != stopped, 0.5, "a paused copy grows")

    shell.run(resume)
    assert shell.progress(run)["paused"] is False
    until(lambda: copied(copy) > stopped, 60, "the copy goes on")

    shell.run(cancel)
    described = f"temporal workflow describe --workflow-id {run}"
    until(lambda: "CANCELED" in shell.run(described), 60, "the run ends as cancelled")
    assert not copy.exists()
    assert orders.replica(name) == source
    until(lambda: not [left for left in orders.leftovers() if left.startswith(name)], 60, "nothing is left")


def test_sdk_drives_a_move(orders: Crashable, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{TOPIC}-1"
    target = next_disk(orders, name)
    example: dict[str, Any] = {}
    exec(compile(block("python", THIS), str(README), "exec"), example)
    asyncio.run(example["main"](orders.temporal, str(target)))
    progress, row, verdict = capsys.readouterr().out.splitlines()
    assert "'phase'" in progress
    assert re.fullmatch(rf"{TOPIC} 1 deleted (\d+) \d+\.\d+", row), row
    assert int(row.split()[3]) >= OTHER_BYTES
    assert verdict == "met its SLA: True"
    assert orders.replica(name) == target
