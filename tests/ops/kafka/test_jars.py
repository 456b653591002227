"""The download of Kafka's jars by Maven: once, with progress, and one sentence if it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.kafka import jars
from ops.kafka.jars import KafkaUnavailable, Runtime


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs of the PATH; the cache is empty."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REHOME_KAFKA_LIBS", raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def mvn(folder: Path, script: str) -> None:
    program = folder / "mvn"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_jars_are_downloaded_once_with_a_sentence(maven: Path) -> None:
    copies = 'for each; do case "$each" in -DoutputDirectory=*) mkdir -p "${each#*=}";; esac; done'
    mvn(maven, f"{copies}; echo >> {maven}/n")
    said: list[str] = []
    libs = jars.ensure_libs(said.append)
    assert libs.is_dir() and said == ["downloading Apache Kafka 4.3.1 with Maven, once for this user"]
    assert jars.ensure_libs(said.append) == libs
    assert (maven / "n").read_text() == "\n" and len(said) == 1


def test_maven_that_fails_is_one_sentence_with_its_first_error(maven: Path) -> None:
    mvn(maven, "echo '[ERROR] Could not resolve kafka_2.13'; echo '[ERROR] [Help 1] http://help'; exit 1")
    with pytest.raises(KafkaUnavailable, match=r"Apache Kafka 4\.3\.1 are missing: .*Could not resolve kafka_2"):
        jars.ensure_libs()
    mvn(maven, "exit 3")
    with pytest.raises(KafkaUnavailable, match="exit code 3"):
        jars.ensure_libs()


def test_without_maven_the_sentence_names_it(maven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(maven))
    with pytest.raises(KafkaUnavailable, match="mvn is not on the PATH: install maven"):
        jars.ensure_libs()


def test_brokers_without_log4j_start_with_empty_logs(maven: Path) -> None:
    jars.libs_folder().mkdir(parents=True)
    (jars.libs_folder() / ".complete").touch()
    mvn(maven, "echo '[ERROR] offline'; exit 1")
    said: list[str] = []
    assert jars.logging_runtime("/bin/java", said.append) == Runtime("/bin/java", f"{jars.libs_folder()}/*")
    assert said[-1].startswith("the brokers write no logs: ") and "offline" in said[-1]
