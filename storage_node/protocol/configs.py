"""DescribeConfigs and IncrementalAlterConfigs: topic configs and the broker's dynamic ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storage_node.config_keys import DEFAULTS
from storage_node.errors import ErrorCode, RequestRefused
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request
from storage_node.topic_configs import BROKER_KEYS, TOPIC_KEYS, Kind, Source

if TYPE_CHECKING:
    from storage_node.node import Node

TOPIC = 2
BROKER = 4
KINDS = {TOPIC: "topic", BROKER: "broker"}

#: (value, where from), the one that holds first.
Values = list[tuple[str, str, Source]]


async def describe_configs(node: Node, request: Request) -> Answer:
    """Every config of the resources asked for, or the keys named, with where each value comes from."""
    call = request.decode()
    results = []
    for resource in call.resources:
        row: dict[str, Any] = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            entries = _describe(node, resource.resource_type, resource.resource_name)
        except RequestRefused as error:
            results.append(row | {"error_code": error.code, "error_message": error.message})
            continue
        asked = resource.configuration_keys
        synonyms = bool(call.include_synonyms)
        configs = [
            _row(name, kind, read_only, values, synonyms)
            for name, (kind, read_only, values) in sorted(entries.items())
            if asked is None or name in asked
        ]
        results.append(row | {"configs": configs})
    return request.encode(results=results)


Entries = dict[str, tuple[Kind, bool, Values]]


def _describe(node: Node, kind: int, name: str) -> Entries:
    if kind == TOPIC:
        return _topic(node, name)
    if kind == BROKER:
        return _broker(node, name)
    raise RequestRefused(f"resources of type {kind} have no configs here", ErrorCode.INVALID_REQUEST)


def _topic(node: Node, name: str) -> Entries:
    topic = node.metadata.image.topics.get(name)
    if topic is None:
        raise RequestRefused(f"Unknown topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    entries: Entries = {}
    for key, entry in TOPIC_KEYS.items():
        values: Values = []
        if key in topic.configs:
            values.append((key, topic.configs[key], Source.TOPIC))
        if key in node.config.topic_defaults:
            values.append((key, node.config.topic_defaults[key], Source.STATIC_BROKER))
        values.append((key, entry.default, Source.DEFAULT))
        entries[key] = (entry.kind, False, values)
    return entries


def _broker(node: Node, name: str) -> Entries:
    if name and name != str(node.id):
        message = f"Unexpected broker id, expected {node.id} or empty string, but received {name}"
        raise RequestRefused(message, ErrorCode.INVALID_REQUEST)
    configs = node.metadata.image.configs
    own: Mapping[str, str] = configs.get(("broker", str(node.id)), {}) if name else {}
    default = configs.get(("broker", ""), {})
    entries: Entries = {}
    if name:
        for key, fallback in {"node.id": None, "log.dirs": None, **DEFAULTS}.items():
            if key in BROKER_KEYS:
                continue
            static: Values = []
            if key in node.config.values:
                static.append((key, node.config.values[key], Source.STATIC_BROKER))
            if fallback is not None:
                static.append((key, fallback, Source.DEFAULT))
            if static:
                entries[key] = (Kind.STRING, True, static)
    for key, entry in BROKER_KEYS.items():
        values: Values = []
        if key in own:
            values.append((key, own[key], Source.BROKER))
        if key in default:
            values.append((key, default[key], Source.DEFAULT_BROKER))
        if name and key in node.config.values:
            values.append((key, node.config.values[key], Source.STATIC_BROKER))
        if name:
            values.append((key, entry.default, Source.DEFAULT))
        if values:
            entries[key] = (entry.kind, False, values)
    return entries


def _row(name: str, kind: Kind, read_only: bool, values: Values, synonyms: bool) -> dict[str, Any]:
    _, value, source = values[0]
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": int(source),
        "config_type": int(kind),
        "synonyms": [{"name": key, "value": text, "source": int(where)} for key, text, where in values]
        if synonyms
        else [],
    }


async def incremental_alter_configs(node: Node, request: Request) -> Answer:
    """Change configs of topics, of this broker or of the brokers' default; each resource with its own result."""
    call = request.decode()
    rows = []
    for resource in call.resources:
        row = {"resource_type": resource.resource_type, "resource_name": resource.resource_name, "error_message": None}
        try:
            kind = KINDS.get(resource.resource_type)
            if kind is None:
                message = f"resources of type {resource.resource_type} have no configs here"
                raise RequestRefused(message, ErrorCode.INVALID_REQUEST)
            changes = {config.name: (config.config_operation, config.value) for config in resource.configs}
            if len(changes) != len(resource.configs):
                raise RequestRefused("Error due to duplicate config keys", ErrorCode.INVALID_REQUEST)
            await node.admin.alter_configs(kind, resource.resource_name, changes, call.validate_only)
        except RequestRefused as error:
            row |= {"error_code": error.code, "error_message": error.message}
        rows.append(row)
    return request.encode(responses=rows)
