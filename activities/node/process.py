"""A storage node as a process: the node itself, Temporal's side on its own thread, and a clean stop on a signal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from types import FrameType

from activities.node.runtime import NodeRuntime
from storage_node import log_flood
from storage_node.config.node_config import ConfigError, NodeConfig
from storage_node.directories.errors import StartRefused
from storage_node.lifecycle import garbage, interpreter, memory
from storage_node.node import Node

log = logging.getLogger(__name__)

#: The exit code of a node whose last log directory failed: Kafka's.
HALTED = 1
#: Seconds between two checks for memory to return to the system.
_LOOK = 1.0


def _halt(sentence: str) -> None:
    """Exit at once, as Kafka does: a node without its disks can neither serve nor stop in order."""
    log.critical("%s", sentence)
    print(sentence, file=sys.stderr, flush=True)
    logging.shutdown()
    os._exit(HALTED)


def run_node(config_file: str, profile: str | None = None) -> int:
    """Run a node until SIGTERM or SIGINT; return the exit code. Standard error has the reason if it does not start."""
    log_flood.install()
    interpreter.share_early()
    stop = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
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
