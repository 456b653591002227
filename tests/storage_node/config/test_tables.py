"""The tables of configs: documented, one with server.properties' defaults, and one with what the controller keeps."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.config import changes, keys
from storage_node.config.docs import documentation
from storage_node.config.node_config import NodeConfig
from storage_node.config.rules import BadValue, Kind
from storage_node.config.table import ALIASES, BROKER, PROPOSED, TOPIC, Key, Scope
from storage_node.config.values import BrokerValues, check, describe_broker, describe_topic, plain
from storage_node.log.config import LogConfig
from workflows.model.metadata import topic_rules

DYNAMIC = {name: key for name, key in BROKER.items() if key.scope is not Scope.READ_ONLY}
LEAST = {"node.id": "1", "log.dirs": "/a,/b"}

numbers = st.integers(-(2**64), 2**64).map(str) | st.integers(-5, 5).map(str) | st.floats(-1, 2).map(str)
WORDS = ("", "true", "FALSE", "delete", "compact", "delete,compact", " delete ", "producer", "gzip", "CreateTime")
MORE = ("LogAppendTime", "*", "0:1", "0:1, 2:3", "none", "x", "0:1,", " 5 ", "+7", "0.5")
values = numbers | st.sampled_from(WORDS + MORE)


def fits(key: Key, value: str) -> bool:
    try:
        check(key, value)
    except BadValue:
        return False
    return True


SAMPLES = (
    *WORDS,
    *MORE,
    *map(str, range(-3, 25)),
    "1023",
    "1024",
    str(2**31),
    str(2**63 - 1),
    str(2**63),
    "1e-7",
    "1.1",
)


@pytest.mark.parametrize(("kind", "table"), [("topic", TOPIC), ("broker", DYNAMIC)])
def test_node_and_controller_agree(kind: str, table: Mapping[str, Key]) -> None:
    """What the node lets pass, and in the form that it passes on, the controller keeps; and nothing else."""
    for key in table.values():
        for value in SAMPLES:
            kept = topic_rules.config_problem(kind, key.name, plain(key, value)) is None
            assert fits(key, value) == kept, (key.name, value)


def test_node_and_controller_know_the_same_configs() -> None:
    assert set(topic_rules.TOPIC_CONFIGS) == set(TOPIC)
    assert set(topic_rules.BROKER_CONFIGS) == set(DYNAMIC)


@given(st.sampled_from([*TOPIC.values(), *BROKER.values()]), values)
def test_plain_value_is_as_good_as_it_was_written(key: Key, value: str) -> None:
    assert fits(key, plain(key, value)) == fits(key, value)
    assert plain(key, plain(key, value)) == plain(key, value)


def test_every_config_is_documented_and_has_a_good_default() -> None:
    for key in (*TOPIC.values(), *BROKER.values()):
        assert documentation(key.name), key.name
        assert key.default is None or (fits(key, key.default) and plain(key, key.default) == key.default), key.name
        assert set(key.synonyms) <= set(BROKER), key.name
    assert documentation("no.such") is None
    assert set(ALIASES.values()) <= set(BROKER)


def test_defaults_are_what_a_log_has() -> None:
    found = changes.log_config(BrokerValues({}, {}, {}))
    assert found == LogConfig(message_timestamp_after_max_ms=3_600_000)


@given(
    st.dictionaries(st.sampled_from(sorted(DYNAMIC)), values),
    st.dictionaries(st.sampled_from(sorted(DYNAMIC)), values),
    st.dictionaries(st.sampled_from(sorted(TOPIC)), values),
)
def test_node_lives_with_any_values_of_a_controller(
    own: dict[str, str], default: dict[str, str], topic: dict[str, str]
) -> None:
    """A controller that knows more may keep what this node cannot read: that is passed over."""
    values = BrokerValues(own, default, LEAST)
    assert changes.log_config(values).segment_bytes > 0
    assert changes.move_rate(values) is None or changes.move_rate(values)
    assert {row.name for row in describe_topic(topic, values)} == set(TOPIC)
    assert {row.name for row in describe_broker(values)} >= set(own) | set(default)


@pytest.mark.parametrize(
    ("own", "default", "static", "retention"),
    [
        ({}, {}, {}, 604_800_000),
        ({}, {}, {"log.retention.hours": "2"}, 7_200_000),
        ({}, {}, {"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({}, {}, {"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({}, {}, {"log.retention.minutes": "-1"}, -1),
        ({}, {"log.retention.ms": "5"}, {"log.retention.hours": "2"}, 5),
        ({"log.retention.ms": "6"}, {"log.retention.ms": "5"}, {"log.retention.ms": "4"}, 6),
        ({"log.retention.ms": "x"}, {"log.retention.ms": "5"}, {}, 5),
        ({"log.retention.ms": "-9"}, {}, {}, -1),
    ],
)
def test_which_retention_holds(
    own: dict[str, str], default: dict[str, str], static: dict[str, str], retention: int
) -> None:
    values = BrokerValues(own, default, static)
    assert changes.log_config(values).retention_ms == retention
    (row,) = (row for row in describe_topic({}, values) if row.name == "retention.ms")
    assert row.value == str(retention)


def test_hours_and_finer_units_of_the_other_keys() -> None:
    log = NodeConfig.parse({**LEAST, "log.roll.hours": "2", "log.flush.scheduler.interval.ms": "3000"}).log
    assert (log.segment_ms, log.flush_ms) == (7_200_000, 3000)
    log = NodeConfig.parse({**LEAST, "log.roll.hours": "2", "log.roll.ms": "9", "log.flush.interval.ms": "4"}).log
    assert (log.segment_ms, log.flush_ms) == (9, 4)


@pytest.mark.feature("113-37", "113-38")
def test_proposals_names_are_taken_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    keys._warned.clear()
    given = {**LEAST, "intra.broker.throttled.rate": "5000", "num.replica.move.threads": "3"}
    with caplog.at_level(logging.WARNING):
        config = NodeConfig.parse(given)
        NodeConfig.parse(given)
    assert (config.move_rate, config.move_threads) == (5000, 3)
    told = [record for record in caplog.records if record.name == keys.__name__]
    assert [record.args for record in told] == [
        (name, PROPOSED[name], PROPOSED[name]) for name in ("intra.broker.throttled.rate", "num.replica.move.threads")
    ]
    assert NodeConfig.parse({**LEAST, "num.replica.alter.log.dirs": "4"}).move_threads == 4
    both = {"num.replica.move.threads": "3", "num.replica.alter.log.dirs.threads": "2"}
    assert NodeConfig.parse({**LEAST, **both}).move_threads == 2, "the real name goes first"


@pytest.mark.feature("113-59")
@pytest.mark.parametrize(
    ("given", "chunk"),
    [
        ({}, 1_048_576),
        ({"replica.fetch.max.bytes": "300000"}, 300_000),
        ({"replica.fetch.response.max.bytes": "200000"}, 200_000),
        ({"replica.fetch.max.bytes": "300000", "replica.fetch.response.max.bytes": "200000"}, 200_000),
    ],
)
def test_fetch_sizes_bound_a_moves_chunk(given: dict[str, str], chunk: int) -> None:
    assert NodeConfig.parse({**LEAST, **given}).move_chunk == chunk


def test_types_are_kafkas() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        **{"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5},
        **{"DOUBLE": 6, "LIST": 7, "CLASS": 8, "PASSWORD": 9},
    }
