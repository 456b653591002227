"""The clients that people have: one JVM for the Java ones, and what every module of this folder asks of a cluster."""

from __future__ import annotations

import logging
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient

from tests.conformance.clients.java import JavaClients
from tests.support.needs import need
from tests.support.programs.kafka import require_kafka


def fresh() -> str:
    """A name that no topic and no group has yet."""
    return f"clients-{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    require_kafka()
    with JavaClients(tmp_path_factory.mktemp("java")) as clients:
        yield clients


class Ask:
    """Calls of the Java clients to one cluster: `ask("describeCluster")`."""

    def __init__(self, java: JavaClients, bootstrap: str) -> None:
        self._java, self._bootstrap = java, bootstrap
        #: Parts of the warnings that the test provokes.
        self.expected: list[str] = []

    def __call__(self, do: str, **values: Any) -> Any:
        return self._java.call(self._bootstrap, do, **values)

    def begin(self, do: str, **values: Any) -> Future[Any]:
        """Several may be under way."""
        return self._java.begin(self._bootstrap, do, **values)

    def is_expected(self, warning: str) -> bool:
        """Whether the test provokes it, or it is of another cluster, which has ended."""
        elsewhere = "Connection to node" in warning and not any(a in warning for a in self._bootstrap.split(","))
        return elsewhere or any(part in warning for part in self.expected)


@pytest.fixture
def ask(java: JavaClients, cluster: Any) -> Iterator[Ask]:
    """The Java clients at this kind of cluster; fails the test when they warn of what it does not expect."""
    before = len(java.warnings())
    asked = Ask(java, cluster.bootstrap)
    yield asked
    assert [line for line in java.warnings()[before:] if not asked.is_expected(line)] == []


@pytest.fixture(scope="session")
def kcat_program() -> str:
    """Debian's package; skipped where it is missing, except in CI."""
    found = shutil.which("kcat") or shutil.which("kafkacat")
    return found or need("kcat", "not installed")


@pytest.fixture
def kcat(kcat_program: str, cluster: Any) -> Any:
    """Runs kcat to its end; (what it printed, what it complained of)."""

    def run(*arguments: str, stdin: str = "") -> tuple[str, str]:
        fast = () if "-P" in arguments else ("-X", "fetch.wait.max.ms=20")
        command = [kcat_program, "-b", cluster.bootstrap, *fast, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


@pytest.fixture
def python_admin(cluster: Any, caplog: pytest.LogCaptureFixture) -> Iterator[KafkaAdminClient]:
    caplog.set_level(logging.WARNING, "kafka")
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    yield client
    client.close()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("kafka")] == []


@pytest.fixture
def python_consumers(cluster: Any) -> Iterator[Any]:
    """Makes consumers that are closed at the end."""
    made: list[KafkaConsumer] = []

    def make(*topics: str, **settings: Any) -> KafkaConsumer:
        settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        made.append(KafkaConsumer(*topics, bootstrap_servers=cluster.bootstrap.split(","), **settings))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()
