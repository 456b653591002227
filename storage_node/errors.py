"""Define the storage node's exceptions.

Two trees. `StorageError` is KIP-18's: an I/O error, wrapped once at the lowest level with the log directory it happened
in, and handled in one place that takes the directory offline. `RequestRefused` is every other reason to reject a
request; it carries Kafka's error code and one sentence for a person, and changes nothing on disk.
"""

from __future__ import annotations

from storage_node.model.error_codes import ErrorCode


class StorageError(Exception):
    """An I/O error on a log directory (KIP-18's KafkaStorageException).

    Arguments: the absolute path of the log directory, the operation, the OSError as `__cause__`.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, directory: str, doing: str) -> None:
        super().__init__(f"{doing} failed on log directory {directory}")
        self.directory = directory
        self.doing = doing


class LogAppendError(StorageError):
    """Appending to a log failed."""


class LogReadError(StorageError):
    """Reading from a log failed."""


class LogFlushError(StorageError):
    """A flush failed: the file's contents are unknown from now on, and the flush is never retried."""


class CheckpointIOError(StorageError):
    """A checkpoint file could not be read or written."""


class MetadataIOError(StorageError):
    """meta.properties, the lock, a marker or another small file of the directory failed."""


class LogDirectoryOffline(StorageError):
    """The directory was taken offline earlier."""


class RequestRefused(Exception):
    """A request is rejected with one of Kafka's error codes and one sentence; nothing was changed."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class CorruptRecord(RequestRefused):
    """A record batch whose CRC, magic or lengths are wrong."""

    code = ErrorCode.CORRUPT_MESSAGE


class OffsetOutOfRange(RequestRefused):
    """A read below the log start offset or beyond the log end offset."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class LogStartBeyondEnd(RequestRefused):
    """A log whose records all lie below the log start offset that another file has; nothing of it was removed."""

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


class UnknownTopicOrPartition(RequestRefused):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class NotLeaderOrFollower(RequestRefused):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class ReplicaNotAvailable(RequestRefused):
    """The cluster has the replica, but this node does not (yet)."""

    code = ErrorCode.REPLICA_NOT_AVAILABLE


class NotEnoughReplicas(RequestRefused):
    """The ISR is smaller than min.insync.replicas."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class LogDirNotFound(RequestRefused):
    """The path is not one of log.dirs."""

    code = ErrorCode.LOG_DIR_NOT_FOUND


class InvalidTopic(RequestRefused):
    """A topic's name is not valid, or too long for a move."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class OutOfOrderSequence(RequestRefused):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class UnknownProducer(RequestRefused):
    """The log has no state of the producer: it continues under a new epoch, from sequence 0."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class InvalidProducerEpoch(RequestRefused):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class NotEnoughSpace(RequestRefused):
    """The target directory has no room: the move fails, the directory stays online."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


#: What became of a change that got no response in time: it was never sent, or it was.
NOTHING_CHANGED = "nothing was changed"
MAY_COME = "it may still be applied: check before you send the request again"


class RequestTimedOut(RequestRefused):
    """The recipient, mostly the controller, did not respond in time; nothing is left on this node's disks.

    The message says whether a change may still be made.
    """

    code = ErrorCode.REQUEST_TIMED_OUT


class ReplicaBusy(RequestRefused):
    """Another run holds the claim on this replica; `owner` is its workflow id."""

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, message: str, owner: str) -> None:
        super().__init__(message)
        self.owner = owner


class StaleClaim(RequestRefused):
    """The request carries a claim that is no longer the newest: a newer run or request owns the move."""

    code = ErrorCode.INVALID_REQUEST


class Superseded(RequestRefused):
    """The replica on disk has a higher generation than the request expects: nothing is touched."""

    code = ErrorCode.INVALID_REQUEST


class MovesStopped(RequestRefused):
    """An operator stopped all moves on this node."""

    code = ErrorCode.POLICY_VIOLATION
