"""kafka-configs: what it prints of topics, of brokers and of mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from storage_node.config.table import BROKER, MOVE_RATE, TOPIC, Scope
from tests.conformance.clusters import NODES, TOPIC_RESOURCE, Cluster
from tests.conformance.configs.values import (
    BY_KAFKA,
    LEADER,
    OURS,
    clear,
    rows,
)
from tests.conformance.conftest import Tools
from tests.support.refused_configs import number

CONFIGS = "kafka-configs"


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[None]:
    """No dynamic broker configs are left behind."""
    yield
    clear(cluster)


def lines(text: str) -> dict[str, str]:
    """What stands behind `name=` in the lines of a description."""
    return {name: rest for name, rest in re.findall(r"^  ([\w.]+)=(.*)$", text, re.MULTILINE)}


def test_kafka_configs_of_a_topic(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic()
    which = ("--entity-type", "topics", "--entity-name", topic)
    head = f"Dynamic configs for topic {topic} are:\n"
    assert tools.run(CONFIGS, "--describe", *which) == (0, head, "")
    changed = f"Completed updating config for topic {topic}.\n"
    assert tools.run(CONFIGS, "--alter", *which, "--add-config", "retention.ms=4000000,flush.messages=77") == (
        0,
        changed,
        "",
    )
    longest = 2**63 - 1
    flush = (
        "77 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:flush.messages=77, "
        f"DEFAULT_CONFIG:log.flush.interval.messages={longest}}}"
    )
    retention = "4000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=4000000}"
    expected = f"{head}  flush.messages={flush}\n  retention.ms={retention}\n"
    # Whichever node the tool asks: they hear of it with their next image.
    cluster.eventually(
        lambda: all(rows(cluster, TOPIC_RESOURCE, topic, n)["retention.ms"].value == "4000000" for n in NODES)
    )
    assert tools.run(CONFIGS, "--describe", *which) == (0, expected, "")
    every = tools.out(CONFIGS, "--describe", "--all", *which)
    assert every.startswith(f"All configs for topic {topic} are:\n")
    found = lines(every)
    assert list(found) == sorted(TOPIC) and found["flush.messages"] == flush
    assert found["cleanup.policy"] == "delete sensitive=false synonyms={DEFAULT_CONFIG:log.cleanup.policy=delete}"
    assert found["segment.ms"] == "604800000 sensitive=false synonyms={}"
    assert found[f"{LEADER}.replicas"] == " sensitive=false synonyms={}"
    # segment.ms was never set; both are fine to delete.
    assert tools.run(CONFIGS, "--alter", *which, "--delete-config", "retention.ms,segment.ms") == (0, changed, "")
    cluster.eventually(lambda: tools.out(CONFIGS, "--describe", *which) == f"{head}  flush.messages={flush}\n")


def test_kafka_configs_of_a_broker(cluster: Cluster, tools: Tools, clean: None) -> None:
    which = ("--entity-type", "brokers", "--entity-name", "2")
    changed = "Completed updating config for broker 2.\n"
    assert tools.run(CONFIGS, "--alter", *which, "--add-config", f"{MOVE_RATE}=5000,log.retention.ms=60000000") == (
        0,
        changed,
        "",
    )
    rate = f"5000 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{MOVE_RATE}=5000}}"
    retention = (
        "60000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=60000000, "
        "DEFAULT_CONFIG:log.retention.hours=168}"
    )
    expected = f"Dynamic configs for broker 2 are:\n  log.retention.ms={retention}\n  {MOVE_RATE}={rate}\n"
    cluster.eventually(lambda: tools.run(CONFIGS, "--describe", *which) == (0, expected, ""))
    every = tools.out(CONFIGS, "--describe", "--all", *which)
    assert every.startswith("All configs for broker 2 are:\n")
    found = lines(every)
    assert (found[MOVE_RATE], found["log.retention.ms"]) == (rate, retention)
    assert found["log.retention.minutes"] == "null sensitive=false synonyms={}"
    assert found["num.partitions"] == "1 sensitive=false synonyms={DEFAULT_CONFIG:num.partitions=1}"
    assert found["node.id"] == "2 sensitive=false synonyms={STATIC_BROKER_CONFIG:node.id=2}"
    assert {name for name, key in BROKER.items() if key.scope is not Scope.RATE} - OURS <= set(found)
    assert tools.run(CONFIGS, "--alter", *which, "--delete-config", f"{MOVE_RATE},log.retention.ms") == (0, changed, "")
    head = "Dynamic configs for broker 2 are:\n"
    cluster.eventually(lambda: tools.out(CONFIGS, "--describe", *which) == head)


def test_kafka_configs_of_all_brokers(cluster: Cluster, tools: Tools, clean: None) -> None:
    which = ("--entity-type", "brokers", "--entity-default")
    changed = "Completed updating default config for brokers in the cluster.\n"
    assert tools.run(CONFIGS, "--alter", *which, "--add-config", f"{MOVE_RATE}=7000") == (0, changed, "")
    line = f"7000 sensitive=false synonyms={{DYNAMIC_DEFAULT_BROKER_CONFIG:{MOVE_RATE}=7000}}"

    def default() -> dict[str, str]:
        out = tools.out(CONFIGS, "--describe", *which)
        assert out.startswith("Default configs for brokers in the cluster are:\n")
        return {name: rest for name, rest in lines(out).items() if name != BY_KAFKA}

    cluster.eventually(lambda: default() == {MOVE_RATE: line})
    out = tools.out(CONFIGS, "--describe", "--entity-type", "brokers")
    heads = [f"Dynamic configs for broker {node} are:" for node in NODES]
    assert set(heads) < set(out.splitlines()) and "Default configs for brokers in the cluster are:" in out
    assert tools.run(CONFIGS, "--alter", *which, "--delete-config", MOVE_RATE) == (0, changed, "")
    cluster.eventually(lambda: default() == {})


def test_what_kafka_configs_says_of_mistakes(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic()
    for kind, name, change, why in (
        ("topics", topic, "no.such=4", "InvalidConfigurationException: Unknown topic config name: no.such"),
        ("topics", topic, "retention.ms=x", f"InvalidConfigurationException: {number('retention.ms', 'x', 'LONG')}"),
        (
            "topics",
            "nothing",
            "retention.ms=5",
            "UnknownTopicOrPartitionException: The topic 'nothing' does not exist.",
        ),
        ("brokers", "1", "log.dirs=/x", "InvalidRequestException: Cannot update these configs dynamically: [log.dirs]"),
    ):
        which = ("--entity-type", kind, "--entity-name", name)
        code, out, err = tools.run(CONFIGS, "--alter", *which, "--add-config", change)
        assert code == 1 and out == "" and f"org.apache.kafka.common.errors.{why}" in err, err
    for kind, name in (("topic", "nothing"), ("broker", "9")):
        out = tools.out(CONFIGS, "--describe", "--entity-type", f"{kind}s", "--entity-name", name)
        assert out == f"The {kind} '{name}' doesn't exist and doesn't have dynamic config.\n"
    assert tools.run(CONFIGS, "--describe", "--entity-type", "client-metrics") == (0, "", "")
