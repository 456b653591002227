"""Document each config in a sentence, for DescribeConfigs with documentation."""

from __future__ import annotations

from collections.abc import Mapping

from storage_node.config.table import BROKER, FETCHERS, MOVE_RATE, MOVE_THREADS, TOPIC

_TOPIC: Mapping[str, str] = {
    "cleanup.policy": "What becomes of old segments: delete removes them by retention.ms and retention.bytes.",
    "compression.gzip.level": "The level of gzip where compression.type is gzip.",
    "compression.lz4.level": "The level of lz4 where compression.type is lz4.",
    "compression.type": "How batches are kept: producer leaves them as they came.",
    "compression.zstd.level": "The level of zstd where compression.type is zstd.",
    "delete.retention.ms": "How long a compacted topic keeps the marks of deleted keys, in milliseconds.",
    "file.delete.delay.ms": "How long a file that was deleted stays on disk under another name, in milliseconds.",
    "flush.messages": "After how many records a log is flushed to disk.",
    "flush.ms": "After how many milliseconds a log is flushed to disk.",
    "follower.replication.throttled.replicas": "Replicas whose fetching is throttled: partition:broker pairs, or *.",
    "index.interval.bytes": "How many bytes of records come between two entries of the offset index.",
    "leader.replication.throttled.replicas": "Replicas throttled where they are read: partition:broker pairs, or *.",
    "local.retention.bytes": "How many bytes of a tiered partition stay on the broker; -2 is retention.bytes.",
    "local.retention.ms": "How long segments of a tiered partition stay on the broker; -2 is retention.ms.",
    "max.compaction.lag.ms": "The longest that a record of a compacted topic waits for compaction, in milliseconds.",
    "max.message.bytes": "The largest batch that is taken, in bytes.",
    "message.timestamp.after.max.ms": "How far a record's timestamp may be after the broker's, in milliseconds.",
    "message.timestamp.before.max.ms": "How far a record's timestamp may be before the broker's, in milliseconds.",
    "message.timestamp.type": "Whether records carry the time they were made or the time they were appended.",
    "min.cleanable.dirty.ratio": "Which share of a compacted log must be new before it is compacted again.",
    "min.compaction.lag.ms": "The shortest that a record of a compacted topic stays uncompacted, in milliseconds.",
    "min.insync.replicas": "How many replicas must be in sync for a write with acks=all.",
    "preallocate": "Whether a new segment takes its space on disk at once.",
    "remote.log.copy.disable": "Whether a tiered topic stops copying to remote storage.",
    "remote.log.delete.on.disable": "Whether data in remote storage goes when a topic leaves it.",
    "remote.storage.enable": "Whether a topic's old segments go to remote storage.",
    "retention.bytes": "The size of a partition above which its oldest segments go, in bytes; -1 for none.",
    "retention.ms": "How long records are kept, in milliseconds; -1 for ever.",
    "segment.bytes": "The size at which a new segment is begun, in bytes.",
    "segment.index.bytes": "The largest size of an index file, in bytes.",
    "segment.jitter.ms": "The most that is taken off segment.ms at random, in milliseconds.",
    "segment.ms": "After how many milliseconds a new segment is begun.",
    "unclean.leader.election.enable": "Whether a replica that is not in sync may lead when no other is left.",
}

