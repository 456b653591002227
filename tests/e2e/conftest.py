"""Stacks of real processes whose nodes can be told, while they run, to die at a named point."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.cli.kafka_admin import KafkaAdmin
from ops.stack import ports
from ops.stack.stack import Stack
from tests.support.programs.binary import ensure_temporal
from workflows.model.throttles import MOVE_RATE as THROTTLE


class Crashable:
    """A stack of one node with three directories; `die_at` arms one failpoint of the running node."""

    def __init__(self, data: Path, first_port: int) -> None:
        self.points = data / "failpoints"
        data.mkdir(parents=True, exist_ok=True)
        self.points.write_text("")
        self.stack = Stack(data / "stack")
        self.stack.make_folder()
        spec = self.stack.prepare({"nodes": 1, "dirs": 3, "port": first_port, "temporal_port": first_port + 1})
        properties = spec.node_home(1) / "server.properties"
        properties.write_text(properties.read_text().replace("file.delete.delay.ms=5000", "file.delete.delay.ms=500"))
        self.bootstrap = spec.bootstrap
        self.temporal = spec.temporal_address
        self.disks = list(spec.log_dirs(1))

    def die_at(self, point: str) -> None:
        self.points.write_text(f"{point}=kill\n")

    def disarm(self) -> None:
        self.points.write_text("")

    def dead(self) -> bool:
        return "node-1" not in self.stack.running()

    def replica(self, name: str) -> Path | None:
        """The one directory that holds the replica under its plain name."""
        found = [disk for disk in self.disks if (disk / name).is_dir()]
        assert len(found) <= 1, f"{name} stands in {found}"
        return found[0] if found else None

    def leftovers(self) -> list[str]:
        return [p.name for disk in self.disks for p in disk.iterdir() if p.name.endswith((".move", ".delete"))]


@pytest.fixture(scope="package")
def one_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashable]:
    """One stack for all modules of this folder: what they leave behind must do the next one no harm."""
    ensure_temporal()
    made = Crashable(tmp_path_factory.mktemp("crash"), ports.some_block(3))
    os.environ["REHOME_FAILPOINTS"] = f"@{made.points}"
    try:
        made.stack.up()
        yield made
    finally:
        del os.environ["REHOME_FAILPOINTS"]
        made.stack.down()


@pytest.fixture(scope="module")
def crashable(one_stack: Crashable) -> Iterator[Crashable]:
    """The stack as a module may expect it: all of it runs, nothing is armed, no throttle is left from others."""
    one_stack.disarm()
    one_stack.stack.up()
    with KafkaAdmin(one_stack.bootstrap) as admin:
        admin.set_node_config(1, {THROTTLE: str(10**12)})
    yield one_stack
    one_stack.disarm()  # whatever is started while the stack is up inherits where the points stand
