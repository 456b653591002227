"""The parameters of a client, and the command that stops it."""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError

SILENT = logging.getLogger("rehome.torture.librdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

#: A send with one of these errors was certainly not appended; after any other error it may have been.
REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_CONFIG,
}


@dataclass(frozen=True, slots=True)
class Orders:
    """A client's parameters. `topics` maps labels to (name, partitions); a one-shot producer sends `count` records.

    `scale` multiplies the size of its records; `acks` is the producer's setting. A `primed` producer begins when each
    partition has acknowledged a record of its own.
    """

    role: str
    process: str
    bootstrap: str
    history: Path
    topics: dict[str, tuple[str, int]]
    per_second: float = 50.0
    idempotent: bool = True
    seed: int = 0
    count: int = 0
    scale: int = 1
    acks: str = "all"
    primed: bool = False

    @staticmethod
    def parse(text: str) -> Orders:
        row = json.loads(text)
        topics = {label: (str(name), int(count)) for label, (name, count) in row.pop("topics").items()}
        return Orders(history=Path(row.pop("history")), topics=topics, **row)


class Stopping:
    """Read the stop command from standard input."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.ends: dict[str, list[int]] = {}
        self.hurried = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        line = sys.stdin.readline()
        command, _, rest = line.strip().partition(" ")
        self.hurried = command != "stop"  # end of file: the parent process has exited
        if rest:
            self.ends = json.loads(rest)
        self.asked.set()
