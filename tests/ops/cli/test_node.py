"""What the operator sees of a node's connections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.cli import main as cli
from storage_node.protocol.apis import private
from tests.support.nodes.node_harness import running, until
from tests.support.wire import Client


def test_status_of_a_node_without_client_state_shows_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(private.OPERATIONS, "controller-client")
    with running(tmp_path, dirs=1) as harness:
        command = ["node", "status", "1", "--bootstrap-server", harness.bootstrap]
        assert cli.run(command) == 0
        shown = capsys.readouterr().out
        assert "temporal client: unknown" in shown and "unknown op 'controller-client'" in shown
        assert f"{harness.paths[0]}: online" in shown
        assert cli.run([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["replicas"], found["temporal_client"]["connected"]) == (0, None)


def test_connections_are_listed_with_the_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path, dirs=1) as harness:
        harness.create_topic("t")
        client = Client(harness)
        assert client.ask(18, 3, {"client_software_name": "some-client", "client_software_version": "9"}).api_keys
        client.send_fetch("t", 0, 0, max_wait_ms=20_000)
        peer = "{}:{}".format(*client.socket.getsockname())
        command = ["node", "connections", "1", "--bootstrap-server", harness.bootstrap]

        def ours() -> dict[str, object]:
            assert cli.run([*command, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["node"] == 1 and found["open"] == len(found["connections"])
            return next(row for row in found["connections"] if row["peer"] == peer)

        until(lambda: ours()["under_way"] == "fetch")
        row = ours()
        assert (row["client_id"], row["software"], row["requests"]) == ("test", "some-client 9", 2)
        assert cli.run(command) == 0
        shown = capsys.readouterr().out
        line = next(each for each in shown.splitlines() if each.startswith(peer))
        assert "some-client 9" in line and "fetch for " in line
        assert "closed after 10:00 min idle" in shown and "of 268.4 MB" in shown
        client.close()
