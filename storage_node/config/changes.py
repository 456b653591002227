"""Check changes of topic and broker configs, in Apache Kafka's order and with its messages."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from storage_node.config.rules import BadValue, Kind, listed
from storage_node.config.table import BROKER, CORDONED, MOVE_RATE, TOPIC, Key, Scope
from storage_node.config.values import BrokerValues, check, plain
from storage_node.errors import RequestRefused
from storage_node.log.config import LogConfig
from storage_node.model.commands import ListChange
from storage_node.model.error_codes import ErrorCode
from storage_node.model.metadata import TopicImage

_log = logging.getLogger(__name__)

#: No limit, as Kafka encodes it (Long.MAX_VALUE).
UNLIMITED = 2**63 - 1
#: All log directories, in cordoned.log.dirs.
EVERY = "*"


class Op(IntEnum):
    """The operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One key of a request, with its operation and the operand."""

    name: str
    op: int
    value: str | None


def check_form(changes: Iterable[Change]) -> None:
    """Raise RequestRefused (INVALID_REQUEST) for a duplicate key and for a missing value."""
    rows = list(changes)
    if len({row.name for row in rows}) != len(rows):
        raise RequestRefused("Error due to duplicate config keys", ErrorCode.INVALID_REQUEST)
    missing = [row.name for row in rows if row.op != Op.DELETE and row.value is None]
    if missing:
        raise RequestRefused(f"Null value not supported for : {', '.join(missing)}", ErrorCode.INVALID_REQUEST)


def resolve(
    changes: Iterable[Change], current: Mapping[str, str], keys: Mapping[str, Key], kind: str
) -> dict[str, str | None]:
    """Return operations as plain values (None: back to the default); raises RequestRefused."""
    result: dict[str, str | None] = {}
    for row in changes:
        if row.op == Op.DELETE:
            result[row.name] = None
        elif row.op == Op.SET:
            result[row.name] = row.value
        elif row.op in (Op.APPEND, Op.SUBTRACT):
            key = keys.get(row.name)
            if key is None or key.kind is not Kind.LIST:
                raise RequestRefused(_no_list(row, kind), ErrorCode.INVALID_CONFIG)
            items = [item for item in current.get(row.name, key.default or "").split(",") if item]
            named = (row.value or "").split(",")
            if row.op == Op.APPEND:
                items += [item for item in dict.fromkeys(named) if item not in items]
            else:
                for item in named:
                    if item in items:
                        items.remove(item)
            result[row.name] = ",".join(items)
        else:
            raise RequestRefused(f"Unknown operations type {row.op}", ErrorCode.INVALID_REQUEST)
    return result


def list_changes(changes: Iterable[Change]) -> dict[str, ListChange]:
    """Return a request's changes of lists of throttled replicas, so that concurrent changes of a list are all kept."""
    return {
        row.name: _list_change(row)
        for row in changes
        if row.op in (Op.APPEND, Op.SUBTRACT) and row.name in TOPIC and TOPIC[row.name].default == ""
    }


def _list_change(row: Change) -> ListChange:
    items = tuple(item.strip() for item in (row.value or "").split(",") if item.strip())
    return ListChange(append=items) if row.op == Op.APPEND else ListChange(subtract=items)


def _no_list(row: Change, kind: str) -> str:
    op = Op(row.op).name
    if kind == "topic":
        return f"Can't {op} to key {row.name} because its type is not LIST."
    if row.name not in BROKER or BROKER[row.name].scope is Scope.RATE:
        return f"Unknown config name: {row.name}"
    return f"Config value {op.lower()} is not allowed for config key: {row.name}"


