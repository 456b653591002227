"""The command: a bad option, a taken port, no cluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ops.cli import main as cli
from tests.support.no_cluster import no_cluster_around

HERE = ["--temporal-address", "127.0.0.1:1", "--bootstrap-server", "127.0.0.1:1"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.run(["dashboard", *arguments]) in (1, 2)
    return capsys.readouterr().err.strip()


def test_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused(capsys, *HERE, "--port", str(port))
    assert message.startswith(f"error: cannot listen on 127.0.0.1:{port} (Address already in use)")


def test_foreign_address_and_ui_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert "192.0.2.7" in refused(capsys, *HERE, "--listen", "192.0.2.7", "--port", "0")
    message = refused(capsys, *HERE, "--temporal-ui", "javascript:alert(1)")
    assert "--temporal-ui 'javascript:alert(1)' is not the URL of Temporal's UI" in message


def test_dashboard_without_a_cluster_says_how_to_select_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cluster_around(monkeypatch, tmp_path)
    assert "no cluster is selected" in refused(capsys)
