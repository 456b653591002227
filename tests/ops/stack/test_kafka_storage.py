"""The files of a stack's Apache Kafka brokers."""

from __future__ import annotations

from pathlib import Path

import javaproperties
import pytest

from ops.kafka.jars import Runtime
from ops.stack import kafka_storage
from ops.stack.errors import OpsError
from ops.stack.layout import StackKind, StackSpec

#: A program that fails: a test that formats would notice.
NO_JAVA = Runtime("/bin/false", "")


def formatted(spec: StackSpec, *ids: str) -> None:
    """Format the log directories of the brokers with these cluster ids."""
    for broker, id_ in zip(spec.brokers(), ids, strict=True):
        for path in broker.log_dirs:
            path.mkdir(parents=True)
            (path / "meta.properties").write_text(f"version=1\ncluster.id={id_}\n")


def spec_in(folder: Path) -> StackSpec:
    return StackSpec(folder, nodes=2, dirs=2, kind=StackKind.APACHE_KAFKA)


def test_formatted_directories_are_kept_and_the_clients_settings_are_private(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    formatted(spec, "one", "one")
    kafka_storage.make(spec, NO_JAVA, lambda line: pytest.fail(line))
    assert javaproperties.loads(spec.client_properties.read_text()) == {"bootstrap.servers": spec.bootstrap}
    assert spec.client_properties.stat().st_mode & 0o777 == 0o600


def test_what_the_operator_has_added_is_kept(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    formatted(spec, "one", "one")
    config = spec.brokers()[0].config
    config.write_text("num.replica.fetchers=4\nnode.id=7\n")
    kafka_storage.make(spec, NO_JAVA, lambda line: None)
    found = javaproperties.loads(config.read_text())
    assert (found["num.replica.fetchers"], found["node.id"]) == ("4", "1")


def test_directories_of_two_clusters_are_reported(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    formatted(spec, "one", "two")
    with pytest.raises(OpsError, match=r"belong to different clusters .*disk-a: one.*disk-a: two.*another --data"):
        kafka_storage.make(spec, NO_JAVA, lambda line: None)


def test_tool_that_fails_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OpsError, match="cannot format the storage of broker 1"):
        kafka_storage.make(spec_in(tmp_path), NO_JAVA, lambda line: None)
