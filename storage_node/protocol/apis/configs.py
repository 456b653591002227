"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources, for topics and this broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from storage_node.config.changes import Change, Op, check_form
from storage_node.config.docs import documentation
from storage_node.config.keys import real_name
from storage_node.config.values import BrokerValues, Described, describe_broker, describe_default, describe_topic
from storage_node.directories.names import validate_topic
from storage_node.errors import RequestRefused
from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import TopicImage
from storage_node.protocol.host import AdminHost, MetadataHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.request import Request

TOPIC = 2
BROKER = 4
CLIENT_METRICS = 16
GROUP = 32
KINDS = {TOPIC: "topic", BROKER: "broker"}
NAMES = {8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}

#: How many resources of one request are changed concurrently: as many as the controller accepts in one update.
AT_ONCE = 500


def _unsupported(kind: int) -> RequestRefused:
    if kind in NAMES:
        message = f"Configs of resources of type {NAMES[kind]} are not supported here; those of TOPIC and BROKER are"
        return RequestRefused(message, ErrorCode.INVALID_REQUEST)
    return RequestRefused(f"Unknown resource type {kind}", ErrorCode.INVALID_REQUEST)


class ConfigsHost(AdminHost, Protocol):
    """The node, as the requests for configs see it."""

    def broker_values(self, image: ClusterImage | None = None) -> BrokerValues:
        """Return this broker's configs: its own, those of all brokers and server.properties."""
        ...


async def describe_configs(node: ConfigsHost, request: Request) -> Answer:
    """Return the configs of the requested resources, or the requested keys of them, each with its source."""
    call = request.decode()
    requested = [
        (one.resource_type, one.resource_name, frozenset(one.configuration_keys or ())) for one in call.resources
    ]
    known = Known(node.id, node.metadata.image.topics, node.broker_values())
    documented = bool(getattr(call, "include_documentation", False))

    return request.encode(results=_results(known, requested, bool(call.include_synonyms), documented))


@dataclass(frozen=True, slots=True)
class Known:
    """The source of the configs in one response: this node's id, the topics, the broker's values."""

    node: int
    topics: Mapping[str, TopicImage]
    values: BrokerValues


Wanted = tuple[int, str, frozenset[str]]
"""A resource's type and name, and the requested keys; an empty set requests all."""


def _results(known: Known, asked: Sequence[Wanted], synonyms: bool, documented: bool) -> list[dict[str, Any]]:
    """Return the results of DescribeConfigs. Reads immutable values only: any thread may call it."""
    results = []
    # Most topics have the same configs.
    made: dict[tuple[frozenset[tuple[str, str]], frozenset[str]], list[dict[str, Any]]] = {}
    for kind, name, keys in asked:
        row: dict[str, Any] = {"resource_type": kind, "resource_name": name}
        try:
            configs = _topic_configs(known, name) if kind == TOPIC else None
            if configs is None:
                rows = _rows(_describe(known, kind, name), keys, synonyms, documented)
            else:
                same = frozenset(configs.items()), keys
                if same not in made:
                    made[same] = _rows(describe_topic(configs, known.values), keys, synonyms, documented)
                rows = made[same]
            results.append(row | {"configs": rows})
        except RequestRefused as error:
            results.append(row | {"error_code": error.code, "error_message": error.message})
    return results


def _rows(
    described: Iterable[Described], keys: frozenset[str], synonyms: bool, documented: bool
) -> list[dict[str, Any]]:
    wanted = sorted((one for one in described if not keys or one.name in keys), key=lambda one: one.name)
    return [_row(one, synonyms, documented) for one in wanted]


def _topic_configs(known: Known, name: str) -> Mapping[str, str]:
    validate_topic(name)
    topic = known.topics.get(name)
    if topic is None:
        raise RequestRefused("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # Kafka sends no message either
    return topic.configs


def _describe(known: Known, kind: int, name: str) -> Iterable[Described]:
    if kind == BROKER:
        if not name:
            return describe_default(known.values)
        if _broker_id(name) == known.node:
            return describe_broker(known.values)
        message = f"Unexpected broker id, expected {known.node} or empty string, but received {name}"
        raise RequestRefused(message, ErrorCode.INVALID_REQUEST)
    if kind in (CLIENT_METRICS, GROUP):
        if not name:
            what = "Group name" if kind == GROUP else "Client metrics subscription name"
            raise RequestRefused(f"{what} must not be empty", ErrorCode.INVALID_REQUEST)
        return ()
    raise _unsupported(kind)


def _broker_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        message = f"Broker id must be an integer, but it is: {name}"
        raise RequestRefused(message, ErrorCode.INVALID_REQUEST) from None


def _row(one: Described, synonyms: bool, documented: bool) -> dict[str, Any]:
    return {
        "name": one.name,
        "value": one.value,
        "read_only": one.read_only,
        "config_source": int(one.source),
        "is_sensitive": one.sensitive,
        "config_type": int(one.kind),
        "documentation": documentation(one.name) if documented else None,
        "synonyms": [{"name": each.name, "value": each.value, "source": int(each.source)} for each in one.synonyms]
        if synonyms
        else [],
    }


async def incremental_alter_configs(node: AdminHost, request: Request) -> Answer:
    """Change configs of topics, this broker or the cluster-wide broker default; each resource has its own result."""
    call = request.decode()

    async def change(kind: str, name: str, changes: Sequence[Change]) -> None:
        await node.admin.alter_configs(kind, name, changes, call.validate_only)

    return await _alter(request, call.resources, change)


async def alter_configs(node: AdminHost, request: Request) -> Answer:
    """Replace the configs of topics, this broker or the cluster-wide broker default; keys not named are removed."""
    call = request.decode()

    async def change(kind: str, name: str, changes: Sequence[Change]) -> None:
        await node.admin.replace_configs(kind, name, {row.name: row.value for row in changes}, call.validate_only)

    return await _alter(request, call.resources, change)


async def _alter(
    request: Request, resources: Sequence[Any], change: Callable[[str, str, Sequence[Change]], Awaitable[None]]
) -> Answer:
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(resource: Any) -> dict[str, Any]:
        kind, name = resource.resource_type, resource.resource_name
        row = {"resource_type": kind, "resource_name": name, "error_message": None}
        try:
            if times[kind, name] > 1:
                raise RequestRefused("Each resource must appear at most once.", ErrorCode.INVALID_REQUEST)
            changes = [_change(kind, config) for config in resource.configs]
            check_form(changes)
            if kind not in KINDS:
                raise _unsupported(kind)
            async with gate:
                await change(KINDS[kind], name, changes)
        except RequestRefused as error:
            row |= {"error_code": error.code, "error_message": error.message}
        return row

    # Concurrently, so that the node sends the changes to the controller in one update.
    rows = await asyncio.gather(*map(one, resources))
    return request.encode(responses=rows)


def _change(kind: int, config: Any) -> Change:
    name = real_name(config.name) if kind == BROKER else config.name
    return Change(name, getattr(config, "config_operation", Op.SET), config.value)


async def list_config_resources(node: MetadataHost, request: Request) -> Answer:
    """Return the resources that have configs (KIP-1142): topics and brokers. No other type exists on this node."""
    call = request.decode()
    image = node.metadata.image
    known = {TOPIC: sorted(image.topics), BROKER: [str(one) for one in sorted(image.nodes)]}
    if request.version == 0:
        return request.encode(config_resources=[])
    rows = [
        {"resource_name": name, "resource_type": kind}
        for kind, names in known.items()
        if not call.resource_types or kind in call.resource_types
        for name in names
    ]
    return request.encode(config_resources=rows)
