"""Configs of many topics in one request: described by a thread, altered together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from storage_node.config.changes import Op
from storage_node.protocol.apis import configs
from tests.storage_node.protocol.apis.config_node import BROKER, LOGGER, TOPIC, Node, configured

TOPICS = [f"many-{index}" for index in range(6)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    for node in configured(tmp_path_factory.mktemp("many")):
        for name in TOPICS:
            node.harness.create_topic(name)
        node.set(TOPIC, TOPICS[1], "retention.ms", "1234567")
        yield node


def change(node: Node, wanted: list[tuple[int, str, str, str]], **more: Any) -> list[tuple[str, int]]:
    """Set a key of each (type, name, key, value); returns names and error codes in the response's order."""
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": Op.SET, "value": value}],
        }
        for kind, name, key, value in wanted
    ]
    rows = node.client.ask(44, 1, {"resources": resources, "validate_only": False} | more).responses
    return [(row.resource_name, int(row.error_code)) for row in rows]


def test_changes_of_one_request_wait_for_the_controller_together(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = node.harness.controller
    real, asked, all_there = controller.alter_configs, [], asyncio.Event()

    async def together(kind: str, name: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        if len(asked) == len(TOPICS) + 1:
            all_there.set()
        await all_there.wait()
        return await real(kind, name, *args, **kwargs)

    monkeypatch.setattr(controller, "alter_configs", together)
    wanted = [(TOPIC, name, "flush.messages", f"{index + 1}") for index, name in enumerate(TOPICS)]
    wanted.insert(2, (TOPIC, "t", "flush.messages", "9"))
    wanted.insert(3, (LOGGER, "1", "x", "y"))
    wanted.insert(4, (TOPIC, "t", "flush.messages", "9"))
    wanted.insert(5, (TOPIC, "t", "segment.bytes", "text"))
    wanted.insert(6, (BROKER, "", "log.flush.interval.messages", "77"))
    wanted.insert(7, (TOPIC, "no-such-topic", "nonsense", "9"))
    answer = change(node, wanted)
    assert [name for name, _ in answer] == [name for _, name, _, _ in wanted]
    refused = {"t": 42, "1": 42, "no-such-topic": 40}
    assert [code for _, code in answer] == [refused.get(name, 0) for _, name, _, _ in wanted]
    values = [node.describe(TOPIC, name, ["flush.messages"])["flush.messages"].value for name in TOPICS]
    assert values == [str(index + 1) for index in range(len(TOPICS))]


def test_concurrent_changes_do_not_exceed_one_update(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = node.harness.controller
    real, under_way, most = controller.alter_configs, 0, 0

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal under_way, most
        under_way, most = under_way + 1, max(most, under_way + 1)
        for _ in range(10):
            await asyncio.sleep(0)
        under_way -= 1
        return await real(*args, **kwargs)

    monkeypatch.setattr(controller, "alter_configs", counted)
    monkeypatch.setattr(configs, "AT_ONCE", 2)
    assert {code for _, code in change(node, [(TOPIC, name, "flush.ms", "5") for name in TOPICS])} == {0}
    assert most == 2


def test_configs_are_described_beside_the_listeners_loop(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    real, makers = configs._results, []

    def noted(*args: Any) -> Any:
        makers.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(configs, "_results", noted)
    listener = f"listener-{node.harness.node.id}"

    def ask(resources: list[tuple[int, str, list[str] | None]]) -> list[Any]:
        rows = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
        ]
        values = {"resources": rows, "include_synonyms": True, "include_documentation": True}
        return list(node.client.ask(32, 4, values).results)

    resources: list[tuple[int, str, list[str] | None]] = [(TOPIC, name, None) for name in TOPICS]
    resources += [(TOPIC, "no-such-topic", None), (BROKER, "1", None), (BROKER, "7", None), (LOGGER, "1", None)]
    resources += [(TOPIC, TOPICS[1], ["retention.ms"]), (TOPIC, "a b", None), (BROKER, "", None)]
    together = ask(resources)
    assert together == [ask([one])[0] for one in resources], "the same as of single requests"
    assert [int(row.error_code) for row in together] == [0] * len(TOPICS) + [3, 0, 42, 42, 0, 17, 0]
    kept = {row.name: row.value for row in together[1].configs}
    assert (kept["retention.ms"], len(kept) > 25) == ("1234567", True)
    many = ask([(TOPIC, TOPICS[index % 6], ["retention.ms"]) for index in range(60)])
    assert [len(row.configs) for row in many] == [1] * 60
    assert listener not in makers
