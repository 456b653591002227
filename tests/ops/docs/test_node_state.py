"""The page about a node's state has the fields that `rehome node` returns, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from activities.temporal.client_state import ClientState
from ops.cli import main as cli
from ops.docs import node_state
from ops.docs.node_state import CONNECTIONS, STATUS, Field
from tests.support.nodes.node_harness import running
from tests.support.wire import Client

PAGE = Path(node_state.__file__).with_name("node-state.md")


def test_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == node_state.page(), (
        "print it again: python -m ops.docs.node_state > ops/docs/node-state.md"
    )


def fields_of(value: Any, table: Mapping[str, Field], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a response with their values, as deep as the table names any."""
    if name in table:
        yield name, value
    if isinstance(value, dict) and (not name or any(each.startswith(f"{name}.") for each in table)):
        for key, each in value.items():
            yield from fields_of(each, table, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and any(each.startswith(f"{name}[].") for each in table):
        for key, each in ((key, each) for row in value for key, each in row.items()):
            yield from fields_of(each, table, f"{name}[].{key}")
    elif name not in table:
        yield name, value


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "number": (int, float),
    "string": str,
    "boolean": bool,
    "list": list,
    "object": dict,
    "null": type(None),
}


@pytest.mark.parametrize(("command", "table"), [("status", STATUS), ("connections", CONNECTIONS)])
def test_node_returns_the_documented_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, table: Mapping[str, Field]
) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("t", 2)
        harness.node.dirs.by_path(harness.directory_of("t", 1)).fail("I/O error")
        harness.node.dirs.directory_ids += ("an-id-that-none-has",)
        harness.node.controller_client = ClientState(True, 0.0).as_dict
        client = Client(harness)
        assert cli.run(["node", command, "1", "--bootstrap-server", harness.bootstrap, "--json"]) == 0
        found = list(fields_of(json.loads(capsys.readouterr().out), table))
        client.close()
    assert {name for name, _ in found} == set(table)
    for name, value in found:
        assert any(isinstance(value, _TYPES[each]) for each in table[name].type.split(" or ")), f"{name} is {value!r}"
