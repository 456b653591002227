"""Stable error types of the workflows and activities: they stand in histories, and analytics groups by them."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from workflows.model.fields import BadField

INVALID_PLAN = "InvalidPlan"  # what a person typed cannot be used; names the path of the bad field
UNKNOWN_REPLICA = "UnknownReplica"  # no such topic, partition or replica on that node
UNKNOWN_NODE = "UnknownNode"  # no node with that id has ever registered
LOG_DIR_NOT_FOUND = "LogDirNotFound"  # the path is not one of the node's log.dirs
LOG_DIR_OFFLINE = "LogDirOffline"  # source or target directory is offline
TARGET_FULL = "TargetFull"  # not enough space in the target directory
INVALID_TOPIC = "InvalidTopic"  # the name is too long to be moved
REPLICA_BUSY = "ReplicaBusy"  # another run holds the claim
STALE_CLAIM = "StaleClaim"  # a newer claim was issued
SUPERSEDED = "Superseded"  # a newer generation is on disk
TOPIC_DELETED = "TopicDeleted"  # the topic is gone, with it the partition that was reassigned
REASSIGNMENT_REFUSED = "ReassignmentRefused"  # the controller refused the change; its message says why
DIRECTORY_NOT_REACHED = "DirectoryNotReached"  # the replica is on its node, but not in the directory asked for
CORRUPT_SOURCE = "CorruptSource"  # a batch of the source fails its CRC
MOVES_STOPPED = "MovesStopped"  # an operator stopped the node's moves; goes on when they are resumed
NODE_RESTARTED = "NodeRestarted"  # the attempt's node was killed or restarted: tried again at once
WRONG_INCARNATION = "WrongIncarnation"  # a lease picked up by another incarnation of the node
CONTROLLER_UNAVAILABLE = "ControllerUnavailable"  # the controller did not answer in time: tried again
NODE_FAILURE = "NodeFailure"  # anything unexpected on the node, tried again

#: Types that no retry can mend.
FINAL = (
    INVALID_PLAN,
    UNKNOWN_REPLICA,
    UNKNOWN_NODE,
    LOG_DIR_NOT_FOUND,
    LOG_DIR_OFFLINE,
    TARGET_FULL,
    INVALID_TOPIC,
    REPLICA_BUSY,
    STALE_CLAIM,
    SUPERSEDED,
    CORRUPT_SOURCE,
    WRONG_INCARNATION,
)


def invalid_plan(bad: BadField) -> ApplicationError:
    """How what cannot be used fails: with the path of the bad field as its detail."""
    return ApplicationError(str(bad), bad.path, type=INVALID_PLAN, non_retryable=True)
