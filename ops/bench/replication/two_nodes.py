"""Replication between two node processes without a controller: `python -m ops.bench.replication.two_nodes`.

It measures a follower's catch-up rate, the accuracy of KIP-73's throttles at either side over ten seconds, and the CPU
of many idle followed partitions. The metadata is an image built here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ops.bench import ROOT
from storage_node.config.node_config import NodeConfig
from storage_node.directories.formatting import format_directories
from storage_node.log.batches.batch import build_batch
from storage_node.model.assignment import Assignment
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage
from storage_node.node import Node

MB = 1_000_000
CLUSTER, TOPIC, TOPIC_ID = "bench", "t", "AAAAAAAAAAAAAAAAAAAAAg"
LEADER, FOLLOWER = 1, 2
SIDES = ("leader", "follower")
RATES = (1 * MB, 20 * MB, 100 * MB)
WINDOW = 10.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of both processes; `size`: bytes in all partitions, `batch`: bytes per batch."""

    folder: str
    ports: tuple[int, int]
    partitions: int = 1
    size: int = 0
    batch: int = 16_000
    topic: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)
    in_sync: bool = False


def image(setting: Setting, version: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> str:
    """Return the encoded cluster image."""
    rows = tuple(
        PartitionImage(
            number,
            Assignment(replicas),
            directories=("",) * len(replicas),
            generations=(0,) * len(replicas),
            isr=isr,
            leader=LEADER,
            partition_epoch=version,
        )
        for number in range(setting.partitions)
    )
    nodes = {
        node: NodeImage(node, f"i{node}", node, "127.0.0.1", port)
        for node, port in zip((LEADER, FOLLOWER), setting.ports, strict=True)
    }
    topics = {TOPIC: TopicImage(TOPIC, TOPIC_ID, dict(setting.topic), rows)}
    return ClusterImage(CLUSTER, 1, version, topics, {}, nodes, {("broker", ""): dict(setting.broker)}).encode()


def start(setting: Setting, number: int) -> Node:
    """Format and start a node in this process."""
    path = Path(setting.folder) / f"node-{number}"
    path.mkdir(parents=True)
    format_directories([str(path)], cluster_id=CLUSTER, node_id=number)
    port = setting.ports[number - 1]
    listener = f"PLAINTEXT://127.0.0.1:{port}"
    node = Node(NodeConfig.parse({"node.id": str(number), "log.dirs": str(path), "listeners": listener}))
    node.start()
    return node


def lead(setting: Setting) -> None:
    """Run the leader: append its records, then serve fetches until standard input ends."""
    node = start(setting, LEADER)
    node.apply_images([image(setting, 1, (LEADER,), (LEADER,))])
    batch = build_batch([os.urandom(1000)] * max(1, setting.batch // 1000), timestamp=int(time.time() * 1000))
    for number in range(setting.partitions):
        partition = node.replicas.served[TopicPartition(TOPIC, number)]
        for _ in range(setting.size // setting.partitions // len(batch)):
            partition.append(batch)
    isr = (LEADER, FOLLOWER) if setting.in_sync else (LEADER,)
    node.apply_images([image(setting, 2, (LEADER, FOLLOWER), isr)])
    logs = [partition.log for partition in node.replicas.served.values()]
    print(json.dumps(sum(log.size for log in logs)), flush=True)
    for line in sys.stdin:
        assert line.strip() == "cpu"
        print(json.dumps(_cpu()), flush=True)
    os._exit(0)


def follow(setting: Setting) -> None:
    """Run the follower; print [seconds, bytes, CPU seconds] for each line of standard input."""
    node = start(setting, FOLLOWER)
    isr = (LEADER, FOLLOWER) if setting.in_sync else (LEADER,)
    node.apply_images([image(setting, 2, (LEADER, FOLLOWER), isr)])
    logs = [partition.log for partition in node.replicas.served.values()]
    print(json.dumps(time.monotonic()), flush=True)
    for _ in sys.stdin:
        print(json.dumps([time.monotonic(), sum(log.size for log in logs), _cpu()]), flush=True)
    os._exit(0)


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


class Pair:
    """The leader's and the follower's processes."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._processes: list[subprocess.Popen[str]] = []
        self.size = int(self._spawn("lead"))
        self.began = float(self._spawn("follow"))

    def _spawn(self, role: str) -> Any:
        made = subprocess.Popen(
            [sys.executable, "-m", "ops.bench.replication.two_nodes", role, json.dumps(_row(self._setting))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip
        self._processes.append(made)
        return self._read(made)

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("a node's process has exited")
        return json.loads(line)

    def _request(self, number: int) -> Any:
        process = self._processes[number]
        assert process.stdin is not None
        process.stdin.write("cpu\n")
        process.stdin.flush()
        return self._read(process)

    def state(self) -> tuple[float, int, float]:
        """Return the time, the follower's bytes, and its CPU seconds."""
        now, size, cpu = self._request(1)
        return float(now), int(size), float(cpu)

    def leader_cpu(self) -> float:
        return float(self._request(0))

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _row(setting: Setting) -> list[Any]:
    return [
        setting.folder, list(setting.ports), setting.partitions, setting.size, setting.batch,
        dict(setting.topic), dict(setting.broker), setting.in_sync,
    ]  # fmt: skip


@contextmanager
def pair(**what: Any) -> Iterator[Pair]:
    """Run two nodes while the block runs."""
    folder = tempfile.mkdtemp(prefix="replication-")
    made: Pair | None = None
    try:
        setting = replace(Setting(folder, (_free(), _free())), **what)
        made = Pair(setting)
        yield made
    finally:
        if made is not None:
            made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _free() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def catch_up(size: int, batch: int) -> float:
    """Return the bytes per second of an empty follower's catch-up."""
    with pair(size=size, batch=batch) as nodes:
        while True:
            now, have, _ = nodes.state()
            if have >= nodes.size:
                return nodes.size / (now - nodes.began)
            time.sleep(0.005)


def throttled(side: str, rate: int, batch: int = 16_000) -> float:
    """Return a throttled follower's rate over ten seconds as a share of `rate`, without the first second."""
    listed = {f"{side}.replication.throttled.replicas": "*"}
    configs = {f"{side}.replication.throttled.rate": str(rate)}
    with pair(size=int(rate * (WINDOW + 4)), batch=batch, topic=listed, broker=configs) as nodes:
        time.sleep(1.0)
        first, before, _ = nodes.state()
        while True:
            now, have, _ = nodes.state()
            if now - first >= WINDOW:
                return (have - before) / (now - first) / rate
            time.sleep(0.002)


def idle(partitions: int, seconds: float = 10.0) -> tuple[float, float]:
    """Return the CPU of follower and leader for idle partitions, as shares of a core."""
    with pair(partitions=partitions, in_sync=True) as nodes:
        time.sleep(2.0)
        began, _, cpu = nodes.state()
        leader = nodes.leader_cpu()
        time.sleep(seconds)
        now, _, later = nodes.state()
        return (later - cpu) / (now - began), (nodes.leader_cpu() - leader) / (now - began)


def main() -> None:
    """Run the chosen measurement, or all, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", choices=["all", "speed", "throttle", "idle", "lead", "follow"], nargs="?", default="all"
    )
    parser.add_argument("setting", nargs="?", default="")
    parser.add_argument("--mb", type=int, default=2048)
    given = parser.parse_args()
    if given.what in ("lead", "follow"):
        row = json.loads(given.setting)
        setting = Setting(row[0], (row[1][0], row[1][1]), *row[2:])
        (lead if given.what == "lead" else follow)(setting)
    if given.what in ("all", "speed"):
        for batch in (16_000, 900_000):
            speed = catch_up(given.mb << 20, batch)
            print(f"catch-up of {given.mb} MiB in batches of {batch // 1000} kB: {speed / MB:.0f} MB/s", flush=True)
    if given.what in ("all", "throttle"):
        for side in SIDES:
            for rate in RATES:
                print(f"{side}'s throttle at {rate // MB} MB/s: {throttled(side, rate):.4f} of the rate", flush=True)
    if given.what in ("all", "idle"):
        for partitions in (500, 1000):
            follower, leader = idle(partitions)
            print(f"{partitions} idle partitions: follower {follower:.2%}, leader {leader:.2%} of a core", flush=True)


if __name__ == "__main__":
    main()
