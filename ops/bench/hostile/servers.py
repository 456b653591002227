"""The two kinds of servers that are attacked: a stack with one node of ours, and one broker of Apache Kafka."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from ops.bench.hostile.field import Address
from ops.kafka.cluster import KafkaCluster
from ops.stack import ports
from ops.stack.layout import CONTROLLER, node_name
from ops.stack.stack import Stack

_NODE = node_name(1)
_BROKER = 1
#: What KafkaCluster makes smaller than Apache Kafka has it, at its defaults again; names create no topics, as with us.
_DEFAULTS = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "background.threads": "10",
    "auto.create.topics.enable": "false",
}


class OurNode:
    """A node, its controller and a Temporal server; use as a context manager."""

    name = "rehome"
    ours = True

    def __init__(self, folder: Path) -> None:
        self._stack = Stack(folder)
        self._stack.make_folder()
        block = ports.free_block(3, start=random.randrange(24000, 28000))
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
        """The node's process; raises RuntimeError when it does not run."""
        record = self._stack.running().get(_NODE)
        if record is None:
            raise RuntimeError(f"{_NODE} does not run: see {self.log}")
        return record.pid

    def restart(self, *, clean: bool) -> None:
        """Stop or kill the node, and wait until it serves again."""
        if clean:
            self._stack.stop(_NODE)
        else:
            self._stack.kill(_NODE)
        self._stack.start(_NODE)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The controller is killed, and started at the end."""
        self._stack.kill(CONTROLLER)
        try:
            yield
        finally:
            self._stack.start(CONTROLLER)


class ApacheBroker:
    """A broker that is its own controller; use as a context manager."""

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
        """The broker's process; raises RuntimeError when it does not run."""
        if not self._cluster.running(_BROKER):
            raise RuntimeError(f"the broker does not run: see {self.log}")
        return self._cluster.pid(_BROKER)

    def restart(self, *, clean: bool) -> None:
        """Stop or kill the broker, and wait until it serves again."""
        if clean:
            self._cluster.stop(_BROKER)
        else:
            self._cluster.kill(_BROKER)
        self._cluster.start(_BROKER)

    def away(self) -> contextlib.AbstractContextManager[None]:
        """Not possible: broker and controller are one process."""
        raise NotImplementedError