_BROKER: Mapping[str, str] = {
    MOVE_RATE: "How fast replicas are moved between this broker's log directories, bytes per second, all together.",
    "leader.replication.throttled.rate": "How fast throttled replicas are read by followers, bytes per second.",
    "follower.replication.throttled.rate": "How fast throttled replicas are fetched from leaders, bytes per second.",
    "node.id": "The id of this node in its cluster.",
    "broker.id": "The id of this broker, as older versions call node.id.",
    "broker.rack": "The rack of this node: replicas of a partition are spread over racks.",
    "log.dir": "The log directory, where log.dirs is not given.",
    "log.dirs": "The directories that hold replicas, separated by commas.",
    "metadata.log.dir": "The directory that must be formatted for a start: the first of log.dirs if not set.",
    "listeners": "The address that this node listens on.",
    "advertised.listeners": "The address that clients connect to.",
    "num.partitions": "How many partitions a topic gets that is created without a number.",
    "default.replication.factor": "How many replicas a partition gets that is created without a number.",
    "cordoned.log.dirs": "Log directories that get neither new replicas nor copies of them; * means all.",
    MOVE_THREADS: "How many replicas are copied between log directories at a time; one per directory if not set.",
    "log.dir.failure.timeout.ms": "The time within which a log directory must respond before it counts as failed.",
    "log.dir.heal.delay.ms": "Milliseconds until a failed log directory has its replicas again in others; -1: never.",
    "num.recovery.threads.per.data.dir": "Threads per log directory that open logs at start and close them at the end.",
    "auto.leader.rebalance.enable": "Whether a node requests the leadership of the partitions that prefer it.",
    "leader.imbalance.check.interval.seconds": "How often a node checks which partitions it should lead.",
    "auto.create.topics.enable": "Whether a requested topic that does not exist is created.",
    "socket.request.max.bytes": "The largest request that is accepted, in bytes.",
    "max.connections": "How many connections are held at a time.",
    "max.connections.per.ip": "How many connections one address may hold.",
    "max.connections.per.ip.overrides": "How many connections single addresses may hold: address:number, with commas.",
    "connections.max.idle.ms": "After how many milliseconds without a request a connection is closed.",
    "queued.max.request.bytes": "How many bytes of requests are held at a time; -1 for any number.",
    "replica.high.watermark.checkpoint.interval.ms": "How often high watermarks are written to disk, in milliseconds.",
    "replica.lag.time.max.ms": "How long a follower may be behind before it is no longer in sync, in milliseconds.",
    "replica.fetch.max.bytes": "How much a follower fetches of a partition, and a move copies, at a time.",
    "replica.fetch.response.max.bytes": "How much a follower fetches, and a move copies, at a time.",
    "replica.fetch.wait.max.ms": "How long a leader may keep a follower's fetch waiting for records, in milliseconds.",
    "replica.fetch.min.bytes": "How many bytes of records a follower's fetch waits for.",
    "replica.fetch.backoff.ms": "The longest that a follower waits before it tries again, in milliseconds.",
    "replica.socket.timeout.ms": "How long a follower waits for a response beyond that, in milliseconds.",
    FETCHERS: "How many threads fetch from each leader into each log directory.",
    "log.flush.offset.checkpoint.interval.ms": "How often recovery points are written to disk, in milliseconds.",
    "log.flush.start.offset.checkpoint.interval.ms": "How often log starts are written to disk, in milliseconds.",
    "log.retention.check.interval.ms": "How often old segments are looked for, in milliseconds.",
    "group.initial.rebalance.delay.ms": "How long an empty group waits for more members, in milliseconds.",
    "group.min.session.timeout.ms": "The shortest session timeout that a consumer may request, in milliseconds.",
    "group.max.session.timeout.ms": "The longest session timeout that a consumer may request, in milliseconds.",
    "group.max.size": "How many members a group may have.",
    "offset.metadata.max.bytes": "How long the text beside a committed offset may be, in bytes.",
    "offsets.retention.minutes": "How long offsets of a group without members are kept, in minutes.",
    "offsets.retention.check.interval.ms": "How often expired offsets are looked for, in milliseconds.",
    "group.state.max.bytes": "How much memory offsets and members of groups may take; beyond it new ones are refused.",
    "cluster.id": "The cluster that the log directories must be formatted for.",
    "log.dir.health.check.interval.ms": "How often each log directory gets a health check, in milliseconds.",
    "num.io.threads.per.data.dir": "Threads that read and append, per log directory.",
    "replica.move.swap.deadline.ms": "How long a swap may catch up before the copy continues, in milliseconds.",
    "private.api.remote.enable": "Whether the private API responds to peers other than the loopback.",
}

_OF = {name: key.name for key in TOPIC.values() for name in key.synonyms}


def documentation(name: str) -> str | None:
    """Return the documentation of a topic's or a broker's config; None for an unknown name."""
    if name in _TOPIC and name not in BROKER:
        return _TOPIC[name]
    if name in _OF:
        return f"{_TOPIC[_OF[name]]} For topics that have no {_OF[name]} of their own."
    return _BROKER.get(name)
