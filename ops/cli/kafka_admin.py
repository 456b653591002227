"""The Kafka admin API as the commands need it, with one sentence per failure instead of a client's log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.stack.errors import OpsError, UsageError
from storage_node.errors import ErrorCode
from storage_node.types import TopicPartition

#: Seconds until it is clear that no node can be reached.
CONNECT_SECONDS = 8.0


class NoAnswer(OpsError):
    """Nobody answered, or not as Kafka does: it is not known what the cluster would have said."""


class UnknownTopic(OpsError):
    """The cluster has no topic of that name."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node and where clients reach it."""

    node: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A replica as DescribeLogDirs shows it; sizes in bytes. `future` marks the copy that is being made."""

    node: int
    directory: str
    partition: TopicPartition
    size: int
    offset_lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment under way (ListPartitionReassignments); `replicas` holds those added and those removed, too."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once it is complete."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def source(self) -> tuple[int, ...]:
        """The replicas without those that are added."""
        return tuple(node for node in self.replicas if node not in self.adding)


@dataclass(frozen=True, slots=True)
class LogDirectoryView:
    """One log directory of a node; `error` is Kafka's name of what is wrong, or "". Sizes in bytes, -1 unknown."""

    node: int
    path: str
    error: str
    total: int
    usable: int
    replicas: tuple[PlacedReplica, ...]


