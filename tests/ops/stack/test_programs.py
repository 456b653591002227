"""The search for the Temporal server and Java, and the errors if they cannot be installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.analytics.schema.words import KINDS
from ops.cli import main as cli
from ops.cli import spark
from ops.cli.history import Kind
from ops.stack import java, programs, temporal_server
from tests.support.runs.histories import export, moved

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("temporal version 1.8.2 (Server 1.31.2, UI 2.50.1)\n", (1, 31, 2)),
        ("temporal version 0.0.0-DEV (Server 1.31.2, UI 2.50.1)", (1, 31, 2)),
        ("temporal, version 0.1", None),
        ("", None),
    ],
)
def test_servers_version_is_read(text: str, version: tuple[int, ...] | None) -> None:
    assert temporal_server.server_version(text) == version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.4 linux/amd64", (1, 26, 4)),
        ("go version go1.27 linux/arm64", (1, 27, 0)),
        ("command not found", None),
    ],
)
def test_gos_version_is_read(text: str, version: tuple[int, ...] | None) -> None:
    assert temporal_server.go_version(text) == version


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("Error: no java", None),
    ],
)
def test_javas_version_is_read(text: str, major: int | None) -> None:
    assert java.major_version(text) == major


def fake(path: Path, line: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{line}' >&2\necho '{line}'\n")
    path.chmod(0o755)
    return path


def test_server_named_by_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = fake(tmp_path / "mine" / "temporal", "temporal version 9 (Server 1.31.9, UI 1.0)")
    fake(tmp_path / "path" / "temporal", "temporal version 9 (Server 1.32.0, UI 1.0)")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setenv("REHOME_TEMPORAL", str(mine))
    assert temporal_server.find() == str(mine)


def test_old_server_on_the_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "path" / "temporal", "temporal version 0.9 (Server 1.20.0, UI 1.0)")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REHOME_TEMPORAL", raising=False)
    assert temporal_server.find() is None
    cached = fake(temporal_server.cached(), "temporal version 1.8.2 (Server 1.31.2, UI 2.50.1)")
    assert temporal_server.find() == str(cached)


def test_wrong_choice_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHOME_TEMPORAL", str(tmp_path / "nothing"))
    with pytest.raises(temporal_server.NoTemporalServer, match="correct the variable or unset it"):
        temporal_server.find()


def test_failed_download_and_build_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REHOME_TEMPORAL", raising=False)
    monkeypatch.setattr(temporal_server, "_download", lambda say: "no name resolution")
    monkeypatch.setattr(temporal_server, "_build", lambda say: "Go is not installed")
    with pytest.raises(temporal_server.NoTemporalServer) as raised:
        temporal_server.ensure(lambda line: None)
    assert "no name resolution" in str(raised.value)
    assert "set REHOME_TEMPORAL" in str(raised.value)


def test_java_home_comes_first_and_an_old_one_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "old" / "bin" / "java", 'openjdk version "11.0.2"')
    fake(tmp_path / "new" / "bin" / "java", 'openjdk version "17.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'new' / 'bin'}:/usr/bin:/bin")
    assert java.find() == tmp_path / "new"


def test_without_java_and_without_root_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(java.NoJava, match="sudo apt-get install openjdk-17-jre-headless"):
        java.ensure(lambda line: None)


def test_as_root_a_java_that_cannot_be_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "_JVMS", tmp_path / "none")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert programs.provide(java.ensure) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert "install Java 17 or later and set JAVA_HOME" in lines[-1]
    assert any("Unable to locate package" in line for line in lines)


def test_report_without_java_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "find", lambda: None)
    assert cli.run(["report", "--export", str(tmp_path), "--out", str(tmp_path / "report")]) == 1
    assert "error: Spark needs Java 17 or later and none was found; `make setup` installs it" in capsys.readouterr().err


def test_report_passes_its_options_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []

    def job(command: list[str], *_: object) -> str:
        commands.append(command)
        (tmp_path / "report" / "report.html").write_text("a page")
        return "the table\n"

    monkeypatch.setattr(spark, "settings", dict)
    monkeypatch.setattr(spark, "_run", job)
    export(tmp_path / "export", moved("a"))
    where = ["report", "--export", str(tmp_path / "export"), "--out", str(tmp_path / "report")]
    time, kinds = "2026-11-20T12:00:00Z", ["--kind", "node", "--kind", "both"]
    assert cli.run([*where, "--since", time, "--as-of", time, "--open", *kinds]) == 0
    assert commands[0][5:] == ["--since", time, "--as-of", time, "--open", *kinds]
    assert capsys.readouterr().out.splitlines()[0] == "the table"
    assert tuple(kind.value for kind in Kind) == KINDS


def test_without_network_and_modules_the_setup_of_a_server_ends_with_one_sentence(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GOPROXY": "off",
        "GOMODCACHE": str(tmp_path / "modules"),
        "GOCACHE": str(tmp_path / "built"),
        "https_proxy": nowhere,
        "PIP_INDEX_URL": nowhere,
        "PIP_RETRIES": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "ops.stack.temporal_server"],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: cannot install the Temporal server: the download failed (temporal.download: ")
    assert "the build failed (" in error
    assert "set REHOME_TEMPORAL to its path" in error
    assert not list((tmp_path / "cache" / "rehome" / "bin").glob("*-*"))
