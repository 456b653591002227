"""One Apache Kafka broker (KRaft, controller and broker in one process) on loopback, and Kafka's own tools."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

VERSION = "4.3.1"
POM = Path(__file__).with_name("pom.xml")
QUIET_LOGGING = Path(__file__).with_name("log4j2-quiet.properties")


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be had or does not start here; the message says why and what to do."""


def libs_folder() -> Path:
    """Where the jars are: REHOME_KAFKA_LIBS, else the user's cache folder."""
    named = os.environ.get("REHOME_KAFKA_LIBS")
    return Path(named) if named else cache_folder(f"kafka-{VERSION}")


def cache_folder(name: str) -> Path:
    """Where jars of that name are kept: below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "rehome" / name / "libs"


def ensure_libs() -> Path:
    """The folder with the jars, fetched from Maven the first time.

    Raises KafkaUnavailable without Maven or when it fails.
    """
    return fetch_jars(POM, libs_folder(), f"Apache Kafka {VERSION}")


def fetch_jars(pom: Path, libs: Path, what: str) -> Path:
    """Copy what `pom` names into `libs`, unless that has been done; returns `libs`.

    Raises KafkaUnavailable, which names `what`, without Maven or when it fails.
    """
    if (libs / ".complete").exists():
        return libs
    if shutil.which("mvn") is None:
        raise KafkaUnavailable(
            f"the jars of {what} are fetched with Maven, and there is no mvn on PATH: install maven."
        )
    with _one_at_a_time():
        if (libs / ".complete").exists():  # somebody else was quicker
            return libs
        done = subprocess.run(
            [
                *("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
                *("-DincludeScope=runtime", f"-DoutputDirectory={libs}"),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise KafkaUnavailable(f"mvn could not fetch {what}: {done.stdout[-500:]}")
        (libs / ".complete").touch()
    return libs


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two that copy into one folder, or download into one repository of Maven, meet each other's halves."""
    lock = cache_folder("maven").with_name(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def java_command(main: str, *arguments: str, heap: str = "1g") -> list[str]:
    """The command line of one of Kafka's main classes."""
    libs = ensure_libs()
    java = shutil.which("java") or "java"
    return [
        *(java, f"-Xmx{heap}", "-XX:+UseG1GC", f"-Dlog4j2.configurationFile={QUIET_LOGGING}"),
        *("-cp", f"{libs}/*", main, *arguments),
    ]


def run_tool(main: str, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's own tools to its end, e.g. `org.apache.kafka.tools.LogDirsCommand`."""
    return subprocess.run(
        java_command(main, *arguments, heap="256m"), capture_output=True, text=True, timeout=timeout, check=False
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class KafkaBroker:
    """A broker in a folder of its own; use as a context manager."""

    def __init__(self, folder: Path, *, log_dirs: int = 2, properties: Sequence[str] = ()) -> None:
        self.folder = folder
        self.port = free_port()
        self.controller_port = free_port()
        self.log_dirs = [folder / f"disk-{i + 1}" for i in range(log_dirs)]
        self._properties = properties
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> KafkaBroker:
        self.folder.mkdir(parents=True, exist_ok=True)
        for directory in self.log_dirs:
            directory.mkdir(exist_ok=True)
        config = self.folder / "server.properties"
        config.write_text(
            "\n".join(
                [
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"controller.quorum.voters=1@127.0.0.1:{self.controller_port}",
                    f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
                    "controller.listener.names=CONTROLLER",
                    f"log.dirs={','.join(str(d) for d in self.log_dirs)}",
                    "offsets.topic.replication.factor=1",
                    "transaction.state.log.replication.factor=1",
                    "transaction.state.log.min.isr=1",
                    *self._properties,
                ]
            )
            + "\n"
        )
        formatted = run_tool("kafka.tools.StorageTool", "format", "-t", "rehomeBenchmarkCluster", "-c", str(config))
        if formatted.returncode:
            raise KafkaUnavailable(f"Apache Kafka's storage could not be formatted: {formatted.stdout[-500:]}")
        log = (self.folder / "broker.log").open("wb")
        self._process = subprocess.Popen(
            java_command("kafka.Kafka", str(config)), stdout=log, stderr=log, start_new_session=True
        )
        self._wait()
        return self

    def _wait(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.2)
        self.__exit__()
        raise KafkaUnavailable(f"Apache Kafka's broker did not start: see {self.folder / 'broker.log'}")

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
