"""The storage node's exceptions.

Two trees. `StorageError` is KIP-18's: an I/O error, wrapped once at the lowest level with the log directory it happened
in, and handled in one place that takes the directory offline. `RequestRefused` is everything else that a request can be
refused for; it carries Kafka's error code and one sentence for a person, and changes nothing on disk.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Kafka's error codes, as far as the node answers with them."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


class StorageError(Exception):
    """An I/O error on a log directory (KIP-18's KafkaStorageException).

    Arguments: the absolute path of the log directory, what was being done, the OSError as `__cause__`.
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
    """A flush failed: what the file holds is unknown from now on, and it is never retried."""


class HighWatermarkIOError(StorageError):
    """A checkpoint file could not be read or written."""


class MetadataIOError(StorageError):
    """meta.properties, the lock, a marker or another small file of the directory failed."""


class LogDirectoryOffline(StorageError):
    """The directory was taken offline earlier."""


class RequestRefused(Exception):
    """A request that is refused with one of Kafka's error codes and one sentence; nothing was changed."""

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


class UnknownTopicOrPartition(RequestRefused):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class NotLeaderOrFollower(RequestRefused):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class ReplicaNotAvailable(RequestRefused):
    """Known to the cluster, but this node has no replica of it (yet)."""

    code = ErrorCode.REPLICA_NOT_AVAILABLE


class NotEnoughReplicas(RequestRefused):
    """The ISR is smaller than min.insync.replicas."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class LogDirNotFound(RequestRefused):
    """The path is not one of log.dirs."""

    code = ErrorCode.LOG_DIR_NOT_FOUND


class InvalidTopic(RequestRefused):
    """A topic's name that is not allowed, or too long to be moved."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class OutOfOrderSequence(RequestRefused):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(RequestRefused):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class NotEnoughSpace(RequestRefused):
    """The target directory has no room: the move fails, the directory stays online."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


#: What became of a change that had no answer in time: it was never sent, or it was.
NOTHING_CHANGED = "nothing was changed"
MAY_COME = "it may still be made: look before asking again"


class RequestTimedOut(RequestRefused):
    """Whoever was asked, mostly the controller, did not answer in time; nothing is left on this node's disks.

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
