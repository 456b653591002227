"""Names and defaults of server.properties, as Kafka documents them."""

from __future__ import annotations

import re

LISTENERS = "PLAINTEXT://:9092"

#: Every key with a meaning here; None: no default (or one that depends on other keys).
DEFAULTS: dict[str, str | None] = {
    "listeners": LISTENERS,
    "num.partitions": "1",
    "default.replication.factor": "1",
    "num.replica.alter.log.dirs.threads": None,
    "replica.alter.log.dirs.io.max.bytes.per.second": str(2**63 - 1),
    "file.delete.delay.ms": "60000",
    "log.segment.delete.delay.ms": None,
    # Also the time within which a log directory must answer before it counts as failed.
    "log.dir.failure.timeout.ms": "30000",
    # Not Kafka's: how often each log directory is asked whether it is alive, by a small file.
    "log.dir.health.check.interval.ms": "5000",
    "num.recovery.threads.per.data.dir": "2",
    # Not Kafka's: threads that read and append, per directory, so that a slow disk delays only itself.
    "num.io.threads.per.data.dir": "4",
    # Kafka's default is true; here a name typed wrongly creates nothing unless the operator wants it so.
    "auto.create.topics.enable": "false",
    "message.max.bytes": "1048588",
    "socket.request.max.bytes": "104857600",
    "max.connections": "2147483647",
    "max.connections.per.ip": "2147483647",
    "max.connections.per.ip.overrides": "",
    "connections.max.idle.ms": "600000",
    # Kafka's default is -1, no limit. Here a few clients with large requests could then take all memory of a process
    # that also copies replicas, and at the limit reading only pauses: two of the largest requests and a half fit.
    "queued.max.request.bytes": "268435456",
    "replica.high.watermark.checkpoint.interval.ms": "5000",
    "log.flush.offset.checkpoint.interval.ms": "60000",
    "log.flush.start.offset.checkpoint.interval.ms": "60000",
    "log.retention.check.interval.ms": "300000",
    "log.flush.scheduler.interval.ms": str(2**63 - 1),
    # Not Kafka's: the longest time that a swap may hold a partition's lock before it gives way and copies on.
    "replica.move.swap.deadline.ms": "2000",
    "group.initial.rebalance.delay.ms": "3000",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "group.max.size": "2147483647",
    "offset.metadata.max.bytes": "4096",
    # Not Kafka's: answer the private API to other peers than the loopback.
    "private.api.remote.enable": "false",
    "log.segment.bytes": "1073741824",
    "log.roll.ms": None,
    "log.roll.hours": "168",
    "log.retention.ms": None,
    "log.retention.minutes": None,
    "log.retention.hours": "168",
    "log.retention.bytes": "-1",
    "log.index.interval.bytes": "4096",
    "log.index.size.max.bytes": "10485760",
    "log.flush.interval.messages": str(2**63 - 1),
    "log.flush.interval.ms": None,
    "log.message.timestamp.type": "CreateTime",
}

#: Keys whose meaning depends on more than a default.
OTHERS = ("node.id", "broker.id", "log.dirs", "log.dir", "metadata.log.dir", "advertised.listeners", "cluster.id")

#: Kafka's keys that say how a KRaft cluster is put together: nothing to warn about in a file that is shared with Kafka.
IGNORED = frozenset(
    {
        "process.roles",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "controller.listener.names",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "num.network.threads",
        "num.io.threads",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    }
)

#: Keys of other parts of the program that may stand in the same file.
PREFIXES = ("rehome.", "temporal.")

_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]*):(?P<port>\d{1,5})")


def parse_listener(value: str) -> tuple[str, int]:
    """Host and port of `PLAINTEXT://host:port`; of several, the first but the controller's. Raises ValueError."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    for part in parts:
        match = _LISTENER.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not of the form PLAINTEXT://host:port")
        if match["name"].upper() == "CONTROLLER" and len(parts) > 1:
            continue
        if match["name"].upper() in ("SSL", "SASL_SSL", "SASL_PLAINTEXT"):
            raise ValueError(f"{match['name']} is not offered, only PLAINTEXT")
        port = int(match["port"])
        if port > 65535:
            raise ValueError(f"port {port} is beyond 65535")
        return match["host"].strip("[]"), port
    raise ValueError("no listener")


def parse_overrides(value: str) -> dict[str, int]:
    """Host -> connections, of `host:100,127.0.0.1:200,[::1]:300`. Raises ValueError."""
    found: dict[str, int] = {}
    for part in (part.strip() for part in value.split(",")):
        if not part:
            continue
        host, _, count = part.rpartition(":")
        host = host.strip().strip("[]")
        if not host or not count.strip().isdecimal():
            raise ValueError(f"{part!r} is not of the form host:count")
        found[host] = int(count)
    return found
