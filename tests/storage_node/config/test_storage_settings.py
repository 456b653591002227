"""Which directories, node and cluster a server.properties names."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node.config.node_config import ConfigError, NodeConfig
from storage_node.config.storage_settings import StorageSettings

KAFKA = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "listeners": "SASL_SSL://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
}


@pytest.mark.conformance(142)
@pytest.mark.parametrize(
    ("values", "directories", "metadata"),
    [
        ({"log.dirs": "/b,/a, /b ,/b/"}, ("/a", "/b"), "/b"),
        ({"log.dir": "/b"}, ("/b",), "/b"),
        ({"log.dir": "/x", "log.dirs": "/b"}, ("/b",), "/b"),
        ({"log.dirs": "/b,/c", "metadata.log.dir": "/a/"}, ("/a", "/b", "/c"), "/a"),
        ({"log.dirs": "/b,/c", "metadata.log.dir": "/c"}, ("/b", "/c"), "/c"),
        ({}, (), ""),
        ({"log.dirs": " , "}, (), ""),
    ],
)
def test_directories_are_sorted_and_named_once(
    values: dict[str, str], directories: tuple[str, ...], metadata: str
) -> None:
    settings = StorageSettings.parse({**KAFKA, **values})
    assert settings.directories == directories and settings.metadata_directory == metadata


@pytest.mark.parametrize(
    ("values", "mode", "node"),
    [
        (KAFKA, "kraft", 1),
        ({"broker.id": "3", "zookeeper.connect": "z"}, "legacy", 3),
        ({"node.id": "4", "broker.id": "4"}, "", 4),
        ({}, "", None),
    ],
)
def test_what_the_file_is_for(values: dict[str, str], mode: str, node: int | None) -> None:
    settings = StorageSettings.parse(values)
    assert (settings.mode, settings.node_id) == (mode, node)


def test_relative_directory_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = StorageSettings.parse({"log.dirs": "data,./b", "metadata.log.dir": "m"})
    assert settings.directories == (f"{tmp_path}/b", f"{tmp_path}/data", f"{tmp_path}/m")
    assert StorageSettings.parse({"log.dirs": "data,b", "metadata.log.dir": "b"}).log_dirs[0] == f"{tmp_path}/b"


@pytest.mark.parametrize("values", [{"node.id": "-1"}, {"broker.id": "x"}, {"node.id": "4294967296"}])
def test_what_makes_no_sense_is_named(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"=.*: "):
        StorageSettings.parse(values)


def test_node_has_its_metadata_directory_first() -> None:
    values = {"node.id": "1", "log.dirs": "/a,/b"}
    named = NodeConfig.parse({**values, "metadata.log.dir": "/b"})
    assert named.log_dirs == ("/b", "/a") and named.metadata_log_dir == "/b" and named.metadata_beside == ""
    beside = NodeConfig.parse({**values, "metadata.log.dir": "/m"})
    assert beside.log_dirs == ("/a", "/b") and beside.metadata_beside == "/m"
