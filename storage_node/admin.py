"""Handle clients' changes of the metadata: check them, send them to the controller, respond once they are applied."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from storage_node.config import changes as config_changes
from storage_node.config.changes import Change
from storage_node.config.node_config import NodeConfig
from storage_node.config.table import BROKER, TOPIC
from storage_node.config.values import BrokerValues, Described, plain, topic_values
from storage_node.directories.manager import DirectoryManager
from storage_node.directories.names import validate_topic
from storage_node.errors import MAY_COME, RequestRefused, RequestTimedOut
from storage_node.metadata.cache import MetadataCache
from storage_node.model.assignment import assignment_problem
from storage_node.model.commands import ListChange, MorePartitions, NewTopic, Reassign
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.ports import ChangeResult, Controller
from storage_node.printable import printable

log = logging.getLogger(__name__)

#: Seconds where a request has no timeout of its own.
DEFAULT_TIMEOUT = 10.0
LONGEST_TIMEOUT = 600.0
#: Seconds in which a controller whose own timeout has passed can still report what it knows of the change.
ANSWER_SLACK = 2.0
#: Producer ids reserved at a time: one change of the metadata for many producers.
PRODUCER_ID_BLOCK = 1000

MOST_PARTITIONS = 10_000

_Ask = Callable[[float], Awaitable[list[ChangeResult]]]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as a client requests it; -1 means the node's defaults. `named` counts assignments."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    named: int = 0


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result for one topic."""

    error: int = 0
    message: str = ""
    topic_id: str = ""
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[Described, ...] = ()


class AdminHost(Protocol):
    """The node, as the changes of the metadata use it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def controller(self) -> Controller | None: ...

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    def broker_values(self, image: ClusterImage | None = None) -> BrokerValues:
        """Return this broker's configs: its own, those of all brokers and server.properties."""
        ...


