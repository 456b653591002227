"""Stable error types: they are recorded in histories and in the status of a move, and analytics groups by them."""

from __future__ import annotations

from enum import StrEnum


class ErrorType(StrEnum):
    """Why a step, a run or a request failed."""

    INVALID_PLAN = "InvalidPlan"  # a parameter cannot be used; the message has the path of the bad field
    UNKNOWN_REPLICA = "UnknownReplica"  # the topic, the partition or its replica on that node does not exist
    UNKNOWN_NODE = "UnknownNode"  # no node with that id has ever registered
    LOG_DIR_NOT_FOUND = "LogDirNotFound"  # the path is not one of the node's log.dirs
    LOG_DIR_OFFLINE = "LogDirOffline"  # source or target directory is offline
    TARGET_FULL = "TargetFull"  # not enough space in the target directory
    INVALID_TOPIC = "InvalidTopic"  # the name is too long for a `.move`
    REPLICA_BUSY = "ReplicaBusy"  # another run has the claim
    STALE_CLAIM = "StaleClaim"  # a newer claim was issued
    SUPERSEDED = "Superseded"  # a newer generation is on disk
    TOPIC_DELETED = "TopicDeleted"  # the topic of a partition that was reassigned was deleted
    REASSIGNMENT_REFUSED = "ReassignmentRefused"  # the controller rejected the change; its message gives the reason
    DIRECTORY_NOT_REACHED = "DirectoryNotReached"  # the replica is on its node, but not in the requested directory
    CORRUPT_SOURCE = "CorruptSource"  # a batch of the source fails its CRC
    MOVES_STOPPED = "MovesStopped"  # an operator stopped the node's moves; retried until they are resumed
    NODE_RESTARTED = "NodeRestarted"  # the attempt's node was killed or restarted: retried at once
    WRONG_INCARNATION = "WrongIncarnation"  # another incarnation of the node took the lease
    CONTROLLER_UNAVAILABLE = "ControllerUnavailable"  # the controller did not respond in time: retried
    NODE_FAILURE = "NodeFailure"  # anything unexpected on the node, retried
    EXPORT_BUSY = "ExportBusy"  # another export writes to the folder: retried
    EXPORT_CORRUPT = "ExportCorrupt"  # the folder contradicts its manifests
    EXPORT_FAILED = "ExportFailed"  # the folder cannot be written: retried
    KAFKA_UNAVAILABLE = "KafkaUnavailable"  # no broker of a plan's cluster responded: retried
    KAFKA_REJECTED = "KafkaRejected"  # a plan's cluster rejected a request; its message gives the reason: retried
    PLAN_NOT_STORED = "PlanNotStored"  # a worker lacks the plan's text, which the run sends it
    PLAN_REFUSED = "PlanRefused"  # the cluster cannot carry out the plan; its details are all problems
    ALERT_NOT_SENT = "AlertNotSent"  # no attempt could send an alert of a plan to its webhook
    NOTHING_TO_CHANGE = "NothingToChange"  # an update of a run requests what holds already
    TOO_LATE = "TooLate"  # an update of a run came after what it would have changed


#: Types that no retry can mend.
FINAL = (
    ErrorType.INVALID_PLAN,
    ErrorType.UNKNOWN_REPLICA,
    ErrorType.UNKNOWN_NODE,
    ErrorType.LOG_DIR_NOT_FOUND,
    ErrorType.LOG_DIR_OFFLINE,
    ErrorType.TARGET_FULL,
    ErrorType.INVALID_TOPIC,
    ErrorType.REPLICA_BUSY,
    ErrorType.STALE_CLAIM,
    ErrorType.SUPERSEDED,
    ErrorType.CORRUPT_SOURCE,
    ErrorType.WRONG_INCARNATION,
)

#: Failures of a move that may leave a useless `.move` on a good disk: it is removed before the move ends.
LEAVES_A_COPY = frozenset({ErrorType.TARGET_FULL, ErrorType.CORRUPT_SOURCE})
