"""What a cluster refuses to set or to say is an error of the command, whatever the client makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops.cli.kafka_admin import KafkaAdmin
from ops.stack.errors import OpsError
from storage_node.config.table import MOVE_RATE
from tests.support.nodes.node_harness import running


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaAdmin]:
    with running(tmp_path_factory.mktemp("node")) as harness:
        harness.create_topic("orders")
        with KafkaAdmin(harness.bootstrap) as client:
            yield client


def test_configs_returns_dynamic_configs(admin: KafkaAdmin) -> None:
    admin.set_node_config(1, {MOVE_RATE: "1000000"})
    assert admin.configs("broker", ["1"])["1"][MOVE_RATE] == "1000000"
    admin.change_configs("topic", {"orders": {"retention.ms": ("SET", "60000")}})
    assert admin.configs("topic", ["orders"])["orders"]["retention.ms"] == "60000"


def test_rejected_node_config_raises_with_the_reason(admin: KafkaAdmin) -> None:
    with pytest.raises(OpsError, match=f"cannot set {MOVE_RATE} on node 1: .*much") as raised:
        admin.set_node_config(1, {MOVE_RATE: "much"})
    assert "much" in str(raised.value)


def test_rejected_config_among_several_is_named(admin: KafkaAdmin) -> None:
    changes = {"orders": {"retention.ms": ("SET", "70000")}, "nothing": {"retention.ms": ("SET", "1")}}
    with pytest.raises(OpsError, match=r"cannot change the configs of topic orders, nothing: .*\(nothing\)"):
        admin.change_configs("topic", changes)


def test_configs_of_an_unknown_topic_fails(admin: KafkaAdmin) -> None:
    with pytest.raises(OpsError, match="cannot describe the configs of topic nothing"):
        admin.configs("topic", ["orders", "nothing"])


def test_log_dirs_fails_if_a_node_returns_none(admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    (described,) = admin.log_dirs([1])[:1]
    assert described.node == 1 and not described.error
    monkeypatch.setattr(admin._client, "describe_log_dirs", lambda _, brokers: [{"broker": 1, "log_dirs": []}])
    with pytest.raises(OpsError, match="node 1 did not return its log directories"):
        admin.log_dirs([1])
