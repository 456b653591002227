"""server.properties: Kafka's names, one clear error for a bad value, a warning for a key that has no effect."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_node.config.changes import check_broker, move_rate
from storage_node.config.node_config import ConfigError, NodeConfig
from storage_node.config.storage_settings import StorageSettings
from storage_node.config.table import MOVE_RATE
from storage_node.config.values import BrokerValues

LEAST = {"node.id": "7", "log.dirs": "/a,/b"}


@pytest.mark.feature("113-37", "113-38")
def test_defaults_are_kafkas() -> None:
    config = NodeConfig.parse(LEAST)
    assert (config.node_id, config.log_dirs) == (7, ("/a", "/b"))
    assert (config.listener.host, config.listener.port) == ("", 9092)
    assert config.move_threads == 2, "one mover per log directory"
    assert config.move_rate is None
    assert config.file_delete_delay_ms == 60_000
    assert config.log.segment_bytes == 2**30 and config.log.retention_ms == 7 * 24 * 3_600_000
    assert config.socket_request_max_bytes == 104_857_600


def test_file_as_kafka_has_it(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# a comment\nbroker.id=3\nlog.dirs = /d/one , /d/two\nlisteners=PLAINTEXT://localhost:19092,CONTROLLER://:9093\n"
        "advertised.listeners=PLAINTEXT://example.org:29092\nnum.replica.alter.log.dirs.threads=1\n"
        "replica.alter.log.dirs.io.max.bytes.per.second=20000000\nlog.retention.hours=2\nlog.roll.ms=5000\n"
        "log.segment.bytes=1048576\nlog.segment.delete.delay.ms=5000\nprocess.roles=broker,controller\n"
    )
    config = NodeConfig.load(path)
    assert config.node_id == 3 and config.log_dirs == ("/d/one", "/d/two")
    assert (config.listener.host, config.listener.port) == ("localhost", 19092)
    assert (config.advertised.host, config.advertised.port) == ("example.org", 29092)
    assert config.move_threads == 1 and config.move_rate == 20_000_000
    assert config.file_delete_delay_ms == 5000 and config.log.file_delete_delay_ms == 5000
    assert config.log.retention_ms == 7_200_000 and config.log.segment_ms == 5000
    assert config.log.segment_bytes == 1_048_576
    path.write_bytes(codecs.BOM_UTF8 + b"node.id=4\nlog.dirs=/d\n")
    assert NodeConfig.load(path).node_id == 4, "the mark that some editors put first is no part of the first key"


def test_relative_directories_are_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = NodeConfig.parse({**LEAST, "log.dirs": f"a,./b/c/,{tmp_path}/d/"}).log_dirs
    assert given == (f"{tmp_path}/a", f"{tmp_path}/b/c", f"{tmp_path}/d/")


def test_finer_units_win() -> None:
    given = {**LEAST, "log.retention.hours": "1", "log.retention.minutes": "5", "log.retention.ms": "1234"}
    assert NodeConfig.parse(given).log.retention_ms == 1234
    assert NodeConfig.parse({**LEAST, "log.retention.ms": "-1"}).log.retention_ms == -1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"log.dirs": "/a"}, ["node.id", "missing"]),
        ({"node.id": "1"}, ["log.dirs", "missing"]),
        ({"node.id": "x", "log.dirs": "/a"}, ["node.id=x", "whole number"]),
        ({"node.id": "-1", "log.dirs": "/a"}, ["node.id=-1", "between 0"]),
        ({**LEAST, "log.dirs": "a,./a"}, ["log.dirs=a,./a", "same directory"]),
        ({**LEAST, "log.dirs": "/a,/x/../a"}, ["log.dirs=/a,/x/../a", "same directory"]),
        ({**LEAST, "listeners": "9092"}, ["listeners=9092", "PLAINTEXT://host:port"]),
        ({**LEAST, "listeners": "SSL://:9092"}, ["listeners=SSL://:9092", "only PLAINTEXT"]),
        ({**LEAST, "listeners": "PLAINTEXT://:99999"}, ["listeners=", "65535"]),
        ({**LEAST, "auto.create.topics.enable": "yes"}, ["auto.create.topics.enable=yes", "true or false"]),
        ({**LEAST, "replica.alter.log.dirs.io.max.bytes.per.second": "-1"}, ["per.second=-1", "at least 0"]),
        ({**LEAST, "leader.replication.throttled.rate": "fast"}, ["throttled.rate=fast", "type LONG"]),
        ({**LEAST, "follower.replication.throttled.rate": "-1"}, ["throttled.rate=-1", "at least 0"]),
        ({**LEAST, "log.segment.bytes": "a lot"}, ["log.segment.bytes=a lot"]),
        ({**LEAST, "num.recovery.threads.per.data.dir": "0"}, ["num.recovery.threads.per.data.dir=0"]),
    ],
)
def test_bad_value_is_one_error_that_names_key_and_value(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        NodeConfig.parse(given)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("rate", "limit"), [("0", 1), ("1", 1), ("20000000", 20_000_000), (str(2**63 - 1), None)])
def test_move_rate_of_zero_is_accepted_and_stalls_moves_as_in_kafka(rate: str, limit: int | None) -> None:
    assert NodeConfig.parse({**LEAST, MOVE_RATE: rate}).move_rate == limit
    check_broker({MOVE_RATE: rate}, ["/a"])
    assert move_rate(BrokerValues({MOVE_RATE: rate}, {}, {})) == limit


@pytest.mark.parametrize("load", [NodeConfig.load, StorageSettings.load])
def test_loading_a_file_that_cannot_be_read_is_an_error_in_words(
    tmp_path: Path, load: Callable[[Path], object]
) -> None:
    path = tmp_path / "none"
    with pytest.raises(ConfigError) as error:
        load(path)
    assert (
        str(error.value)
        == f"{path} cannot be read: No such file or directory; give the path of the node's server.properties"
    )
    path.mkdir()
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value) == f"{path} cannot be read: Is a directory; give the path of the node's server.properties"


def test_unknown_key_is_a_warning_with_the_likely_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        NodeConfig.parse({**LEAST, "log.retention.byte": "5", "num.io.threads": "8"})
    (record,) = [each for each in caplog.records if each.name.startswith("storage_node.config.node_config")]
    assert "log.retention.byte" in record.getMessage() and "did you mean log.retention.bytes" in record.getMessage()
