"""A storage node as a process: the node itself, Temporal's side on its own thread, and a clean end on a signal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from types import FrameType

from activities.node_runtime import NodeRuntime
from storage_node import garbage, interpreter, log_flood, memory
from storage_node.config import ConfigError, NodeConfig
from storage_node.directories.errors import StartRefused
from storage_node.node import Node

log = logging.getLogger(__name__)

#: The exit code of a node whose metadata directory, or last directory, failed: Kafka's.
HALTED = 1
#: Seconds between two looks at the memory that could be given back.
_LOOK = 1.0


def _halt(sentence: str) -> None:
    """End at once, as Kafka does: what a node without its disks would still say or write helps nobody."""
    log.critical("%s", sentence)
    print(sentence, file=sys.stderr, flush=True)
    logging.shutdown()
    os._exit(HALTED)


def run_node(config_file: str, profile: str | None = None) -> int:
    """Run a node until SIGTERM or SIGINT; answers the exit code. Standard error says why it does not start."""
    log_flood.install()
    interpreter.share_early()
    stop = threading.Event()

    def told(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    runtime = NodeRuntime(profile)
    try:
        node = Node(NodeConfig.load(config_file), runtime.controller)
        node.halt = _halt
        node.start()
    except (ConfigError, StartRefused, OSError) as error:
        runtime.stop()
        print(error if isinstance(error, StartRefused) else f"the node does not start: {error}", file=sys.stderr)
        return 1
    runtime.start(node)
    garbage.settle()
    collector, reclaimer = garbage.Collector(), memory.reclaimer()
    while not stop.wait(_LOOK):
        collector.look()
        reclaimer.look(time.monotonic())
    log.info("node %d stops", node.id)
    runtime.stop()
    node.stop()
    return 0
