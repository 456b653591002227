"""The dev stack as values."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ops.kafka.jars import Runtime
from ops.stack import layout
from ops.stack.layout import StackKind, StackSpec

DATA = Path("/data/stack")
KAFKA = layout.first_spec(DATA, StackKind.APACHE_KAFKA)


def test_command_line_starts_a_process_again_with_its_environment() -> None:
    node = layout.processes(StackSpec(DATA, temporal_port=7300), "/bin/temporal")[2]
    words = shlex.split(node.command_line)
    assert words[0] == "env"
    assert "TEMPORAL_ADDRESS=127.0.0.1:7300" in words
    assert words[-2:] == ["--config", "/data/stack/node-1/server.properties"]


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (StackSpec(DATA, nodes=0), "--nodes must be 1 to 9"),
        (StackSpec(DATA, nodes=10), "--nodes must be 1 to 9"),
        (StackSpec(DATA, dirs=0), "--dirs must be 1 to 26"),
        (StackSpec(DATA, port=7232, nodes=3), "overlap"),
        (StackSpec(DATA, port=0), "not a valid port"),
        (StackSpec(DATA, port=65535), "not a valid port"),
        (StackSpec(Path("/data/a,b")), "separated by commas"),
        (StackSpec(Path("/data/50%")), "Temporal's database has no path with %"),
        (StackSpec(Path("/data/#1?")), "Temporal's database has no path with # or ?"),
    ],
)
def test_invalid_settings_are_named(spec: StackSpec, part: str) -> None:
    problem = layout.problem(spec)
    assert problem is not None
    assert part in problem


def test_default_stack_is_valid() -> None:
    assert layout.problem(StackSpec(DATA)) is None
    assert layout.problem(StackSpec(Path('/my dàta (v2)/o\'ut "x" \\'))) is None
    assert layout.problem(StackSpec(DATA, temporal_port=65000)) is None


def test_processes_of_apache_kafka_in_starting_and_stopping_order() -> None:
    found = [process.name for process in layout.processes(KAFKA, "/bin/temporal", Runtime("/bin/java", "/libs/*"))]
    assert found == ["temporal", "broker-1", "broker-2", "broker-3", "orchestrator", "history"]
    order = (("history", "orchestrator"), ("broker-1", "broker-2", "broker-3"), ("temporal",))
    assert layout.stopping_order(found) == order


def test_storage_nodes_stop_before_their_controller_and_temporal_last() -> None:
    found = [process.name for process in layout.processes(StackSpec(DATA), "/bin/temporal")]
    assert layout.stopping_order(found) == (("node-1", "node-2", "node-3"), ("controller",), ("temporal",))
    assert layout.stopping_order(["temporal", "node-2"]) == (("node-2",), ("temporal",))


def test_stack_of_one_broker_replicates_nothing() -> None:
    one = StackSpec(DATA, nodes=1, kind=StackKind.APACHE_KAFKA)
    properties = layout.broker_properties(one, 1)
    assert properties["offsets.topic.replication.factor"] == properties["transaction.state.log.min.isr"] == "1"


def test_orchestrator_gets_the_settings_of_a_kafka_client_and_the_clusters_name() -> None:
    orchestrator = layout.processes(KAFKA, "/bin/temporal")[-2]
    words = shlex.split(orchestrator.command_line)
    assert words[-5:] == ["orchestrator", "--cluster", "rehome", "--command-config", "/data/stack/client.properties"]
    assert "TEMPORAL_ADDRESS=127.0.0.1:7233" in words


def test_ports_of_the_controllers_count_as_the_stacks() -> None:
    assert KAFKA.ports()[9097] == "the controller of broker-3"
    assert layout.problem(KAFKA) is None
    overlapping = layout.problem(StackSpec(DATA, kind=StackKind.APACHE_KAFKA, temporal_port=9096))
    assert overlapping is not None and "overlap" in overlapping


@pytest.mark.parametrize(
    ("spec", "name", "running", "lacks"),
    [
        (KAFKA, "broker-1", {"broker-1", "temporal", "orchestrator"}, True),
        (KAFKA, "broker-1", {"broker-1", "broker-3"}, False),
        (KAFKA, "orchestrator", {"orchestrator"}, False),
        (StackSpec(DATA, nodes=1, kind=StackKind.APACHE_KAFKA), "broker-1", {"broker-1"}, False),
        (StackSpec(DATA, nodes=2, kind=StackKind.APACHE_KAFKA), "broker-1", {"broker-1"}, True),
        (StackSpec(DATA), "node-1", {"node-1"}, False),
    ],
)
def test_broker_without_most_of_the_others_lacks_a_quorum(
    spec: StackSpec, name: str, running: set[str], lacks: bool
) -> None:
    assert layout.lacks_quorum(spec, name, running) is lacks
