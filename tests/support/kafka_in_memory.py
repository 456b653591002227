"""A Kafka cluster in memory, behind the pool of admin clients that plans use: what it does is decided by the test.

Only for what a real cluster cannot be made to do at a given moment: a broker that is silent for one request, a response
that is lost, a copy that ends exactly then. What plans do on real clusters: tests/conformance/plan_runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from activities.kafka_admin.admin import KafkaAdmin, LogDirectoryView, PlacedReplica, Reassignment
from activities.kafka_admin.errors import AdminError, NoResponse
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition

DIRECTORIES = ("/disk/a", "/disk/b")
USABLE = 10_000_000


class KafkaInMemory:
    """Brokers 1 to 3 with two directories each; partitions are given as {partition: {broker: directory}}.

    `behind` are replicas out of the ISR.

    `held`: copies do not end; `holding` are single partitions of which they do not. `silent` brokers do not respond.
    `lost` requests, by name, are carried out, but their responses are lost; `refused` requests are not carried out;
    Configs of `guarded` brokers and topics cannot be changed by this client.
    `doubted` ones are carried out, and answered with a code that does not say so.
    """

    def __init__(self, placed: Mapping[TopicPartition, Mapping[int, str]], size: int = 1_000) -> None:
        self.placed = {partition: dict(row) for partition, row in placed.items()}
        self.size = size
        self.futures: dict[tuple[int, TopicPartition], str] = {}
        self.noted: dict[tuple[int, TopicPartition], str] = {}
        self.targets: dict[TopicPartition, tuple[int, ...]] = {}
        self.configs: dict[tuple[str, str], dict[str, str]] = {}
        self.held = False
        self.holding: set[TopicPartition] = set()
        self.silent: set[int] = set()
        self.behind: set[tuple[int, TopicPartition]] = set()
        self.lost: list[str] = []
        self.refused: dict[str, ErrorCode] = {}
        self.guarded: set[tuple[str, str]] = set()
        self.doubted: dict[str, ErrorCode] = {}
        self.requests: list[str] = []

    async def run(self, call: Callable[[Any], Any]) -> Any:
        """As `AdminPool.run`."""
        name = getattr(call, "__name__", "")
        found = getattr(self, name)() if getattr(KafkaAdmin, name, None) is call else call(self)
        if self.requests and self.lost and self.lost[0] == self.requests[-1]:
            self.lost.pop(0)
            raise NoResponse("no node responded within 10 s")
        return found

    async def close(self) -> None:
        """As `AdminPool.close`."""

    # --- what the cluster is asked

    def cluster(self) -> tuple[str, dict[int, str | None]]:
        self.requests.append("cluster")
        return "in-memory", {node: None for node in (1, 2, 3)}

    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.placed})

    def reassignments(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Reassignment]:
        self._go_on()
        return {
            partition: Reassignment(
                partition,
                (*target, *(node for node in self.placed[partition] if node not in target)),
                tuple(node for node in target if node not in self.placed[partition]),
                tuple(node for node in self.placed[partition] if node not in target),
            )
            for partition, target in self.targets.items()
            if partitions is None or partition in partitions
        }

    def partitions(self, topics: Collection[str] | None = None) -> dict[TopicPartition, dict[str, Any]]:
        found = {}
        for partition, row in self.placed.items():
            if topics is not None and partition.topic not in topics:
                continue
            replicas = [*self.targets.get(partition, ()), *(n for n in row if n not in self.targets.get(partition, ()))]
            found[partition] = {
                "replicas": replicas,
                "isr": [n for n in row if (n, partition) not in self.behind],
                "leader": next(iter(row)),
                "offline": [],
            }
        return found

    def log_dirs(
        self, nodes: Sequence[int], partitions: Collection[TopicPartition] | None = None
    ) -> list[LogDirectoryView]:
        if silent := self.silent.intersection(nodes):
            raise NoResponse(f"broker {min(silent)} does not respond")
        return [
            LogDirectoryView(
                node,
                path,
                "",
                2 * USABLE,
                USABLE,
                tuple(
                    each for each in self._replicas(node, path) if partitions is None or each.partition in partitions
                ),
            )
            for node in nodes
            for path in DIRECTORIES
        ]

    def _replicas(self, node: int, path: str) -> list[PlacedReplica]:
        there = [
            PlacedReplica(node, path, partition, self.size, 0, False)
            for partition, row in self.placed.items()
            if row.get(node) == path
        ]
        return there + [
            PlacedReplica(node, path, partition, self.size // 2, 0, True)
            for (of, partition), target in self.futures.items()
            if (of, target) == (node, path)
        ]

    def effective(self, key: str, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "1")

    # --- what it is requested to do

    def alter_log_dirs(self, node: int, moves: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        self.requests.append("alter_log_dirs")
        if node in self.silent:
            raise NoResponse(f"broker {node} does not respond")
        found = {}
        for partition, path in moves.items():
            if code := self.refused.get("alter_log_dirs"):
                found[partition] = code
            elif partition not in self.placed:
                found[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif node not in self.placed[partition]:
                self.noted[node, partition] = path
                found[partition] = ErrorCode.REPLICA_NOT_AVAILABLE
            else:
                self.futures.pop((node, partition), None)
                if self.placed[partition][node] != path:
                    self.futures[node, partition] = path
                found[partition] = self.doubted.get("alter_log_dirs", ErrorCode.NONE)
        return found

    def reassign(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, str]:
        self.requests.append("reassign")
        found = {}
        for partition, target in wanted.items():
            if code := self.refused.get("reassign"):
                found[partition] = code.name
            elif partition not in self.placed:
                found[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name
            elif target is None:
                there = self.targets.pop(partition, None)
                found[partition] = "" if there else ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.name
            else:
                self.targets[partition] = tuple(target)
                found[partition] = self.doubted["reassign"].name if "reassign" in self.doubted else ""
        return found

    def _go_on(self) -> None:
        if self.held:
            return
        for (node, partition), path in list(self.futures.items()):
            if partition in self.holding:
                continue
            self.placed[partition][node] = path
            del self.futures[node, partition]
        for partition, target in list(self.targets.items()):
            if partition in self.holding:
                continue
            row = self.placed[partition]
            self.placed[partition] = {
                node: row.get(node) or self.noted.pop((node, partition), DIRECTORIES[0]) for node in target
            }
            del self.targets[partition]

    def overrides(self, kind: str, names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str]]:
        return {
            name: {key: value for key, value in self.configs.get((kind, name), {}).items() if key in keys}
            for name in names
        }

    def change_configs(self, kind: str, changes: Mapping[str, Mapping[str, tuple[str, str | None]]]) -> None:
        self.requests.append("change_configs")
        for name, row in changes.items():
            if (kind, name) in self.guarded:
                raise AdminError(f"cannot change the configs of {kind} {name}: is this client authorized?")
            held = self.configs.setdefault((kind, name), {})
            for key, (operation, value) in row.items():
                if operation == "SET" and value is not None:
                    held[key] = value
                elif operation == "DELETE":
                    held.pop(key, None)
                else:
                    there = [each for each in held.get(key, "").split(",") if each]
                    given = (value or "").split(",")
                    left = [each for each in there if each not in given]
                    held[key] = ",".join([*there, *given] if operation == "APPEND" else left)

    @property
    def throttles(self) -> dict[tuple[str, str], dict[str, str]]:
        """All configs that are set, without empty ones."""
        found = {place: {key: value for key, value in row.items() if value} for place, row in self.configs.items()}
        return {place: row for place, row in found.items() if row}
