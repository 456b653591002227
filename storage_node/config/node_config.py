"""Read the node's configuration at start: a server.properties file with Kafka's names.

A bad value is one error that names the key, the value and the allowed values; an unknown key is a warning, so that a
file written for Apache Kafka can be used as it is.
"""

from __future__ import annotations

import codecs
import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from storage_node.config import changes
from storage_node.config.group_limits import Limits
from storage_node.config.keys import DEFAULTS, IGNORED, LISTENERS, PREFIXES, parse_listener, parse_overrides, real_name
from storage_node.config.rules import BadValue
from storage_node.config.table import BROKER, TOPIC, Scope
from storage_node.config.values import BrokerValues, check
from storage_node.directories.io_faults import reason_of
from storage_node.log.config import LogConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The configs of a follower's fetches: Kafka's replica.fetch.* in milliseconds and bytes."""

    wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    response_max_bytes: int = 10 << 20
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000


class ConfigError(ValueError):
    """A value of server.properties is not valid; the message names key and value."""


def read_properties(path: str | Path) -> Mapping[str, str]:
    """Return the keys and values of a server.properties file; raises ConfigError if it cannot be read."""
    try:
        # The mark that some editors put first would be read as a part of the first key.
        values: Mapping[str, str] = javaproperties.loads(
            Path(path).read_bytes().removeprefix(codecs.BOM_UTF8).decode("latin-1")
        )
    except (OSError, ValueError) as error:
        reason = f"{path} cannot be read: {reason_of(error)}"
        raise ConfigError(f"{reason}; give the path of the node's server.properties") from error
    return values


@dataclass(frozen=True, slots=True)
class Listener:
    """One address: `host` as configured ("" means every interface) and port (0: any free one)."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The values of server.properties, with Kafka's defaults. Times in milliseconds, sizes and rates in bytes."""

    node_id: int
    rack: str
    """broker.rack, "" without one."""
    log_dirs: tuple[str, ...]
    metadata_beside: str
    """A metadata.log.dir that is not among log.dirs, "" without one."""
    listener: Listener
    advertised: Listener
    cluster_id: str
    log: LogConfig
    num_partitions: int
    default_replication_factor: int
    move_threads: int
    move_rate: int | None
    move_chunk: int
    file_delete_delay_ms: int
    log_dir_failure_timeout_ms: int
    log_dir_heal_delay_ms: int
    """Below 0: replicas of a failed log directory are not made again."""
    health_check_ms: int
    io_threads_per_dir: int
    auto_create_topics: bool
    message_max_bytes: int
    socket_request_max_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    connections_max_idle_ms: int
    queued_max_request_bytes: int
    high_watermark_checkpoint_ms: int
    recovery_checkpoint_ms: int
    start_offset_checkpoint_ms: int
    retention_check_ms: int
    flush_scheduler_ms: int
    move_deadline_ms: int
    private_api_from_anywhere: bool
    fetch: FetchSettings
    groups: Limits
    values: Mapping[str, str]

    @classmethod
    def load(cls, path: str | Path) -> NodeConfig:
        """Read a server.properties file; raises ConfigError, also when the file cannot be read."""
        return cls.parse(read_properties(path))

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> NodeConfig:
        """Return a configuration of key/value pairs; raises ConfigError."""
        given = _real_names({key: value.strip() for key, value in values.items()})
        _warn_unknown(given)
        read = _Reader(given)
        node_id = read.integer("node.id", alternative="broker.id", minimum=0, maximum=2**31 - 1)
        dirs, beside = with_metadata(_log_dirs(read), given.get("metadata.log.dir", ""))
        listener = _listener("listeners", given.get("listeners", LISTENERS))
        if "advertised.listeners" in given:
            advertised = _listener("advertised.listeners", given["advertised.listeners"])
            if not advertised.host:
                raise ConfigError("advertised.listeners: clients need a host name, e.g. PLAINTEXT://127.0.0.1:9092")
        else:
            advertised = Listener(listener.host or "127.0.0.1", listener.port)
        _check_dynamic(given)
        static = BrokerValues({}, {}, given)
        return cls(
            node_id=node_id,
            rack=given.get("broker.rack", ""),
            log_dirs=dirs,
            metadata_beside=beside,
            listener=listener,
            advertised=advertised,
            cluster_id=given.get("cluster.id", ""),
            log=changes.log_config(static),
            num_partitions=read.integer("num.partitions", minimum=1),
            default_replication_factor=read.integer("default.replication.factor", minimum=1),
            move_threads=read.integer("num.replica.alter.log.dirs.threads", default=len(dirs), minimum=1),
            move_rate=changes.move_rate(static),
            move_chunk=_move_chunk(read),
            file_delete_delay_ms=read.integer("log.segment.delete.delay.ms", minimum=0),
            log_dir_failure_timeout_ms=read.integer("log.dir.failure.timeout.ms", minimum=1),
            log_dir_heal_delay_ms=read.integer("log.dir.heal.delay.ms", minimum=-1),
            health_check_ms=read.integer("log.dir.health.check.interval.ms", minimum=1),
            io_threads_per_dir=read.integer("num.io.threads.per.data.dir", minimum=1, maximum=256),
            auto_create_topics=read.boolean("auto.create.topics.enable"),
            message_max_bytes=read.integer("message.max.bytes", minimum=0),
            socket_request_max_bytes=read.integer("socket.request.max.bytes", minimum=1024, maximum=2**31 - 1),
            max_connections=read.integer("max.connections", minimum=1),
            max_connections_per_ip=read.integer("max.connections.per.ip", minimum=0),
            max_connections_per_ip_overrides=_overrides(read),
            connections_max_idle_ms=read.integer("connections.max.idle.ms"),
            queued_max_request_bytes=_queued_bytes(read),
            high_watermark_checkpoint_ms=read.integer("replica.high.watermark.checkpoint.interval.ms", minimum=1),
            recovery_checkpoint_ms=read.integer("log.flush.offset.checkpoint.interval.ms", minimum=1),
            start_offset_checkpoint_ms=read.integer("log.flush.start.offset.checkpoint.interval.ms", minimum=1),
            retention_check_ms=read.integer("log.retention.check.interval.ms", minimum=1),
            flush_scheduler_ms=read.integer("log.flush.scheduler.interval.ms", minimum=1),
            move_deadline_ms=read.integer("replica.move.swap.deadline.ms", minimum=1),
            private_api_from_anywhere=read.boolean("private.api.remote.enable"),
            fetch=_fetch(read),
            groups=_groups(read),
            values={**given, "node.id": str(node_id), "broker.id": str(node_id)},
        )

    @property
    def metadata_log_dir(self) -> str:
        """The directory without which the node does not start: the first of log.dirs, or the one among them that
        metadata.log.dir names.
        """
        return self.log_dirs[0]


