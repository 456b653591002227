"""Define every config as data: name, type, default, valid values, what may change it, and its names on the broker.

Names, types, defaults and limits are those of Apache Kafka 4.3; where a default differs here, the comment gives the
reason. `only` names the values that have an effect here: the others, which Kafka accepts, are rejected with `why`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from storage_node.config.rules import Kind, Level, OneOf, Range, Rule, ThrottledReplicas

MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
CORDONED = "cordoned.log.dirs"
MOVE_THREADS = "num.replica.alter.log.dirs.threads"
RECOVERY_THREADS = "num.recovery.threads.per.data.dir"
FETCHERS = "num.replica.fetchers"


class Scope(Enum):
    """What may change a broker config while the node runs."""

    READ_ONLY = "only server.properties"
    CLUSTER_WIDE = "one broker's configs or the default of all"
    PER_BROKER = "one broker's configs"
    RATE = "as CLUSTER_WIDE, and described only where it is set"


@dataclass(frozen=True, slots=True)
class Key:
    """One config. `default` None: none, or it follows from other keys.

    `synonyms` are a topic key's names on the broker, the one with precedence first, in hours and minutes as their names
    say.
    """

    name: str
    kind: Kind
    default: str | None
    rule: Rule | None = None
    synonyms: tuple[str, ...] = ()
    scope: Scope = Scope.CLUSTER_WIDE
    only: tuple[str, ...] = ()
    why: str = ""


INT, LONG, BOOLEAN, STRING, LIST = Kind.INT, Kind.LONG, Kind.BOOLEAN, Kind.STRING, Kind.LIST
_MAX = str(2**63 - 1)
_WEEK = "604800000"
_ANY = Range(0)
_POSITIVE = Range(1)

_NO_COMPACTION = "this node deletes old segments and does not compact"
_NO_TIERS = "this node has no remote storage"
_AS_THEY_COME = "this node keeps batches as producers compressed them"
_POLICY = OneOf(("compact", "delete"))
_CODEC = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
_STAMP = OneOf(("CreateTime", "LogAppendTime"))
_ROLL = ("log.roll.ms", "log.roll.hours")
_JITTER = ("log.roll.jitter.ms", "log.roll.jitter.hours")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")

#: As before Kafka 4, which requires a megabyte: tests of retention and moves use many small segments.
_SEGMENT = Range(14)

_TOPIC = (
    Key("cleanup.policy", LIST, "delete", _POLICY, ("log.cleanup.policy",), only=("delete",), why=_NO_COMPACTION),
    Key("compression.gzip.level", INT, "-1", Level(1, 9), ("compression.gzip.level",)),
    Key("compression.lz4.level", INT, "9", Range(1, 17), ("compression.lz4.level",)),
    Key("compression.type", STRING, "producer", _CODEC, ("compression.type",), only=("producer",), why=_AS_THEY_COME),
    Key("compression.zstd.level", INT, "3", Range(-131072, 22), ("compression.zstd.level",)),
    Key("delete.retention.ms", LONG, "86400000", _ANY, ("log.cleaner.delete.retention.ms",)),
    Key("file.delete.delay.ms", LONG, "60000", _ANY, ("log.segment.delete.delay.ms",)),
    Key("flush.messages", LONG, _MAX, _POSITIVE, ("log.flush.interval.messages",)),
    Key("flush.ms", LONG, _MAX, _ANY, _FLUSH),
    Key("follower.replication.throttled.replicas", LIST, "", ThrottledReplicas()),
    Key("index.interval.bytes", INT, "4096", _ANY, ("log.index.interval.bytes",)),
    Key("leader.replication.throttled.replicas", LIST, "", ThrottledReplicas()),
    Key("local.retention.bytes", LONG, "-2", Range(-2), ("log.local.retention.bytes",)),
    Key("local.retention.ms", LONG, "-2", Range(-2), ("log.local.retention.ms",)),
    Key("max.compaction.lag.ms", LONG, _MAX, _POSITIVE, ("log.cleaner.max.compaction.lag.ms",)),
    Key("max.message.bytes", INT, "1048588", _ANY, ("message.max.bytes",)),
    Key("message.timestamp.after.max.ms", LONG, "3600000", _ANY, ("log.message.timestamp.after.max.ms",)),
    Key("message.timestamp.before.max.ms", LONG, _MAX, _ANY, ("log.message.timestamp.before.max.ms",)),
    Key("message.timestamp.type", STRING, "CreateTime", _STAMP, ("log.message.timestamp.type",)),
    Key("min.cleanable.dirty.ratio", Kind.DOUBLE, "0.5", Range(0, 1), ("log.cleaner.min.cleanable.ratio",)),
    Key("min.compaction.lag.ms", LONG, "0", _ANY, ("log.cleaner.min.compaction.lag.ms",)),
    Key("min.insync.replicas", INT, "1", _POSITIVE, ("min.insync.replicas",)),
    Key("preallocate", BOOLEAN, "false", None, ("log.preallocate",)),
    Key("remote.log.copy.disable", BOOLEAN, "false"),
    Key("remote.log.delete.on.disable", BOOLEAN, "false"),
    Key("remote.storage.enable", BOOLEAN, "false", only=("false",), why=_NO_TIERS),
    Key("retention.bytes", LONG, "-1", None, ("log.retention.bytes",)),
    Key("retention.ms", LONG, _WEEK, Range(-1), _RETENTION),
    Key("segment.bytes", INT, "1073741824", _SEGMENT, ("log.segment.bytes",)),
    Key("segment.index.bytes", INT, "10485760", Range(4), ("log.index.size.max.bytes",)),
    Key("segment.jitter.ms", LONG, "0", _ANY, _JITTER),
    Key("segment.ms", LONG, _WEEK, _POSITIVE, _ROLL),
    Key("unclean.leader.election.enable", BOOLEAN, "false", None, ("unclean.leader.election.enable",)),
)

#: The configs of a topic.
TOPIC: Mapping[str, Key] = {key.name: key for key in _TOPIC}


def _static(name: str, kind: Kind, default: str | None, rule: Rule | None = None) -> Key:
    return Key(name, kind, default, rule, scope=Scope.READ_ONLY)


def _rate(name: str) -> Key:
    return Key(name, LONG, _MAX, _ANY, scope=Scope.RATE)


_BROKER = (
    # The defaults of logs without values of their own: the topic keys above, by their first name.
    *(
        Key(key.synonyms[0], key.kind, key.default, key.rule, only=key.only, why=key.why)
        for key in _TOPIC
        if len(key.synonyms) == 1
    ),
    Key("log.retention.ms", LONG, None),
    _static("log.retention.minutes", INT, None),
    _static("log.retention.hours", INT, "168"),
    Key("log.roll.ms", LONG, None, _POSITIVE),
    _static("log.roll.hours", INT, "168", _POSITIVE),
    Key("log.roll.jitter.ms", LONG, None, _ANY),
    _static("log.roll.jitter.hours", INT, "0", _ANY),
    Key("log.flush.interval.ms", LONG, None, _ANY),
    _static("log.flush.scheduler.interval.ms", LONG, _MAX),
    # Rates, in bytes per second.
    _rate(MOVE_RATE),
    _rate("leader.replication.throttled.rate"),
    _rate("follower.replication.throttled.rate"),
    # Read once, at start.
    _static("node.id", INT, None),
    _static("broker.id", INT, "-1"),
    _static("broker.rack", STRING, None),
    _static("log.dir", LIST, "/tmp/kafka-logs"),
    _static("log.dirs", LIST, None),
    _static("metadata.log.dir", STRING, None),
    # Log directories that get nothing new: neither replicas nor copies of them. "*" means all.
    Key(CORDONED, LIST, "", scope=Scope.PER_BROKER),
    _static("listeners", LIST, "PLAINTEXT://:9092"),
    _static("advertised.listeners", LIST, None),
    _static("num.partitions", INT, "1", _POSITIVE),
    _static("default.replication.factor", INT, "1"),
    _static(MOVE_THREADS, INT, None),
    # Also the time within which a log directory must respond before it counts as failed.
    _static("log.dir.failure.timeout.ms", LONG, "30000", _POSITIVE),
    # Long enough for an operator to mount or repair the disk; -1: never.
    _static("log.dir.heal.delay.ms", LONG, "600000", Range(-1)),
    Key(RECOVERY_THREADS, INT, "2", Range(1, 256)),
    # Kafka's default is true; here a mistyped name creates nothing unless the operator enables it.
    _static("auto.create.topics.enable", BOOLEAN, "false"),
    _static("socket.request.max.bytes", INT, "104857600"),
    # Kafka's default is 2147483647. Each connection holds a descriptor and some memory, all of which one client could
    # otherwise take; half of the descriptors (RLIMIT_NOFILE) stay with the replicas in any case.
    Key("max.connections", INT, "8192", _ANY),
    Key("max.connections.per.ip", INT, "2147483647", _ANY),
    _static("max.connections.per.ip.overrides", STRING, ""),
    _static("connections.max.idle.ms", LONG, "600000"),
    # Kafka's default is -1, no limit. Here a few clients with large requests could then take all memory of a process
    # that also copies replicas; at the limit the node only pauses reading. Two and a half of the largest requests fit.
    _static("queued.max.request.bytes", LONG, "268435456"),
    _static("replica.high.watermark.checkpoint.interval.ms", LONG, "5000"),
    _static("auto.leader.rebalance.enable", BOOLEAN, "true"),
    _static("leader.imbalance.check.interval.seconds", LONG, "300", _POSITIVE),
    # A follower that has been behind its leader for this long is no longer in sync.
    _static("replica.lag.time.max.ms", LONG, "30000", _POSITIVE),
    # Followers fetch by these, and no move copies more at once.
    _static("replica.fetch.max.bytes", INT, "1048576", _ANY),
    _static("replica.fetch.response.max.bytes", INT, "10485760", _ANY),
    _static("replica.fetch.wait.max.ms", INT, "500", _ANY),
    _static("replica.fetch.min.bytes", INT, "1", _ANY),
    _static("replica.fetch.backoff.ms", INT, "1000", _ANY),
    _static("replica.socket.timeout.ms", INT, "30000", _POSITIVE),
    # Threads and connections per leader and log directory, for followers that are in sync and, separately, for others.
    Key(FETCHERS, INT, "1", _POSITIVE),
    _static("log.flush.offset.checkpoint.interval.ms", INT, "60000"),
    _static("log.flush.start.offset.checkpoint.interval.ms", INT, "60000"),
    _static("log.retention.check.interval.ms", LONG, "300000"),
    _static("group.initial.rebalance.delay.ms", INT, "3000"),
    _static("group.min.session.timeout.ms", INT, "6000"),
    _static("group.max.session.timeout.ms", INT, "1800000"),
    _static("group.max.size", INT, "2147483647"),
    _static("offset.metadata.max.bytes", INT, "4096"),
    _static("offsets.retention.minutes", INT, "10080", _POSITIVE),
    _static("offsets.retention.check.interval.ms", LONG, "600000", _POSITIVE),
    # Not Kafka's from here on. The cluster that the log directories must be formatted for, if it is to be checked.
    _static("cluster.id", STRING, None),
    # The approximate memory that the offsets and members of groups may take, in bytes.
    _static("group.state.max.bytes", LONG, "33554432", _POSITIVE),
    # How often the health of each log directory is checked, by a small file.
    _static("log.dir.health.check.interval.ms", LONG, "5000"),
    # Threads that read and append, per directory, so that a slow disk delays only itself.
    _static("num.io.threads.per.data.dir", INT, "4"),
    # The longest time that a swap may catch up before it is "behind" and the copy continues.
    _static("replica.move.swap.deadline.ms", LONG, "2000"),
    # Serve the private API to other peers than the loopback.
    _static("private.api.remote.enable", BOOLEAN, "false"),
)

#: The configs of a broker.
BROKER: Mapping[str, Key] = {key.name: key for key in _BROKER}

#: Names in a proposal (KIP-113) for what became another key.
PROPOSED: Mapping[str, str] = {
    "intra.broker.throttled.rate": MOVE_RATE,
    "num.replica.move.threads": MOVE_THREADS,
    "num.replica.alter.log.dirs": MOVE_THREADS,
}

#: All names of broker keys that are aliases of another one; the last is the topics' own name.
ALIASES: Mapping[str, str] = {**PROPOSED, "file.delete.delay.ms": "log.segment.delete.delay.ms"}


def factor(synonym: str) -> int:
    """Return the milliseconds per unit of a broker key: some are in hours or minutes where the topic's is in
    milliseconds.
    """
    return {"hours": 3_600_000, "minutes": 60_000}.get(synonym.rpartition(".")[2], 1)