class Admin:
    """The changes of the metadata. Runs on the listener's loop and on those beside it."""

    def __init__(self, node: AdminHost) -> None:
        self._node = node

    def controller(self) -> Controller:
        """Return the controller; raises RequestTimedOut while there is none."""
        controller = self._node.controller
        if controller is None:
            raise RequestTimedOut("this node has no controller yet")
        return controller

    async def create_topics(self, specs: Sequence[TopicSpec], validate_only: bool, seconds: float) -> list[TopicResult]:
        """Create topics; return one result per topic, in order, within `seconds`."""
        deadline = _deadline(seconds)
        results: list[TopicResult | None] = [None] * len(specs)
        wanted: list[tuple[int, NewTopic]] = []
        for index, spec in enumerate(specs):
            try:
                wanted.append((index, self._new_topic(spec)))
            except RequestRefused as error:
                results[index] = TopicResult(error.code, error.message)
        if wanted:
            topics = [topic for _, topic in wanted]
            responses = await self._change(
                len(topics),
                deadline,
                lambda left: self.controller().create_topics(topics, validate_only=validate_only, timeout=left),
                wait=not validate_only,
            )
            for (index, topic), response in zip(wanted, responses, strict=True):
                results[index] = self._created(topic, response)
        return [result or TopicResult(ErrorCode.UNKNOWN_SERVER_ERROR) for result in results]

    def _new_topic(self, spec: TopicSpec) -> NewTopic:
        config = self._node.config
        validate_topic(spec.name)
        missing = [name for name, value in spec.configs.items() if value is None]
        if missing:
            message = f"Null value not supported for topic configs: {','.join(missing)}"
            raise RequestRefused(message, ErrorCode.INVALID_CONFIG)
        values = {name: value for name, value in spec.configs.items() if value is not None}
        config_changes.check_topic(values, self._node.broker_values())
        values = {name: plain(TOPIC[name], value) for name, value in values.items()}
        if not spec.named:
            partitions = config.num_partitions if spec.partitions == -1 else spec.partitions
            factor = config.default_replication_factor if spec.replication_factor == -1 else spec.replication_factor
            if factor <= 0:
                message = "Replication factor must be larger than 0, or -1 to use the default value."
                raise RequestRefused(message, ErrorCode.INVALID_REPLICATION_FACTOR)
            if partitions <= 0:
                message = "Number of partitions was set to an invalid non-positive value."
                raise RequestRefused(message, ErrorCode.INVALID_PARTITIONS)
            if partitions > MOST_PARTITIONS:
                message = "Excessively large number of partitions per request."
                raise RequestRefused(message, ErrorCode.POLICY_VIOLATION)
            return NewTopic(spec.name, partitions, factor, values)
        if spec.partitions != -1 or spec.replication_factor != -1:
            which = "replication factor" if spec.replication_factor != -1 else "numPartitions"
            message = f"A manual partition assignment was specified, but {which} was not set to -1."
            raise RequestRefused(message, ErrorCode.INVALID_REQUEST)
        if len(spec.assignment) != spec.named:
            message = "The manual partition assignment names a partition more than once."
            raise RequestRefused(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        if sorted(spec.assignment) != list(range(spec.named)):
            message = "partitions should be a consecutive 0-based integer sequence"
            raise RequestRefused(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        assignment = tuple(spec.assignment[index] for index in range(spec.named))
        for replicas in assignment:
            problem = assignment_problem(replicas, self._node.metadata.image.nodes, len(assignment[0]))
            if problem:
                raise RequestRefused(problem, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        return NewTopic(spec.name, spec.named, len(assignment[0]), values, assignment)

    def _created(self, topic: NewTopic, response: ChangeResult) -> TopicResult:
        if response.error:
            return TopicResult(response.error, response.message)
        configs = tuple(topic_values(topic.configs, self._node.broker_values()))
        return TopicResult(0, "", response.topic_id, topic.partitions, topic.replication_factor, configs)

    async def create_missing(self, names: Sequence[str]) -> None:
        """Create what a Metadata request named (auto.create.topics.enable); what cannot be created stays unknown."""
        results = await self.create_topics([TopicSpec(name) for name in dict.fromkeys(names)], False, DEFAULT_TIMEOUT)
        for name, result in zip(dict.fromkeys(names), results, strict=True):
            if result.error:
                log.info("topic %s was not created on demand: %s", printable(name), printable(result.message))

    async def delete_topics(self, names: Sequence[str], seconds: float) -> list[TopicResult]:
        """Delete topics; return one result per name, in order, within `seconds`."""
        if not names:
            return []
        ids = {name: topic.id for name, topic in self._node.metadata.image.topics.items()}
        responses = await self._change(
            len(names),
            _deadline(seconds),
            lambda left: self.controller().delete_topics(names, timeout=left),
        )
        return [
            TopicResult(response.error, response.message, response.topic_id or ids.get(name, ""))
            for name, response in zip(names, responses, strict=True)
        ]

    async def create_partitions(
        self, topics: Sequence[MorePartitions], validate_only: bool, seconds: float
    ) -> list[ChangeResult]:
        """Add partitions; return one result per topic, in order, within `seconds`."""
        if not topics:
            return []
        return await self._change(
            len(topics),
            _deadline(seconds),
            lambda left: self.controller().create_partitions(topics, validate_only=validate_only, timeout=left),
            wait=not validate_only,
        )

    async def reassign(
        self, wanted: Sequence[Reassign], *, may_change_factor: bool, seconds: float, client: str = ""
    ) -> list[ChangeResult]:
        """Begin, change or cancel reassignments (KIP-455); one result per partition, in order, within `seconds`."""
        if not wanted:
            return []
        return await self._change(
            len(wanted),
            _deadline(seconds),
            lambda left: self.controller().alter_reassignments(
                wanted, may_change_factor=may_change_factor, timeout=left, client=client
            ),
        )

    async def come_up_to_date(self, seconds: float) -> ChangeResult:
        """Wait at most `seconds` until this node has applied all that any other node has responded so far.

        The result may be an error.
        """

        async def ask(left: float) -> list[ChangeResult]:
            return [await self.controller().query_version(timeout=left)]

        return (await self._change(1, _deadline(seconds), ask))[0]

    async def elect(self, partitions: Sequence[TopicPartition], unclean: bool, seconds: float) -> list[ChangeResult]:
        """Elect preferred, or `unclean`, leaders; return one result per partition, in order, within `seconds`."""
        if not partitions:
            return []
        return await self._change(
            len(partitions),
            _deadline(seconds),
            lambda left: self.controller().elect_leaders(partitions, unclean=unclean, timeout=left),
        )

    async def alter_configs(self, kind: str, name: str, changes: Sequence[Change], validate_only: bool) -> None:
        """Change some of a topic's or a broker's dynamic configs; raises RequestRefused."""
        current = self._dynamic(kind, name)
        keys = TOPIC if kind == "topic" else BROKER
        values = config_changes.resolve(changes, current, keys, kind)
        lists = config_changes.list_changes(changes)
        await self._alter(kind, name, current, values, validate_only, lists)

    async def replace_configs(
        self, kind: str, name: str, configs: Mapping[str, str | None], validate_only: bool
    ) -> None:
        """Give a topic or a broker these dynamic configs and no others (AlterConfigs); raises RequestRefused."""
        current = self._dynamic(kind, name)
        await self._alter(kind, name, current, {**dict.fromkeys(current), **configs}, validate_only)

    def _dynamic(self, kind: str, name: str) -> Mapping[str, str]:
        """Return the dynamic configs that are set now; raises RequestRefused for another broker's."""
        image = self._node.metadata.image
        if kind == "topic":
            topic = image.topics.get(name)
            return topic.configs if topic is not None else {}
        if name and not re.fullmatch(r"[+-]?[0-9]+", name):
            raise RequestRefused(f"Node id must be an integer, but it is: {name}", ErrorCode.INVALID_REQUEST)
        if name and int(name) != self._node.id:
            message = f"Unexpected broker id, expected {self._node.id}, but received {name}"
            raise RequestRefused(message, ErrorCode.INVALID_REQUEST)
        return image.configs.get((kind, name), {})

    async def _alter(
        self,
        kind: str,
        name: str,
        current: Mapping[str, str],
        values: Mapping[str, str | None],
        validate_only: bool,
        lists: Mapping[str, ListChange] = MappingProxyType({}),
    ) -> None:
        keys = TOPIC if kind == "topic" else BROKER
        if kind == "topic":
            if not name:
                raise RequestRefused("Default topic resources are not allowed.", ErrorCode.INVALID_REQUEST)
            validate_topic(name)
            after = {key: value for key, value in {**current, **values}.items() if value is not None}
            config_changes.check_topic(after, self._node.broker_values())
            # Only the controller knows a topic that another node has just created.
            asks = bool(values) and not validate_only
            if not asks and name not in self._node.metadata.image.topics:
                raise RequestRefused(f"The topic '{name}' does not exist.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            config_changes.check_broker(values, [d.name for d in self._node.dirs.directories] if name else None)
        if validate_only or not values:
            return
        # A deletion is sent even if this node does not have the config: another node may have set it just now.
        plainly = {key: value if value is None else plain(keys[key], value) for key, value in values.items()}

        async def change(left: float) -> list[ChangeResult]:
            return [await self.controller().alter_configs(kind, name, {**plainly, **lists}, timeout=left)]

        (response,) = await self._change(1, _deadline(DEFAULT_TIMEOUT), change)
        if response.error:
            raise RequestRefused(response.message, ErrorCode(response.error))

    async def _change(self, count: int, deadline: float, change: _Ask, wait: bool = True) -> list[ChangeResult]:
        """Send a change to the controller and wait until this node has applied it; a late one becomes
        REQUEST_TIMED_OUT.
        """
        try:
            left = _left(deadline)
            responses = list(await asyncio.wait_for(change(left), left + ANSWER_SLACK))
        except (RequestTimedOut, TimeoutError) as error:
            message = str(error) or f"the controller did not respond in time; {MAY_COME}"
            return [ChangeResult(ErrorCode.REQUEST_TIMED_OUT, message)] * count
        except RequestRefused as error:
            return [ChangeResult(error.code, error.message)] * count
        newest = max((response.version for response in responses if not response.error), default=0)
        if wait and newest and not await self.applied(newest, _left(deadline)):
            late = ChangeResult(ErrorCode.REQUEST_TIMED_OUT, "the change was made, but has not reached this node yet")
            return [response if response.error else late for response in responses]
        return responses

    async def applied(self, version: int, seconds: float) -> bool:
        """Wait until this node has applied the image of that version; return False after `seconds`."""
        cache = self._node.metadata
        if cache.image.version >= version:
            return True
        loop = asyncio.get_running_loop()
        reached = asyncio.Event()

        def look(image: ClusterImage) -> None:
            if image.version >= version:
                loop.call_soon_threadsafe(reached.set)

        with cache.listening(look):
            if cache.image.version >= version:
                return True
            try:
                await asyncio.wait_for(reached.wait(), seconds)
            except TimeoutError:
                return False
        return True


class ProducerIdsHost(Protocol):
    """The node, as its producer ids use it."""

    @property
    def admin(self) -> Admin: ...


class ProducerIds:
    """The issuer of producer ids from blocks that the controller reserved; no id twice, also over restarts.

    A block is reserved ahead, so that new producers can start while the controller is unavailable.
    """

    def __init__(self, node: ProducerIdsHost) -> None:
        self._node = node
        self._blocks: deque[range] = deque()
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """Return a new id; raises RequestTimedOut when a block is needed and the controller does not respond."""
        async with self._lock:
            if not self._blocks:
                await self._reserve()
            block = self._blocks.popleft()
            if len(block) > 1:
                self._blocks.appendleft(block[1:])
            return block[0]

    async def top_up(self) -> None:
        """Reserve a block when less than half of one is left; raises RequestTimedOut."""
        async with self._lock:
            if sum(map(len, self._blocks)) < PRODUCER_ID_BLOCK // 2:
                await self._reserve()

    async def _reserve(self) -> None:
        controller = self._node.admin.controller()
        call = controller.next_producer_ids(PRODUCER_ID_BLOCK, timeout=DEFAULT_TIMEOUT)
        try:
            first = await asyncio.wait_for(call, DEFAULT_TIMEOUT)
        except TimeoutError:
            raise RequestTimedOut("the controller did not respond in time") from None
        self._blocks.append(range(first, first + PRODUCER_ID_BLOCK))


def _deadline(timeout: float) -> float:
    return time.monotonic() + (min(timeout, LONGEST_TIMEOUT) if timeout > 0 else DEFAULT_TIMEOUT)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
