"""Apache Kafka's command-line tools by the names of their scripts, run in a warm JVM or in a process each.

A tool takes up to two seconds to start in a new JVM, a fraction of that in a warm one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

from ops.kafka.jars import QUICK, SERVER, KafkaUnavailable, Runtime, runtime

SOURCE = Path(__file__).with_name("WarmTools.java")

#: Script -> main class.
TOOLS = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}

#: Tools that use files, without a server.
LOCAL = frozenset({"kafka-dump-log", "kafka-storage"})

_SERVER = ("--bootstrap-server", "--bootstrap-controller")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LIBC = ctypes.CDLL(None)
_INT = struct.Struct(">i")


class Ran(NamedTuple):
    """A tool's exit code, standard output and standard error."""

    code: int
    out: str
    err: str


class ToolStuck(Exception):
    """A tool timed out; the message has its command line."""


def main_class(tool: str) -> str:
    """Return the main class of a script; a class name with dots is returned unchanged. Raises KeyError."""
    return tool if "." in tool else TOOLS[tool]


def with_server(tool: str, arguments: tuple[str, ...], bootstrap: str | None) -> tuple[str, ...]:
    """Return the arguments, with `--bootstrap-server` added if the tool needs it and has none."""
    given = any(argument.split("=")[0] in _SERVER for argument in arguments)
    if bootstrap is None or tool in LOCAL or given:
        return arguments
    return ("--bootstrap-server", bootstrap, *arguments)


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it exits; called between fork and exec."""
    _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def start(
    tool: str, *arguments: str, bootstrap: str | None = None, heap: str = "256m", java: Runtime | None = None
) -> subprocess.Popen[str]:
    """Start a tool in a process of its own, which the caller must end; `java` is that of the PATH by default."""
    options = QUICK if tool in LOCAL else SERVER
    command = (java or runtime()).command(
        main_class(tool), *with_server(tool, arguments, bootstrap), heap=heap, options=options
    )
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def run(
    tool: str,
    *arguments: str,
    bootstrap: str | None = None,
    stdin: str = "",
    timeout: float = 60,
    java: Runtime | None = None,
) -> Ran:
    """Run a tool in a process of its own until it exits. Raises ToolStuck after `timeout` seconds."""
    process = start(tool, *arguments, bootstrap=bootstrap, java=java)
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired as late:
        raise ToolStuck(f"{tool} {' '.join(arguments)} did not exit within {timeout:.0f} s") from late
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return Ran(process.returncode, out, err)


class WarmTools:
    """A JVM for all tools, started with the first one; tools run one at a time. A context manager."""

    def __init__(self, folder: Path, *, heap: str = "256m") -> None:
        """`folder` gets the JVM's own log."""
        self._folder = folder
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> WarmTools:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the JVM."""
        with self._lock:
            self._end()

    def run(
        self, tool: str, *arguments: str, bootstrap: str | None = None, stdin: str = "", timeout: float = 60
    ) -> Ran:
        """Run a tool until it exits. Raises ToolStuck after `timeout` seconds, KafkaUnavailable without a JDK."""
        strings = [main_class(tool), *with_server(tool, arguments, bootstrap), stdin]
        parts = [text.encode() for text in strings]
        frame = _INT.pack(len(parts)) + b"".join(_INT.pack(len(part)) + part for part in parts)
        with self._lock:
            until = time.monotonic() + timeout
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(frame)
                code = _receive_int(process.stdout, until)
                out, err = (_receive(process.stdout, _receive_int(process.stdout, until), until) for _ in range(2))
            except TimeoutError as late:
                self._end()
                raise ToolStuck(f"{tool} {' '.join(arguments)} did not exit within {timeout:.0f} s") from late
            except OSError as broken:
                self._end()
                log = (self._folder / "warm-tools.log").read_text(errors="replace")[-1000:]
                raise KafkaUnavailable(f"the JVM of Kafka's tools exited: {log}") from broken
        return Ran(code, out.decode(errors="replace"), err.decode(errors="replace"))

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._folder.mkdir(parents=True, exist_ok=True)
        command = runtime().command(str(SOURCE), heap=self._heap, options=QUICK)
        with (self._folder / "warm-tools.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # it exits at the end of its standard input
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _receive(pipe: IO[bytes], size: int, until: float) -> bytes:
    """Receive `size` bytes. Raises TimeoutError, or ConnectionError at the end of the pipe."""
    found = bytearray()
    while len(found) < size:
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(pipe.fileno(), size - len(found))
        if not part:
            raise ConnectionError("closed")
        found += part
    return bytes(found)


def _receive_int(pipe: IO[bytes], until: float) -> int:
    return int(_INT.unpack(_receive(pipe, _INT.size, until))[0])
