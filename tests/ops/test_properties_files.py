"""A path in a properties file is read as it was written, by Java and by us: Latin-1 with escapes."""

from __future__ import annotations

from pathlib import Path

import javaproperties
import pytest

from ops.kafka.cluster import KafkaCluster
from ops.kafka.tools import Ran
from ops.stack.kafka_storage import write_properties
from storage_node.config.log_dirs_file import set_log_dirs
from storage_node.config.node_config import read_properties

NAMES = ["my disk", "o'ut", '"x"', "(v2)", "dàta", "𝒳", "50%", "#1!", "a=b:c", "back\\slash", "${HOME}"]


@pytest.mark.parametrize("name", NAMES)
def test_log_dirs_are_read_as_they_were_written(name: str, tmp_path: Path) -> None:
    file = tmp_path / name / "server.properties"
    set_log_dirs(file, str(file.parent))
    assert read_properties(file)["log.dirs"] == str(file.parent)
    write_properties(file, {"node.id": "1"})
    assert read_properties(file) == {"node.id": "1", "log.dirs": str(file.parent)}


@pytest.mark.parametrize("name", NAMES)
def test_broker_reads_its_log_dirs(name: str, tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path / name, log_dirs={1: 2}, run_tool=lambda *arguments, **options: Ran(0, "", ""))
    cluster._format(1)
    found = read_properties(tmp_path / name / "broker-1" / "server.properties")
    assert found["log.dirs"].split(",") == [str(each) for each in cluster.log_dirs[1]]


def test_properties_with_letters_of_latin_1_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes("broker.rack=Åre\n".encode("latin-1"))
    write_properties(file, {"node.id": "1"})
    assert javaproperties.loads(file.read_text("ascii")) == {"node.id": "1", "broker.rack": "Åre"}
