"""A small cluster for tests: real processes of worker.py against a real Temporal server."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka.admin import KafkaAdminClient
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from storage_node.directories.formatting import format_directories
from storage_node.wire.client import private_client
from storage_node.wire.client.kafka_client import ask
from storage_node.wire.table import METADATA
from tests.support.programs.temporal import TemporalServer, free_port
from workflows.model import names

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("impatient.py")
MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
PATIENCE = 60.0  # seconds for anything that is waited for: on a loaded machine processes take long to start
ANSWER = 5.0  # seconds for the answer to a query, before it is asked again
SLOW = 400_000  # bytes per second: a copy of a few MB can be met in the middle


def until(what: str, look: Callable[[], T | None], seconds: float = PATIENCE, pause: float = 0.05) -> T:
    """Look until there is something; a test that waits in vain says for what."""
    deadline = time.monotonic() + seconds
    last = ""
    while time.monotonic() < deadline:
        try:
            found = look()
            if found:
                return found
        except Exception as error:
            last = f" ({error!r})"
        time.sleep(pause)  # time: between two looks
    raise AssertionError(f"not within {seconds} s: {what}{last}")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass
class Cluster:
    """One cluster: a controller and nodes with log directories below `folder`, each a process that can be killed."""

    server: TemporalServer
    name: str
    folder: Path
    directories: int = 2
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    #: What all its processes have in their environment.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: What they run.
    program: Path = PROGRAM

    # Processes

    @property
    def points(self) -> Path:
        """The file that arms the failpoints of all processes."""
        return self.folder / "failpoints"

    @property
    def passed(self) -> Path:
        """Where armed points that were passed leave their names."""
        return self.folder / "passed"

    @contextmanager
    def armed(self, points: Mapping[str, str]) -> Iterator[None]:
        """Failpoints with their actions, armed for the length of the block; each acts once."""
        for flag in self.passed.iterdir():
            flag.unlink()
        self._arm("".join(f"{name}={action}\n" for name, action in points.items()))
        try:
            yield
        finally:
            self._arm("")

    def wait_passed(self, point: str) -> None:
        """Until a process has come to an armed point."""
        until(f"{point} is reached", (self.passed / point).exists)

    def _arm(self, text: str) -> None:
        new = self.points.with_suffix(".new")
        new.write_text(text)
        new.replace(self.points)

    def _environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        values = {
            **os.environ,
            "TEMPORAL_ADDRESS": self.server.address,
            "TEMPORAL_NAMESPACE": "default",
            "REHOME_EXPORT_DIR": str(self.folder / "export"),
            "REHOME_FAILPOINTS": f"@{self.points}",
            "REHOME_FAILPOINTS_FLAGS": str(self.passed),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            **self.environment,
            **(more or {}),
        }
        return {name: value for name, value in values.items() if value}  # "" takes one out

    def _start(self, name: str, *arguments: str, more: Mapping[str, str] | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.points.touch()
        self.passed.mkdir(exist_ok=True)
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(
            [sys.executable, str(self.program), *arguments],
            cwd=ROOT,
            env=self._environment(more),
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / f"{name}.out").open("ab"),
            stderr=log,
            preexec_fn=_die_with_parent,
        )

    def start_controller(self, environment: Mapping[str, str] | None = None) -> None:
        self._start("controller", "controller", "--cluster", self.name, more=environment)

    def start_node(
        self, node: int, settings: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a node, formatting it first where it has never been; the same again after a kill."""
        config = self.folder / f"node-{node}.properties"
        if not config.exists():
            self.ports[node] = free_port()
            paths = self.dirs(node)
            for path in paths:
                path.mkdir(parents=True)
            format_directories(paths, self.name, node)
            values = {
                "node.id": str(node),
                "log.dirs": ",".join(map(str, paths)),
                "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[node]}",
                "file.delete.delay.ms": "200",
                **(settings or {}),
            }
            config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self._start(f"node-{node}", "node", "--config", str(config), more=environment)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(10)

    def stop(self, name: str) -> int:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(10)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # The node

    def dirs(self, node: int = 1) -> list[Path]:
        return [self.folder / f"node-{node}" / f"disk-{letter}" for letter in "abcdef"[: self.directories]]

    def ask(self, op: str, node: int = 1, **fields: Any) -> dict[str, Any]:
        """The node's private API."""
        return private_client.call("127.0.0.1", self.ports[node], op, timeout=30, **fields)

    def metadata(self, node: int = 1) -> Any:
        """All topics, as one node tells its clients."""
        port = self.ports[node]
        return ask("127.0.0.1", port, METADATA, METADATA.max_version, timeout=5, client="test", topics=None)

    def wait_serving(self, node: int = 1) -> dict[str, Any]:
        """Until the node listens."""
        return until(f"node {node} listens", lambda: self.ask("incarnation", node))

    def wait_registered(self, node: int = 1) -> None:
        """Until the node knows an image in which its present incarnation is registered."""
        incarnation = str(self.wait_serving(node)["incarnation"])

        def registered() -> bool:
            described = self.query(self.name, "describe")
            return (
                any(
                    each["node"] == node and each["incarnation"] == incarnation and not each["fenced"]
                    for each in described["nodes"]
                )
                and int(self.ask("incarnation", node)["version"]) > 0
            )

        until(f"node {node} is registered", registered)

    def wait_generation(self, generation: int, node: int = 1) -> None:
        """Until the node knows an image of this cluster generation or a later one."""
        until("the generation is raised", lambda: int(self.ask("incarnation", node)["generation"]) >= generation, 60)

    def wait_known(self, nodes: Iterable[int]) -> None:
        """Until each of these nodes knows all that any of them knows: each rejects by its own image."""
        newest = max(self._age(node) for node in nodes)
        for node in nodes:
            until(f"node {node} knows the other nodes", partial(self._knows, node, newest))

    def _knows(self, node: int, newest: tuple[int, int]) -> bool:
        return self._age(node) >= newest

    def _age(self, node: int) -> tuple[int, int]:
        found = self.ask("incarnation", node)
        return int(found["generation"]), int(found["version"])

    def show(self) -> None:
        """Print what the controller knows and what it has recorded last, for a test that fails."""
        with contextlib.suppress(Exception):
            print("the controller:", self.query(self.name, "describe"))
        with contextlib.suppress(Exception):
            history = self.with_handle(self.name, lambda handle: handle.fetch_history())
            print("its history ends with:", history.to_json()[-20_000:])

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new = NewTopic(topic, partitions, 1, config=dict(configs or {}))
        admin = self.admin()  # kept: its requests die with it
        admin.create_topics([new], operation_timeout=20, request_timeout=25)[topic].result(30)

    def produce(self, topic: str, megabytes: float, partition: int = 0) -> int:
        """Append random records of 10 KB, in order and in batches that even a slow copy takes in no time; how many."""
        settings = {"acks": "all", "linger.ms": 20, "batch.size": 60_000}
        # Where the leader is not ready, librdkafka has already encoded the next batch and sends it before it retries
        # the first one, even with one request in flight: only sequences keep the order.
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, **settings})
        count = max(1, int(megabytes * 100))
        body = os.urandom(10_000)
        failed: list[Any] = []
        for number in range(count):
            while True:
                try:
                    producer.produce(
                        topic,
                        number.to_bytes(8, "big") + body,
                        partition=partition,
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0 and not failed, failed[:1]
        return count

    def read_numbers(self, topic: str, count: int, partition: int = 0) -> list[int]:
        """The numbers of the first `count` records, from the beginning."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[int] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(min(1000, count - len(found)), 1.0):
                assert message.error() is None, message.error()
                found.append(int.from_bytes(message.value()[:8], "big"))
        consumer.close()
        return found

    def set_move_rate(self, rate: int | None, node: int = 1) -> None:
        """Limit all moves of a node, in bytes per second, or (None) no longer."""
        value = str(rate if rate is not None else 2**63 - 1)
        entry = ConfigEntry(MOVE_RATE, value, incremental_operation=AlterConfigOpType.SET)
        admin = self.admin()
        resource = ConfigResource(ConfigResource.Type.BROKER, str(node), incremental_configs=[entry])

        def set_() -> bool:
            admin.incremental_alter_configs([resource])[resource].result(20)
            return True

        # A node that was just started answers that it could not reach its controller in time.
        until("the rate is set", set_)

    def unlimited(self, workflow_id: str) -> None:
        """Let a run copy as fast as it can."""
        self.with_handle(workflow_id, lambda handle: handle.execute_update("set_throttle", {"rate": None}))

    def alter_log_dirs(self, *wanted: tuple[str, int, int, Path | str]) -> list[str]:
        """AlterReplicaLogDirs for (topic, partition, node, directory); answers the errors' names, in order."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            found = admin.alter_replica_log_dirs({one[:3]: str(one[3]) for one in wanted})
        finally:
            admin.close()
        named = {(one.topic, one.partition, one.broker_id): error.__name__ for one, error in found.items()}
        return [named[one[:3]] for one in wanted]

    def moves(self, node: int = 1) -> dict[str, dict[str, Any]]:
        """The moves that have a `.move` on a node, by topic-partition."""
        return {f"{one['topic']}-{one['partition']}": one for one in self.ask("moves", node)["moves"]}

    def wait_copying(self, topic: str, partition: int = 0, node: int = 1, at_least: int = 1) -> dict[str, Any]:
        """Until a copy holds some bytes, but not all."""

        def copying() -> dict[str, Any] | None:
            found = self.moves(node).get(f"{topic}-{partition}")
            return found if found and at_least <= found["bytes_copied"] < found["bytes_total"] else None

        return until(f"{topic}-{partition} is being copied", copying)

    def where(self, topic: str, partition: int = 0, node: int = 1) -> list[str]:
        """The directory names of a partition on a node's disks, as disk/name."""
        prefix = f"{topic}-{partition}"
        return sorted(
            f"{path.name}/{entry.name}"
            for path in self.dirs(node)
            for entry in path.iterdir()
            if entry.name == prefix or entry.name.startswith(prefix + ".")
        )

    def disk_of(self, topic: str, partition: int = 0, node: int = 1) -> Path:
        """The log directory that holds the replica."""
        return next(path for path in self.dirs(node) if (path / f"{topic}-{partition}").exists())

    def other_disk(self, topic: str, partition: int = 0, node: int = 1) -> Path:
        here = self.disk_of(topic, partition, node)
        return next(path for path in self.dirs(node) if path != here)

    # Temporal

    def run(self, work: Callable[[Client], Awaitable[T]], seconds: float = PATIENCE) -> T:
        """Do something with a client."""

        async def go() -> T:
            return await asyncio.wait_for(work(await self.server.client()), seconds)

        return asyncio.run(go())

    def start_move(self, workflow_id: str, *moves: Mapping[str, Any]) -> None:
        """Start MoveReplica, as anybody may."""

        async def start(client: Client) -> None:
            await client.start_workflow(names.MOVE_REPLICA, list(moves), id=workflow_id, task_queue=self.name)

        self.run(start)

    def result(self, workflow_id: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The result of a run. What the controller starts is there a moment after the answer to who asked for it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return dict(self.run(lambda client: client.get_workflow_handle(workflow_id).result(), seconds))
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def status(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        async def look(client: Client) -> WorkflowExecutionStatus | None:
            return (await client.get_workflow_handle(workflow_id).describe()).status

        return self.run(look)

    def progress(self, workflow_id: str) -> dict[str, Any]:
        """A run's own account of how far it is."""
        return self.query(workflow_id, "progress")

    def query(self, workflow_id: str, name: str) -> dict[str, Any]:
        """What a run answers. Nobody answers a query that has come to a worker which was just then replaced, as the
        controller does after an outage of the server: it is asked again.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return dict(self.run(lambda client: client.get_workflow_handle(workflow_id).query(name), ANSWER))
            except (TimeoutError, RPCError) as error:
                if time.monotonic() > deadline or getattr(error, "status", None) is RPCStatusCode.NOT_FOUND:
                    raise

    def with_handle(self, workflow_id: str, act: Callable[[WorkflowHandle[Any, Any]], Awaitable[T]]) -> T:
        return self.run(lambda client: act(client.get_workflow_handle(workflow_id)))


def failure(cluster: Cluster, workflow_id: str) -> ApplicationError:
    """How a run failed."""
    with pytest.raises(WorkflowFailureError) as caught:
        cluster.result(workflow_id)
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


def move(topic: str, partition: int, node: int, directory: Path, **more: Any) -> dict[str, Any]:
    """One object of MoveReplica's parameter."""
    return {"topic": topic, "partition": partition, "node": node, "directory": str(directory), **more}


@contextmanager
def running(
    server: TemporalServer,
    name: str,
    folder: Path,
    nodes: int = 1,
    settings: Mapping[str, str] | None = None,
    directories: int = 2,
    environment: Mapping[str, str] | None = None,
    program: Path = PROGRAM,
) -> Iterator[Cluster]:
    """A cluster with a controller and registered nodes."""
    cluster = Cluster(server, name, folder, directories, environment=environment or {}, program=program)
    try:
        cluster.start_controller()
        for node in range(1, nodes + 1):
            cluster.start_node(node, settings)
        for node in range(1, nodes + 1):
            cluster.wait_registered(node)
        cluster.wait_known(range(1, nodes + 1))
        yield cluster
    except Exception:
        cluster.show()
        raise
    finally:
        cluster.close()