class KafkaAdmin:
    """Blocking admin calls. Use as a context manager; raises `OpsError` for everything that goes wrong.

    Of its kinds, `NoAnswer` says that nobody answered within `timeout` seconds.
    """

    def __init__(self, bootstrap: str, timeout: float = 15.0) -> None:
        self.bootstrap = bootstrap
        self._timeout = timeout
        self._client: Any = None

    def __enter__(self) -> KafkaAdmin:
        addresses = [each.strip() for each in self.bootstrap.split(",")]
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
                raise UsageError(f"{address!r} is no address of Kafka; write HOST:PORT, for example localhost:9092")
        from kafka.admin import KafkaAdminClient

        logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
        with self._told("reach Kafka"):
            self._client = KafkaAdminClient(
                bootstrap_servers=addresses,
                client_id="rehome",
                request_timeout_ms=int(self._timeout * 1000),
                bootstrap_timeout_ms=int(min(self._timeout, CONNECT_SECONDS) * 1000),
            )
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(Exception):
            self._client.close()

    def nodes(self, *, fenced: bool = False) -> list[NodeAddress]:
        """The nodes that are alive, by id; with `fenced` also those that the cluster knows but that are away."""
        with self._told("describe the cluster"):
            answer = self._client.describe_cluster()
        wanted = [broker for broker in answer["brokers"] if fenced or not broker.get("is_fenced")]
        found = [NodeAddress(int(b["broker_id"]), str(b["host"]), int(b["port"])) for b in wanted]
        return sorted(found, key=lambda node: node.node)

    def topics(self) -> list[str]:
        with self._told("list the topics"):
            return sorted(str(name) for name in self._client.list_topics())

    def create_topic(self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> None:
        """Raises `OpsError` with the cluster's own reason."""
        topic = {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": dict(configs),
        }
        with self._told(f"create topic {name}"):
            answer = self._client.create_topics({name: topic}, raise_errors=False)
        _require_ok(answer["topics"], f"cannot create topic {name}")

    def delete_topic(self, name: str) -> None:
        """Raises `OpsError` with the cluster's own reason."""
        with self._told(f"delete topic {name}"):
            answer = self._client.delete_topics([name], raise_errors=False)
        _require_ok(answer["topics"], f"cannot delete topic {name}")

    def set_node_config(self, node: int, changes: Mapping[str, str]) -> None:
        """Set dynamic configs of one node (IncrementalAlterConfigs)."""
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.BROKER, str(node), configs=dict(changes))
        self.alter_configs([resource], f"set {', '.join(changes)} on node {node}")

    def alter_configs(self, resources: Sequence[Any], doing: str) -> None:
        """IncrementalAlterConfigs; raises `OpsError` with the first reason for which something was not taken."""
        with self._told(doing):
            answer = self._client.alter_configs(list(resources), raise_on_unknown=False, incremental=True)
        # (The client raises nothing for a resource that was refused: it says so in place of "OK".)
        for by_name in answer.values():
            for name, said in by_name.items():
                if said != "OK":
                    raise OpsError(f"cannot {doing}: {said}" + ("" if len(resources) == 1 else f" ({name})"))

    def configs(self, kind: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """What is set on topics (`kind` "topic") or nodes ("broker"), by name; `OpsError` if one does not say."""
        from kafka.admin import ConfigResource, ConfigResourceType

        wanted = [ConfigResource(ConfigResourceType[kind.upper()], name) for name in names]
        with self._told(f"describe the configs of {kind} {', '.join(names)}"):
            answer = self._client.describe_configs(wanted, config_filter="dynamic") if wanted else {}
        found: dict[str, dict[str, str]] = {name: {} for name in names}
        for by_name in answer.values():
            for name, values in by_name.items():
                found[str(name)] = {
                    str(key): str(each["value"]) for key, each in values.items() if each.get("value") is not None
                }
        # (For a resource that cannot be described the client gives no error, but nothing at all.)
        if silent := [name for name in names if not found[name]]:
            raise OpsError(f"cannot describe the configs of {kind} {', '.join(silent)} at {self.bootstrap}; try again")
        return found

    def change_configs(self, kind: str, changes: Mapping[str, Mapping[str, tuple[str, str | None]]]) -> None:
        """Change configs of topics or nodes: name -> key -> (SET, DELETE, APPEND or SUBTRACT, value)."""
        from kafka.admin import ConfigResource, ConfigResourceType

        resources = [
            ConfigResource(ConfigResourceType[kind.upper()], name, configs=dict(values))
            for name, values in changes.items()
            if values
        ]
        if resources:
            self.alter_configs(resources, f"change the configs of {kind} {', '.join(changes)}")

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Everything that is being reassigned."""
        with self._told("list the reassignments"):
            answer = self._client.list_partition_reassignments()
        found = {}
        for each, row in answer.items():
            tp = TopicPartition(str(each.topic), int(each.partition))
            sets = (tuple(map(int, row[name])) for name in ("replicas", "adding_replicas", "removing_replicas"))
            found[tp] = Reassignment(tp, *sets)
        return found

    def reassign(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, str]:
        """Begin, change or (None) cancel reassignments; Kafka's name of what is wrong per partition, "" for nothing."""
        from kafka.structs import TopicPartition as Theirs

        request = {Theirs(tp.topic, tp.partition): None if one is None else list(one) for tp, one in wanted.items()}
        with self._told("reassign partitions"):
            answer = self._client.alter_partition_reassignments(request)
        found = dict.fromkeys(wanted, "NO_ANSWER")
        for each, error in answer.items():
            found[TopicPartition(str(each.topic), int(each.partition))] = (
                "" if error is None else code_name(int(error.errno))
            )
        return found

    def describe(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        """Topics with their partitions (leader, replicas, isr, offline replicas). Raises `UnknownTopic`."""
        with self._told(f"describe {', '.join(topics)}"):
            answer = self._client.describe_topics(list(topics))
        described: list[dict[str, Any]] = []
        for topic in answer:
            code = int(topic.get("error_code", 0))
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(f"there is no topic {topic.get('name')}; see: rehome topic list")
            if code:
                raise OpsError(f"cannot describe topic {topic.get('name')}: {code_name(code)}; see: rehome topic list")
            partitions = [
                {
                    "partition": int(p["partition_index"]),
                    "leader": int(p["leader_id"]),
                    "replicas": [int(node) for node in p["replica_nodes"]],
                    "isr": [int(node) for node in p["isr_nodes"]],
                    "offline": [int(node) for node in p.get("offline_replicas") or []],
                }
                for p in topic["partitions"]
            ]
            partitions.sort(key=lambda p: int(str(p["partition"])))
            described.append({"name": topic["name"], "id": str(topic.get("topic_id", "")), "partitions": partitions})
        return described

    def log_dirs(self, nodes: Sequence[int] | None = None) -> list[LogDirectoryView]:
        """Every log directory of the nodes (default: all that are alive), with its replicas."""
        wanted = list(nodes) if nodes is not None else [node.node for node in self.nodes()]
        with self._told("describe the log directories"):
            answers = self._client.describe_log_dirs(brokers=wanted)
        # (The client passes over an error of the whole answer; a node has a log directory, if only an offline one.)
        if silent := [str(answer["broker"]) for answer in answers if not answer["log_dirs"]]:
            raise OpsError(
                f"node {', '.join(silent)} does not describe its log directories; "
                "is this client allowed to (Describe on the cluster)?"
            )
        return [_directory(int(answer["broker"]), raw) for answer in answers for raw in answer["log_dirs"]]

    def alter_log_dirs(self, node: int, moves: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        """AlterReplicaLogDirs to one node: the code per replica. A node that does not answer raises `OpsError`."""
        request = {(tp.topic, tp.partition, node): path for tp, path in moves.items()}
        with self._told(f"ask node {node} to move replicas"):
            answer = self._client.alter_replica_log_dirs(request)
        return {
            TopicPartition(str(r.topic), int(r.partition)): error_code(int(error.errno)) for r, error in answer.items()
        }

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OpsError:
            raise
        except Exception as error:
            # The client's exceptions have no common base: some are KafkaError, some come from its event loop.
            why = str(error) or type(error).__name__
            if self._client is None and type(error).__name__ == "KafkaTimeoutError":
                why = f"nobody answered within {min(self._timeout, CONNECT_SECONDS):g} s"
            raise NoAnswer(
                f"cannot {doing} at {self.bootstrap}: {why.rstrip('.')}; is the cluster up? see: rehome stack status"
            ) from error


def sizes_of(views: Sequence[LogDirectoryView]) -> dict[tuple[int, TopicPartition], int]:
    """Bytes of each node's replicas, copies under way left out."""
    return {(r.node, r.partition): r.size for view in views for r in view.replicas if not r.future}


def _require_ok(results: Sequence[Mapping[str, Any]], what: str) -> None:
    for result in results:
        code = int(result.get("error_code", 0))
        if code:
            raise OpsError(f"{what}: {result.get('error_message') or code_name(code)} ({code_name(code)})")


def error_code(code: int) -> ErrorCode:
    """Kafka's code as ours; one that our nodes never send becomes UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def code_name(code: int) -> str:
    """Kafka's name of an error code, or the number where it is not known here."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"Kafka's error code {code}"


def _directory(node: int, raw: Mapping[str, Any]) -> LogDirectoryView:
    path = str(raw["log_dir"])
    replicas = [
        PlacedReplica(
            node=node,
            directory=path,
            partition=TopicPartition(str(topic["name"]), int(p["partition_index"])),
            size=int(p["partition_size"]),
            offset_lag=int(p["offset_lag"]),
            future=bool(p["is_future_key"]),
        )
        for topic in raw["topics"]
        for p in topic["partitions"]
    ]
    code = int(raw["error_code"])
    return LogDirectoryView(
        node=node,
        path=path,
        error=code_name(code) if code else "",
        total=int(raw.get("total_bytes", -1)),
        usable=int(raw.get("usable_bytes", -1)),
        replicas=tuple(sorted(replicas, key=lambda replica: (replica.partition, replica.future))),
    )
