"""kafka-reassign-partitions with files of its own, its words, and the configs that it sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conformance.clusters import BROKER_RESOURCE, Cluster
from tests.conformance.conftest import Tools

TOOL = "kafka-reassign-partitions"
MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
NOTHING_MOVES = "None of the specified partition moves are active."
ROLLBACK = "Save this to use as the --reassignment-json-file option during rollback"
WARNING = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)
SLOW = ("--replica-alter-log-dirs-throttle", "1")


class Plans:
    """Reassignment files, and the tool with one of them."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self._folder = folder
        self._tools = tools
        self._count = 0

    def file(self, document: Any) -> str:
        self._count += 1
        path = self._folder / f"plan-{self._count}.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    def of(self, *rows: tuple[str, int, Sequence[int], Sequence[str] | None]) -> str:
        """A file with (topic, partition, replicas, log directories) rows."""
        partitions = [
            {"topic": topic, "partition": partition, "replicas": list(replicas)}
            | ({"log_dirs": list(dirs)} if dirs is not None else {})
            for topic, partition, replicas, dirs in rows
        ]
        return self.file({"version": 1, "partitions": partitions})

    def run(self, action: str, file: str, *options: str) -> tuple[int, list[str]]:
        """Exit code and lines; the tool complains on its standard output."""
        code, out, err = self._tools.run(TOOL, f"--{action}", "--reassignment-json-file", file, *options)
        assert err == "", err
        return code, out.splitlines()


def config(cluster: Cluster, kind: int, name: str) -> dict[str, str]:
    """What is set for a topic, or dynamically for one broker."""
    node = int(name) if kind == BROKER_RESOURCE else 1
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
    (row,) = cluster.call("DescribeConfigs", 4, node=node, resources=asked).results
    assert int(row.error_code) == 0
    return {c.name: c.value for c in row.configs if c.config_source in (1, 2)}
