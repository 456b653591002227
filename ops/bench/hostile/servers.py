"""The servers under attack: a stack with one node of ours, and one broker of Apache Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ops.bench.hostile.field import Address
from ops.kafka.cluster import KafkaCluster
from ops.stack import ports
from ops.stack.layout import CONTROLLER, node_name
from ops.stack.stack import Stack

_NODE = node_name(1)
_BROKER = 1
#: Apache Kafka's defaults instead of KafkaCluster's smaller values; no auto-created topics, as with our node.
_DEFAULTS = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "background.threads": "10",
    "auto.create.topics.enable": "false",
}


class OurNode:
    """A node, its controller and a Temporal server; a context manager."""

    name = "rehome"
    ours = True

    def __init__(self, folder: Path) -> None:
        self._stack = Stack(folder)
        self._stack.make_folder()
        block = ports.some_block(3)
        spec = self._stack.prepare({"nodes": 1, "dirs": 2, "port": block, "temporal_port": block + 1})
        self.address: Address = ("127.0.0.1", spec.node_port(1))
        self.log = folder / "logs" / f"{_NODE}.log"

    def __enter__(self) -> OurNode:
        try:
            self._stack.up()
        except BaseException:
            self._stack.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.down()

    @property
    def pid(self) -> int:
        """The node's pid. Raises RuntimeError if it is not running."""
        record = self._stack.running().get(_NODE)
        if record is None:
            raise RuntimeError(f"{_NODE} is not running; see {self.log}")
        return record.pid

    def restart(self, *, clean: bool) -> None:
        """Stop or kill the node, start it, and wait until it works."""
        if clean:
            self._stack.stop(_NODE)
        else:
            self._stack.kill(_NODE)
        self._stack.start(_NODE)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Kill the controller, and restart it at the end of the block."""
        self._stack.kill(CONTROLLER)
        try:
            yield
        finally:
            self._stack.start(CONTROLLER)


class ApacheBroker:
    """A combined broker and controller; a context manager."""

    name = "Apache Kafka"
    ours = False

    def __init__(self, folder: Path) -> None:
        self._cluster = KafkaCluster(folder, log_dirs={_BROKER: 2}, properties=_DEFAULTS, quick=False)
        self.address: Address = ("127.0.0.1", self._cluster.ports[_BROKER])
        self.log = self._cluster.log(_BROKER)

    def __enter__(self) -> ApacheBroker:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__()

    @property
    def pid(self) -> int:
        """The broker's pid. Raises RuntimeError if it is not running."""
        if not self._cluster.running(_BROKER):
            raise RuntimeError(f"the broker is not running; see {self.log}")
        return self._cluster.pid(_BROKER)

    def restart(self, *, clean: bool) -> None:
        """Stop or kill the broker, start it, and wait until it works."""
        if clean:
            self._cluster.stop(_BROKER)
        else:
            self._cluster.kill(_BROKER)
        self._cluster.start(_BROKER)

    def away(self) -> contextlib.AbstractContextManager[None]:
        """Raise NotImplementedError: broker and controller are one process."""
        raise NotImplementedError("a combined broker of Apache Kafka has its controller in its own process")