class _Reader:
    """A reader of typed values, falling back to Kafka's defaults."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given

    def text(self, key: str, alternative: str = "") -> tuple[str, str | None]:
        """Return the key that is set (or the first) and its value."""
        if key in self.given:
            return key, self.given[key]
        if alternative and alternative in self.given:
            return alternative, self.given[alternative]
        return key, DEFAULTS.get(key)

    def integer(
        self,
        key: str,
        *,
        alternative: str = "",
        default: int | None = None,
        minimum: int = -(2**63),
        maximum: int = 2**63 - 1,
    ) -> int:
        used, value = self.text(key, alternative)
        if value is None or value == "":
            if default is None:
                raise ConfigError(f"{key}: missing, and it has no default")
            return default
        try:
            number = int(value)
        except ValueError:
            raise ConfigError(f"{used}={value}: not a whole number") from None
        if not minimum <= number <= maximum:
            raise ConfigError(f"{used}={value}: must be between {minimum} and {maximum}")
        return number

    def boolean(self, key: str) -> bool:
        _, value = self.text(key)
        if value is None or value.lower() not in ("true", "false"):
            raise ConfigError(f"{key}={value}: must be true or false")
        return value.lower() == "true"


def _log_dirs(read: _Reader) -> tuple[str, ...]:
    """Return the directories in the order given; a relative one is below the working directory of the start, as in
    Kafka.
    """
    key, value = read.text("log.dirs", "log.dir")
    given = [part.strip() for part in (value or "").split(",") if part.strip()]
    if not given:
        raise ConfigError("log.dirs: missing; name at least one directory, separated by commas")
    dirs = tuple(path if path.startswith("/") else str(Path(path).absolute()) for path in given)
    seen: dict[Path, str] = {}
    for path in dirs:
        real = Path(path).resolve()
        if real in seen:
            raise ConfigError(f"{key}={value}: {path} and {seen[real]} are the same directory")
        seen[real] = path
    return dirs


def with_metadata(dirs: tuple[str, ...], metadata: str) -> tuple[tuple[str, ...], str]:
    """Return log.dirs with the one first that metadata.log.dir names among them; else also that path itself."""
    if not metadata:
        return dirs, ""
    wanted = Path(metadata).resolve()
    first = tuple(path for path in dirs if Path(path).resolve() == wanted)
    return (*first, *(path for path in dirs if path not in first)), "" if first else str(Path(metadata).absolute())


def _move_chunk(read: _Reader) -> int:
    """Return the most bytes that a move copies at once: what a follower would fetch."""
    keys = ("replica.fetch.max.bytes", "replica.fetch.response.max.bytes")
    return min(read.integer(key, minimum=0) for key in keys)


def _fetch(read: _Reader) -> FetchSettings:
    def number(key: str, minimum: int = 0) -> int:
        return read.integer(key, minimum=minimum, maximum=2**31 - 1)

    return FetchSettings(
        wait_ms=number("replica.fetch.wait.max.ms"),
        min_bytes=number("replica.fetch.min.bytes"),
        max_bytes=number("replica.fetch.max.bytes"),
        response_max_bytes=number("replica.fetch.response.max.bytes"),
        backoff_ms=number("replica.fetch.backoff.ms"),
        socket_timeout_ms=number("replica.socket.timeout.ms", 1),
    )


def _listener(key: str, value: str) -> Listener:
    try:
        host, port = parse_listener(value)
    except ValueError as error:
        raise ConfigError(f"{key}={value}: {error}") from None
    return Listener(host, port)


def _overrides(read: _Reader) -> dict[str, int]:
    key, value = read.text("max.connections.per.ip.overrides")
    try:
        return parse_overrides(value or "")
    except ValueError as error:
        raise ConfigError(f"{key}={value}: {error}") from None


def _queued_bytes(read: _Reader) -> int:
    """Return the queued bytes; -1 or 0: no limit.

    The default is raised for larger requests, but a configured value that is too low is an error, as in Kafka.
    """
    key, largest = "queued.max.request.bytes", read.integer("socket.request.max.bytes")
    queued = read.integer(key)
    if queued <= 0 or queued >= largest:
        return queued
    if key in read.given:
        raise ConfigError(f"{key}={queued}: must be at least socket.request.max.bytes={largest}")
    return largest


def _groups(read: _Reader) -> Limits:
    def seconds(key: str, minimum: int) -> float:
        return read.integer(key, minimum=minimum, maximum=2**31 - 1) / 1000

    shortest, longest = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    limits = Limits(
        initial_delay=seconds("group.initial.rebalance.delay.ms", 0),
        min_session=seconds(shortest, 1),
        max_session=seconds(longest, 1),
        max_size=read.integer("group.max.size", minimum=1, maximum=2**31 - 1),
        offset_metadata=read.integer("offset.metadata.max.bytes", minimum=0, maximum=2**31 - 1),
        retention=read.integer("offsets.retention.minutes", minimum=1, maximum=2**31 - 1) * 60.0,
        retention_check=read.integer("offsets.retention.check.interval.ms", minimum=1) / 1000,
        state_bytes=read.integer("group.state.max.bytes", minimum=1),
    )
    if limits.min_session > limits.max_session:
        raise ConfigError(f"{shortest}={limits.min_session * 1000:g}: must not be above {longest}")
    return limits


def _real_names(given: Mapping[str, str]) -> dict[str, str]:
    """Return the values with one name each; a value under the real name precedes one under an older name."""
    found: dict[str, str] = {}
    for key, value in given.items():
        real = real_name(key)
        if real == key or real not in given:
            found[real] = value
    return found


def _check_dynamic(given: Mapping[str, str]) -> None:
    """Check the configs that may change at run time, and the synonyms of topic configs, as a request's are checked.

    Raises ConfigError.
    """
    logs = {name for key in TOPIC.values() for name in key.synonyms}
    for name, key in BROKER.items():
        if name in given and (name in logs or key.scope is not Scope.READ_ONLY):
            try:
                check(key, given[name])
            except BadValue as error:
                raise ConfigError(f"{name}={given[name]}: {error.why}") from error


def _warn_unknown(given: Mapping[str, str]) -> None:
    known = [*DEFAULTS]
    for key in sorted(given):
        if key in known or key in IGNORED or key.startswith(PREFIXES):
            continue
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        hint = f"; did you mean {close[0]}?" if close else ""
        log.warning("server.properties: %s is unknown and has no effect%s", key, hint)
