"""Kafka's admin API, blocking; each failure is one sentence instead of the client's log."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.errors import ANSWERS, NO_RESPONSE, AdminErrors, Answer, answer_of, code_name
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition

#: Seconds after which the cluster counts as unreachable.
CONNECT_SECONDS = 8.0
#: A sentence has so many names at most.
MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node and the address of its listener."""

    node: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A replica in DescribeLogDirs; sizes in bytes. `future` marks a future replica, the copy of a move."""

    node: int
    directory: str
    partition: TopicPartition
    size: int
    offset_lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress (ListPartitionReassignments); `replicas` includes added and removed ones."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def source(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(node for node in self.replicas if node not in self.adding)


@dataclass(frozen=True, slots=True)
class LogDirectoryView:
    """One log directory of a node; `error` is the name of Kafka's error, or "". Sizes in bytes, -1 if unknown."""

    node: int
    path: str
    error: str
    total: int
    usable: int
    replicas: tuple[PlacedReplica, ...]


class KafkaAdmin:
    """Blocking admin calls. Use as a context manager; not thread-safe.

    Every failure raises one of `errors`: its `no_response` if no node responds within `timeout` seconds.
    """

    errors = AdminErrors()

    def __init__(self, client: str | ClientConfig, timeout: float = 15.0) -> None:
        """`client` is bootstrap addresses, or the settings of a client."""
        self._config = client if isinstance(client, ClientConfig) else ClientConfig(client)
        self.bootstrap = self._config.bootstrap
        self._timeout = timeout
        self._client: Any = None

    def __enter__(self) -> Self:
        addresses = [each.strip() for each in self.bootstrap.split(",")]
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
                raise self.errors.usage(
                    f"{address!r} is not a valid Kafka address; write HOST:PORT, for example localhost:9092"
                )
        from kafka.admin import KafkaAdminClient

        logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
        with self._kafka_errors("reach Kafka"):
            self._client = KafkaAdminClient(
                **self._config.settings,
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
        """Return the registered nodes by id; with `fenced` fenced nodes, too."""
        with self._kafka_errors("describe the cluster"):
            response = self._client.describe_cluster()
        wanted = [broker for broker in response["brokers"] if fenced or not broker.get("is_fenced")]
        found = [NodeAddress(int(b["broker_id"]), str(b["host"]), int(b["port"])) for b in wanted]
        return sorted(found, key=lambda node: node.node)

    def cluster(self) -> tuple[str, dict[int, str | None]]:
        """Return the cluster's id, and the racks of its brokers that are not fenced, by id."""
        with self._kafka_errors("describe the cluster"):
            response = self._client.describe_cluster()
        brokers = [broker for broker in response["brokers"] if not broker.get("is_fenced")]
        return str(response["cluster_id"]), {int(b["broker_id"]): b.get("rack") or None for b in brokers}

    def topics(self) -> list[str]:
        with self._kafka_errors("list the topics"):
            return sorted(str(name) for name in self._client.list_topics())

    def create_topic(self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> None:
        """Create a topic. Raises `errors.rejected` with the cluster's reason."""
        topic = {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": dict(configs),
        }
        with self._kafka_errors(f"create topic {name}"):
            response = self._client.create_topics({name: topic}, raise_errors=False)
        self._require_ok(response["topics"], f"cannot create topic {name}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises `errors.rejected` with the cluster's reason."""
        with self._kafka_errors(f"delete topic {name}"):
            response = self._client.delete_topics([name], raise_errors=False)
        self._require_ok(response["topics"], f"cannot delete topic {name}")

    def set_node_config(self, node: int, changes: Mapping[str, str]) -> None:
        """Set dynamic configs of one node (IncrementalAlterConfigs)."""
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.BROKER, str(node), configs=dict(changes))
        self.alter_configs([resource], f"set {', '.join(changes)} on node {node}")

    def alter_configs(self, resources: Sequence[Any], doing: str) -> None:
        """Send IncrementalAlterConfigs. Raises `errors.rejected` with the first rejected resource's reason,
        `errors.unknown_topic` if the controller has no such topic, `errors.no_response` if it may be written later.
        """
        with self._kafka_errors(doing):
            response = self._client.alter_configs(list(resources), raise_on_unknown=False, incremental=True)
        # The client raises no exception for a rejected resource: it returns the error in place of "OK".
        for by_name in response.values():
            for name, result in by_name.items():
                if result != "OK":
                    raise self._error_of(str(result))(
                        f"cannot {doing}: {result}" + ("" if len(resources) == 1 else f" ({name})")
                    )

    def _error_of(self, result: str) -> type[Exception]:
        """Return what to raise for an error that the client returns as a text, such as "[Error 29] ..."."""
        found = re.match(r"\[Error (-?\d+)\]", result)
        code = code_name(int(found.group(1))) if found else ""
        if code == "UNKNOWN_TOPIC_OR_PARTITION":
            return self.errors.unknown_topic
        return self.errors.no_response if answer_of(code) is Answer.RETRY else self.errors.rejected

    def configs(self, kind: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the dynamic configs of topics (`kind` "topic") or nodes ("broker"), by name.

        Raises `errors.rejected` if the response lacks a resource.
        """
        from kafka.admin import ConfigResource, ConfigResourceType

        wanted = [ConfigResource(ConfigResourceType[kind.upper()], name) for name in names]
        with self._kafka_errors(f"describe the configs of {kind} {some(names)}"):
            response = self._client.describe_configs(wanted, config_filter="dynamic") if wanted else {}
        found: dict[str, dict[str, str]] = {name: {} for name in names}
        for by_name in response.values():
            for name, values in by_name.items():
                found[str(name)] = {
                    str(key): str(each["value"]) for key, each in values.items() if each.get("value") is not None
                }
        # For a resource that cannot be described the client returns neither configs nor an error.
        if missing := [name for name in names if not found[name]]:
            raise self.errors.rejected(
                f"cannot describe the configs of {kind} {some(missing)} at {self.bootstrap}; try again"
            )
        return found

    def overrides(self, kind: str, names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return those of some configs that are set on the topics (`kind` "topic") or brokers ("broker") themselves."""
        from kafka.admin import ConfigResource, ConfigResourceType

        if not names:
            return {}
        wanted = [ConfigResource(ConfigResourceType[kind.upper()], name, configs=list(keys)) for name in names]
        with self._kafka_errors(f"describe the configs of {kind} {some(names)}"):
            response = self._client.describe_configs(wanted, config_filter="all")
        own = "DYNAMIC_TOPIC_CONFIG" if kind == "topic" else "DYNAMIC_BROKER_CONFIG"
        found: dict[str, dict[str, str]] = {name: {} for name in names}
        for by_name in response.values():
            for name, values in by_name.items():
                found[str(name)] = {
                    str(key): str(each["value"])
                    for key, each in values.items()
                    if each.get("config_source") == own and each.get("value") is not None
                }
        return found

    def known_config(self, kind: str, name: str, key: str) -> str | None:
        """Return the effective value of one config, "" if it has none; None if the cluster does not know it."""
        from kafka.admin import ConfigResource, ConfigResourceType

        wanted = [ConfigResource(ConfigResourceType[kind.upper()], name, configs=[key])]
        with self._kafka_errors(f"describe {key} of {kind} {name}"):
            response = self._client.describe_configs(wanted, config_filter="all")
        rows = [values for by_name in response.values() for values in by_name.values() if key in values]
        return str(rows[0][key].get("value") or "") if rows else None

    def change_configs(self, kind: str, changes: Mapping[str, Mapping[str, tuple[str, str | None]]]) -> None:
        """Change configs of topics or nodes: name -> key -> (SET, DELETE, APPEND or SUBTRACT, value)."""
        from kafka.admin import ConfigResource, ConfigResourceType

        resources = [
            ConfigResource(ConfigResourceType[kind.upper()], name, configs=dict(values))
            for name, values in changes.items()
            if values
        ]
        if resources:
            self.alter_configs(resources, f"change the configs of {kind} {some(list(changes))}")

    def reassignments(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress, all of them or those of some partitions."""
        with self._kafka_errors("list the reassignments"):
            response = self._client.list_partition_reassignments(_by_topic(partitions))
        found = {}
        for each, row in response.items():
            tp = TopicPartition(str(each.topic), int(each.partition))
            sets = (tuple(map(int, row[name])) for name in ("replicas", "adding_replicas", "removing_replicas"))
            found[tp] = Reassignment(tp, *sets)
        return found

    def reassign(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, str]:
        """Start, change or (None) cancel reassignments; return Kafka's error per partition by name, "" for none,
        `NO_RESPONSE` for a partition that the response lacks.
        """
        from kafka.structs import TopicPartition as Theirs

        request = {Theirs(tp.topic, tp.partition): None if one is None else list(one) for tp, one in wanted.items()}
        with self._kafka_errors("reassign partitions"):
            response = self._client.alter_partition_reassignments(request)
        found = dict.fromkeys(wanted, NO_RESPONSE)
        for each, error in response.items():
            found[TopicPartition(str(each.topic), int(each.partition))] = (
                "" if error is None else code_name(int(error.errno))
            )
        return found

    def partitions(self, topics: Sequence[str] | None = None) -> dict[TopicPartition, dict[str, Any]]:
        """Return leader, replicas, isr, and offline replicas of all partitions, or of those of some topics.

        Topics that do not exist are left out. Raises `errors.rejected` for one that this client must not describe: it
        would look like one that was deleted.
        """
        with self._kafka_errors("describe the topics"):
            response = self._client.describe_topics(None if topics is None else list(topics))
        codes = [(topic, code_name(int(topic.get("error_code", 0)))) for topic in response]
        if denied := sorted(str(topic["name"]) for topic, code in codes if code == "TOPIC_AUTHORIZATION_FAILED"):
            raise self.errors.rejected(
                f"cannot describe topic {denied[0]} at {self.bootstrap}: is this client authorized (Describe)?"
            )
        return {
            TopicPartition(str(topic["name"]), row["partition"]): row
            for topic, code in codes
            if code == "NONE"
            for row in _partition_rows(topic)
        }

    def effective(self, key: str, topics: Sequence[str]) -> dict[str, str]:
        """Return the value of one config of topics, by default or set; topics that do not exist are left out."""
        from kafka.admin import ConfigResource, ConfigResourceType

        if not topics:
            return {}
        wanted = [ConfigResource(ConfigResourceType.TOPIC, name, configs=[key]) for name in topics]
        with self._kafka_errors(f"describe {key} of topics"):
            response = self._client.describe_configs(wanted, config_filter="all")
        return {
            str(name): str(values[key]["value"])
            for by_name in response.values()
            for name, values in by_name.items()
            if values.get(key, {}).get("value") is not None
        }

    def describe(self, topics: Sequence[str], *, known_only: bool = False) -> list[dict[str, Any]]:
        """Return topics with their partitions, as `partitions` does, by one request. Raises `errors.unknown_topic` for
        a topic that does not exist, unless these are left out (`known_only`).
        """
        with self._kafka_errors(f"describe {some(topics)}"):
            response = self._client.describe_topics(list(topics))
        described: list[dict[str, Any]] = []
        for topic in response:
            code = int(topic.get("error_code", 0))
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and known_only:
                continue
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise self.errors.unknown_topic(f"topic {topic.get('name')} does not exist; see: rehome topic list")
            if code:
                raise self.errors.rejected(
                    f"cannot describe topic {topic.get('name')}: {code_name(code)}; see: rehome topic list"
                )
            partitions = _partition_rows(topic)
            described.append({"name": topic["name"], "id": str(topic.get("topic_id", "")), "partitions": partitions})
        return described

    def log_dirs(
        self, nodes: Sequence[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> list[LogDirectoryView]:
        """Return the log directories of the nodes (default: all that are not fenced), with their replicas: all of
        them, or those of some partitions.
        """
        wanted = list(nodes) if nodes is not None else [node.node for node in self.nodes()]
        with self._kafka_errors("describe the log directories"):
            responses = self._client.describe_log_dirs(_by_topic(partitions), brokers=wanted)
        # The client ignores an error of the whole response; a node has at least one log directory, even if offline.
        if missing := [str(response["broker"]) for response in responses if not response["log_dirs"]]:
            raise self.errors.rejected(
                f"node {', '.join(missing)} did not return its log directories; "
                "is this client authorized (Describe on the cluster)?"
            )
        return [_directory(int(response["broker"]), raw) for response in responses for raw in response["log_dirs"]]

    def alter_log_dirs(self, node: int, moves: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        """Send AlterReplicaLogDirs to one node; return the code per replica. Raises `errors.no_response`."""
        request = {(tp.topic, tp.partition, node): path for tp, path in moves.items()}
        with self._kafka_errors(f"request moves on node {node}"):
            response = self._client.alter_replica_log_dirs(request)
        return {
            TopicPartition(str(r.topic), int(r.partition)): error_code(int(error.errno))
            for r, error in response.items()
        }

    def _require_ok(self, results: Sequence[Mapping[str, Any]], what: str) -> None:
        for result in results:
            code = int(result.get("error_code", 0))
            if code:
                raise self.errors.rejected(
                    f"{what}: {result.get('error_message') or code_name(code)} ({code_name(code)})"
                )

    @contextlib.contextmanager
    def _kafka_errors(self, doing: str) -> Iterator[None]:
        """Turn the client's exceptions into an `errors.rejected` that names the failed action."""
        from kafka.errors import AuthorizationError, BrokerResponseError

        try:
            yield
        except self.errors.rejected:
            raise
        except Exception as error:
            code = error.errno if isinstance(error, BrokerResponseError) else ErrorCode.NONE
            if ANSWERS.get(code_name(int(code))) is Answer.FINAL:
                right = "; is this client authorized?" if isinstance(error, AuthorizationError) else ""
                raise self.errors.rejected(
                    f"cannot {doing} at {self.bootstrap}: {str(error).rstrip('.')}{right}"
                ) from error
            # The client's exceptions have no common base: some are KafkaError, its event loop raises others.
            why = str(error) or type(error).__name__
            if self._client is None and type(error).__name__ == "KafkaTimeoutError":
                why = f"no node responded within {min(self._timeout, CONNECT_SECONDS):g} s"
            raise self.errors.no_response(
                f"cannot {doing} at {self.bootstrap}: {why.rstrip('.')}; is the cluster up? see: rehome stack status"
            ) from error


def _by_topic(partitions: Iterable[TopicPartition] | None) -> dict[str, list[int]] | None:
    """Return partitions as the client takes them; None stands for all."""
    if partitions is None:
        return None
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return found


def _partition_rows(topic: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = [
        {
            "partition": int(p["partition_index"]),
            "leader": int(p["leader_id"]),
            "replicas": [int(node) for node in p["replica_nodes"]],
            "isr": [int(node) for node in p["isr_nodes"]],
            "offline": [int(node) for node in p.get("offline_replicas") or []],
        }
        for p in topic["partitions"]
    ]
    return sorted(rows, key=lambda row: int(str(row["partition"])))


def some(names: Sequence[str]) -> str:
    """Return names for a sentence: the first ones, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def sizes_of(views: Sequence[LogDirectoryView]) -> dict[tuple[int, TopicPartition], int]:
    """Return the bytes of each node's replicas, without future replicas."""
    return {(r.node, r.partition): r.size for view in views for r in view.replicas if not r.future}


def error_code(code: int) -> ErrorCode:
    """Return Kafka's code as an `ErrorCode`; UNKNOWN_SERVER_ERROR for a code that storage nodes never send."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


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
