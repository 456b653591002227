"""What an operator sees of a replica whose file is bad, and the request to open it again."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main as cli
from ops.stack.errors import ExitCode
from storage_node.log.batches.batch import build_batch
from tests.support.io_faults import Faults, install
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    installed = install(monkeypatch)
    yield installed
    installed.clear()


@pytest.fixture
def bad(tmp_path: Path, faults: Faults) -> Iterator[tuple[Harness, Path]]:
    """A node of whose two replicas one is offline: its folder takes no new segment, and no health check."""
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("orders", 2, {"segment.bytes": "2000"})
        harness.settle()
        folder = Path(harness.directory_of("orders", 1)) / "orders-1"
        for pattern in ("*[1-9].log", "health-check*"):
            faults.fail("open", f"{folder}/{pattern}", errno.EPERM)
        client = Client(harness)
        assert max(client.produce("orders", 1, build_batch([b"x" * 1200])).error for _ in range(3)) == 56
        client.close()
        until(lambda: harness.node.metadata.image.topics["orders"].partitions[1].offline)
        yield harness, folder


def run(capsys: pytest.CaptureFixture[str], harness: Harness, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a command says to people, and its error."""
    capsys.readouterr()
    assert cli.run([*arguments, "--bootstrap-server", harness.bootstrap]) == code
    shown = capsys.readouterr()
    return shown.out, shown.err


def read(capsys: pytest.CaptureFixture[str], harness: Harness, *arguments: str) -> Any:
    return json.loads(run(capsys, harness, *arguments, "--json")[0])


def test_every_view_shows_the_failed_file_and_the_reason(
    bad: tuple[Harness, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    harness, folder = bad

    def fits(row: dict[str, Any]) -> bool:
        assert row["file"].startswith(str(folder)) and "Operation not permitted" in row["reason"]
        return bool(row["directory"] == str(folder.parent))

    (row,) = read(capsys, harness, "replicas", "offline")
    assert fits(row) and (row["topic"], row["partition"], row["node"]) == ("orders", 1, 1)
    good, failed = read(capsys, harness, "topic", "describe", "orders")["partitions"]
    assert good["failed_replicas"] == [] and good["offline"] == []
    assert fits(failed["failed_replicas"][0]) and failed["offline"] == [1] and failed["leader"] in (-1, None)
    document = read(capsys, harness, "dirs", "list", "--node", "1")
    assert all(each["is_live"] for each in document["log_dirs"]), "its directory is good"
    assert fits(read(capsys, harness, "node", "status", "1")["offline_replicas"][0])
    for command in (["replicas", "offline"], ["topic", "describe", "orders"], ["dirs", "list", "--node", "1"]):
        shown = "".join(run(capsys, harness, *command)[0].split())
        assert str(folder) in shown and "Operationnotpermitted" in shown, command
    out, _ = run(capsys, harness, "topic", "describe", "orders")
    assert "rehome replicas online 1 orders-1" in out


def test_repaired_replica_is_online_on_request(
    bad: tuple[Harness, Path], faults: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    harness, folder = bad
    out, error = run(capsys, harness, "replicas", "online", "1", "orders-1", "orders-0", code=1)
    assert out == "orders-0 is already online on node 1\n"
    assert "orders-1 is still offline" in error and str(folder) in error and "Operation not permitted" in error
    faults.clear()
    found = read(capsys, harness, "replicas", "online", "1", "orders-1")
    row = {"topic": "orders", "partition": 1, "outcome": "reopened", "message": ""}
    assert found == {"node": 1, "replicas": [row]}
    until(lambda: not harness.node.metadata.image.topics["orders"].partitions[1].offline)
    assert run(capsys, harness, "replicas", "offline")[0] == "no offline replicas in online log directories\n"
    client = Client(harness)
    until(lambda: client.produce("orders", 1, build_batch([b"x" * 1200])).error == 0)
    client.close()


def test_replicas_online_with_wrong_arguments_fails(
    bad: tuple[Harness, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    harness, _ = bad
    assert "node 7 does not exist" in run(capsys, harness, "replicas", "online", "7", "orders-1", code=1)[1]
    assert "does not exist" in run(capsys, harness, "replicas", "online", "1", "orders-9", code=1)[1]
    assert "TOPIC-PARTITION" in run(capsys, harness, "replicas", "online", "1", "orders", code=2)[1]


def test_dirs_list_includes_a_node_that_does_not_respond(
    bad: tuple[Harness, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ops.cli import nodes
    from ops.cli.kafka_admin import NodeAddress

    harness, _ = bad
    dead = NodeAddress(2, "127.0.0.1", 1)
    monkeypatch.setattr(nodes, "addresses", lambda _: [dead, NodeAddress(1, "127.0.0.1", harness.node.port)])
    out, error = run(capsys, harness, "dirs", "list", code=ExitCode.PARTIAL)
    assert "does not" in " ".join(out.split()) and "unknown" in out
    assert error.startswith("error: the result is partial: node 2 does not respond")
    document, _ = run(capsys, harness, "dirs", "list", "--json", code=ExitCode.PARTIAL)
    first, second = json.loads(document)["brokers"]
    assert (first["broker"], first["log_dirs"]) == (2, []) and first["error"]
    assert second["broker"] == 1 and len(second["log_dirs"]) == 2 and "error" not in second
    assert len(read(capsys, harness, "replicas", "offline")) == 1, "any node reports all of them"