def check_topic(configs: Mapping[str, str], broker: BrokerValues | None = None) -> None:
    """Raise RequestRefused (INVALID_CONFIG) for an unknown name or a value that is not valid for a topic.

    `configs` are all that the topic will have; `broker` has the values of the others.
    """
    for name in configs:
        if name not in TOPIC:
            raise RequestRefused(f"Unknown topic config name: {name}", ErrorCode.INVALID_CONFIG)
    if plain(TOPIC[_TIERED], configs.get(_TIERED, "false")) == "true":
        raise RequestRefused(_NO_TIERS, ErrorCode.INVALID_CONFIG)
    try:
        for name, value in configs.items():
            check(TOPIC[name], value)
    except BadValue as error:
        raise RequestRefused(str(error), ErrorCode.INVALID_CONFIG) from error
    held = {**(broker.log_values() if broker else {}), **configs}
    least, most = (int(held.get(name) or TOPIC[name].default or 0) for name in _LAGS)
    if least > most:
        message = f"conflict topic config setting {_LAGS[0]} ({least}) > {_LAGS[1]} ({most})"
        raise RequestRefused(message, ErrorCode.INVALID_CONFIG)


_TIERED = "remote.storage.enable"
_NO_TIERS = (
    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
)
_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def check_broker(configs: Mapping[str, str | None], log_dirs: Iterable[str] | None) -> None:
    """Raise RequestRefused for a broker config that cannot be changed while running, or for a value that is not valid.

    `log_dirs` are those of the named broker; None where the configs are for all brokers. As in Kafka, both errors are
    INVALID_REQUEST, and deleting a config that is not set has no effect.
    """
    given = {name: value for name, value in configs.items() if value is not None}
    fixed = [name for name in given if name in BROKER and BROKER[name].scope is Scope.READ_ONLY]
    if fixed:
        message = f"Cannot update these configs dynamically: {listed(fixed)}"
        raise RequestRefused(message, ErrorCode.INVALID_REQUEST)
    single = [name for name in given if name in BROKER and BROKER[name].scope is Scope.PER_BROKER]
    if single and log_dirs is None:
        message = f"Cannot update these configs at default cluster level, broker id must be specified: {listed(single)}"
        raise RequestRefused(message, ErrorCode.INVALID_REQUEST)
    _check_cordoned(given.get(CORDONED, ""), log_dirs or ())
    for name, value in given.items():
        if name not in BROKER:
            close = difflib.get_close_matches(name, BROKER, n=1, cutoff=0.8)
            hint = f"; did you mean {close[0]}?" if close else ""
            message = f"The broker config {name} has no effect here and is not kept{hint}"
            raise RequestRefused(message, ErrorCode.INVALID_CONFIG)
        try:
            check(BROKER[name], value)
        except BadValue as error:
            raise RequestRefused(str(error), ErrorCode.INVALID_REQUEST) from error


def _check_cordoned(value: str, log_dirs: Iterable[str]) -> None:
    missing = sorted(set(named(value)) - {*log_dirs, EVERY})
    if missing:
        message = (
            "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )
        raise RequestRefused(message, ErrorCode.INVALID_REQUEST)


def named(value: str) -> tuple[str, ...]:
    """Return the entries of a list."""
    return tuple(item for item in (part.strip() for part in value.split(",")) if item)


def cordoned(broker: BrokerValues, log_dirs: Iterable[str]) -> frozenset[str]:
    """Return the log directories that get neither new replicas nor copies of them."""
    entries = named(broker.effective().get(CORDONED, ""))
    return frozenset(log_dirs) if EVERY in entries else frozenset(entries)


def move_rate(broker: BrokerValues) -> int | None:
    """Return the node's rate of moves, bytes per second; None without a limit."""
    return rate(broker.effective().get(MOVE_RATE))


def rate(text: str | None) -> int | None:
    """Return the bytes per second of a config, None if unlimited or not set. Kafka's 0 stalls replicas, as 1 does."""
    value = int(text) if text is not None else UNLIMITED
    return None if value >= UNLIMITED else max(1, value)


def log_config(broker: BrokerValues) -> LogConfig:
    """Return the log settings of a topic without configs of its own."""
    return LogConfig.from_topic(broker.log_values(), LogConfig())


def topic_config(topic: TopicImage, defaults: LogConfig) -> LogConfig:
    """Return a topic's log config; an unusable value (of a newer controller) is logged and replaced, not fatal."""
    try:
        return LogConfig.from_topic(topic.configs, defaults)
    except RequestRefused as error:
        _log.error("configs of topic %s: %s", topic.name, error)
        return defaults
