"""The reference of the configs, generated from the node's own table: `python -m tests.support.configuration`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from storage_node.config.docs import documentation
from storage_node.config.rules import Level, OneOf, Range, Rule
from storage_node.config.table import BROKER, PROPOSED, TOPIC, Key, Scope

PAGE = Path(__file__).parents[2] / "ops" / "docs" / "configuration.md"

_HEAD = """# Configuration

<!-- generated from the node's table of configs by `python -m tests.support.configuration`; a test compares -->

Kafka's names in a server.properties file. Names, types, defaults and limits are those of Apache Kafka 4.3, except
rehome's own configs and the defaults in [differences.md](differences.md). `kafka-configs` changes what can be changed
while a node runs.
"""


def page() -> str:
    """Return the page: the configs of topics, those of brokers, and the names of KIP-113 for them."""
    topic = _table(
        ("topic config", "type", "default", "allowed", "in server.properties", "meaning"),
        ((*_cells(key), _names(key.synonyms), _meaning(key)) for key in TOPIC.values()),
    )
    broker = _table(
        ("broker config", "type", "default", "allowed", "changed by", "meaning"),
        ((*_cells(key), _changed_by(key.scope), _meaning(key)) for key in BROKER.values()),
    )
    proposed = _table(
        ("name in KIP-113", "accepted as"), ((f"`{old}`", f"`{new}`") for old, new in sorted(PROPOSED.items()))
    )
    return f"{_HEAD}\n## Topics\n\n{topic}\n## Brokers\n\n{broker}\n## Names of KIP-113\n\n{proposed}"


def _meaning(key: Key) -> str:
    meaning = documentation(key.name) or ""
    return meaning.removesuffix(f" For topics that have no {key.name} of their own.")


def _cells(key: Key) -> tuple[str, str, str, str]:
    default = "–" if key.default is None else f"`{key.default}`" if key.default else "empty"
    return f"`{key.name}`", key.kind.name.lower(), default, _allowed(key)


def _allowed(key: Key) -> str:
    """Return the values that a node accepts; where Kafka accepts more, the reason follows."""
    if key.only:
        return f"{_names(key.only)}: {key.why}"
    return _rule(key.rule)


def _rule(rule: Rule | None) -> str:
    if rule is None:
        return "any"
    if isinstance(rule, Range):
        return f"at least {rule.low}" if rule.high is None else f"{rule.low} to {rule.high}"
    if isinstance(rule, Level):
        return f"{rule.low} to {rule.high}, or -1"
    if isinstance(rule, OneOf):
        return _names(rule.words)
    return "`*`, or partition:broker pairs"


def _changed_by(scope: Scope) -> str:
    return {
        Scope.READ_ONLY: "server.properties",
        Scope.CLUSTER_WIDE: "a broker's configs, or the default of all",
        Scope.PER_BROKER: "a broker's configs",
        Scope.RATE: "a broker's configs, or the default of all",
    }[scope]


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "–"


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(columns)
    lines = [_line(head), "|" + "---|" * len(head), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
