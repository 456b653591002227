"""Apache Kafka's unmodified command-line tools and Java clients against our nodes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ops.stack.stack import Stack
from tests.e2e.conftest import Crashable, eventually
from tests.support.kafka import require_kafka, tool

pytestmark = [pytest.mark.temporal, pytest.mark.kafka, pytest.mark.timeout(300)]

TOPICS = "org.apache.kafka.tools.TopicCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
DUMP = "org.apache.kafka.tools.DumpLogSegments"


@pytest.fixture(scope="module")
def stack(crashable: Crashable) -> Stack:
    require_kafka()
    return crashable.stack


@pytest.fixture(scope="module")
def server(stack: Stack) -> tuple[str, str]:
    return "--bootstrap-server", stack.spec().bootstrap


def log_dirs(server: tuple[str, str], topic: str) -> dict[str, list[dict[str, Any]]]:
    """Log directory -> the replicas of `topic` that Kafka's tool shows in it."""
    shown = tool(LOG_DIRS, *server, "--describe", "--topic-list", topic).splitlines()
    assert shown[0] == "Querying brokers for log directories information"
    document = json.loads(shown[2])
    return {d["logDir"]: d["partitions"] for broker in document["brokers"] for d in broker["logDirs"]}


def move_file(folder: Path, topic: str, directory: Path | str) -> str:
    plan = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(directory)]}
    file = folder / f"{topic}.json"
    file.write_text(json.dumps({"version": 1, "partitions": [plan]}))
    return str(file)


def test_java_clients_produce_and_consume(server: tuple[str, str], stack: Stack) -> None:
    assert "Created topic words." in tool(TOPICS, *server, "--create", "--topic", "words", "--partitions", "2")
    assert "PartitionCount: 2" in tool(TOPICS, *server, "--describe", "--topic", "words")
    assert tool(TOPICS, *server, "--list").splitlines() == ["words"]
    sent = [f"word-{number}" for number in range(500)]
    tool(PRODUCER, *server, "--topic", "words", stdin="".join(f"{word}\n" for word in sent))

    def read(partition: str) -> list[str]:
        arguments = ("--topic", "words", "--partition", partition, "--offset", "earliest", "--timeout-ms", "4000")
        return tool(CONSUMER, *server, *arguments).split()

    with ThreadPoolExecutor() as side_by_side:
        found = [word for words in side_by_side.map(read, ("0", "1")) for word in words]
    assert sorted(found) == sorted(sent)
    segments = [s for disk in stack.spec().log_dirs(1) for s in disk.glob("words-*/*.log") if s.stat().st_size]
    dumped = tool(DUMP, "--deep-iteration", "--print-data-log", "--files", ",".join(map(str, segments)))
    assert dumped.count("payload: word-") == len(sent)
    assert "isvalid: false" not in dumped


@pytest.mark.feature("113-01", "113-25", "113-28", "113-30", "113-32", "113-33", "113-34", "113-39")
def test_reassign_partitions_moves_a_replica_to_another_directory(
    server: tuple[str, str], stack: Stack, tmp_path: Path
) -> None:
    tool(TOPICS, *server, "--create", "--topic", "moved")
    source = next(d for d, replicas in log_dirs(server, "moved").items() if replicas)
    target = next(str(d) for d in stack.spec().log_dirs(1) if str(d) != source)
    tool(PRODUCER, *server, "--topic", "moved", stdin="".join(f"{'x' * 1000}\n" for _ in range(2000)))
    file = move_file(tmp_path, "moved", target)
    throttled = ("--replica-alter-log-dirs-throttle", "100000")
    told = tool(REASSIGN, *server, "--reassignment-json-file", file, "--execute", *throttled)
    assert "The replica-alter-dir throttle limit was set to 100000 B/s" in told
    assert f"Successfully started moving log directory to {target} for replica moved-0 with broker 1" in told
    both = log_dirs(server, "moved")
    assert [r["isFuture"] for r in both[source]] == [False]
    assert [r["isFuture"] for r in both[target]] == [True]
    assert both[target][0]["offsetLag"] > 0
    assert "is still in progress" in tool(REASSIGN, *server, "--reassignment-json-file", file, "--verify")
    faster = ("--replica-alter-log-dirs-throttle", "100000000", "--additional")
    tool(REASSIGN, *server, "--reassignment-json-file", file, "--execute", *faster)
    done = "Reassignment of replica moved-0-1 completed successfully."
    eventually(lambda: done in tool(REASSIGN, *server, "--reassignment-json-file", file, "--verify"), 60, done)
    after = log_dirs(server, "moved")
    assert [r["isFuture"] for r in after[target]] == [False]
    assert after[source] == []


@pytest.mark.feature("113-05", "113-35")
def test_reassign_partitions_cancels_a_move(server: tuple[str, str], stack: Stack, tmp_path: Path) -> None:
    tool(TOPICS, *server, "--create", "--topic", "kept")
    source = next(d for d, replicas in log_dirs(server, "kept").items() if replicas)
    target = next(str(d) for d in stack.spec().log_dirs(1) if str(d) != source)
    tool(PRODUCER, *server, "--topic", "kept", stdin="".join(f"{'y' * 1000}\n" for _ in range(2000)))
    file = move_file(tmp_path, "kept", target)
    slow = ("--replica-alter-log-dirs-throttle", "50000")
    tool(REASSIGN, *server, "--reassignment-json-file", file, "--execute", *slow)
    told = tool(REASSIGN, *server, "--reassignment-json-file", file, "--cancel")
    assert "Successfully started moving log directory" in told or "Successfully cancelled" in told
    after = log_dirs(server, "kept")
    assert [r["isFuture"] for r in after[source]] == [False]
    assert after[target] == []


def test_an_unknown_directory_is_told_by_the_tool(server: tuple[str, str], tmp_path: Path) -> None:
    tool(TOPICS, *server, "--create", "--topic", "stays")
    file = move_file(tmp_path, "stays", "/nowhere")
    with pytest.raises(AssertionError, match=r"LogDirNotFound|not found|log directory"):
        tool(REASSIGN, *server, "--reassignment-json-file", file, "--execute")
