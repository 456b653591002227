"""The words of a reassignment between nodes, each defined once; see `moves` for those of a move between directories."""

from __future__ import annotations

from enum import StrEnum


class ReplicaOutcome(StrEnum):
    """What a node reports of one replica of a reassignment when a step ends, and what the metadata says of its end."""

    PREFERRED = "preferred"  # the node will make the replica in the requested directory
    HELD = "held"  # the node has the replica, in the directory that the row names
    JOINED = "joined"  # all of the target is in sync: the reassignment is complete
    CANCELLED = "cancelled"  # the partition has its original replicas again
    GONE = "gone"  # the topic was deleted
    KEPT = "kept"  # nothing is to be deleted: the node is to have the partition
    DELETED = "deleted"  # the node has nothing of the partition on its disks any more
    FAILED = "failed"
    SUPERSEDED = "superseded"  # the partition has a later target

    @property
    def final(self) -> bool:
        """Whether it says how the partition's reassignment ended."""
        return self in (
            ReplicaOutcome.JOINED,
            ReplicaOutcome.CANCELLED,
            ReplicaOutcome.SUPERSEDED,
            ReplicaOutcome.GONE,
        )


class ReplicaState(StrEnum):
    """The state of one replica of a reassignment on its node while a step is under way."""

    PENDING = "pending"  # the node has not applied the reassignment yet
    PLACING = "placing"  # it has, and has not made the replica yet
    OFFLINE = "offline"  # the replica's directory is offline
    CATCHING_UP = "catching_up"
    IN_SYNC = "in_sync"  # other replicas are not in sync yet
    DELETING = "deleting"


class ReassignmentPhase(StrEnum):
    """The phase of a run of reassignments."""

    ASKING = "asking"  # the controller is to make the change
    CATCHING_UP = "catching_up"  # new replicas are made, fetch, and join the ISR
    DELETING = "deleting"  # the replica set is final; the data of removed replicas is deleted
    DIRECTING = "directing"  # replicas in another directory than the requested one are moved
    VERIFYING = "verifying"  # the run reads the result from the controller


class PartitionOutcome(StrEnum):
    """How the reassignment of one partition ended."""

    DONE = "done"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    FAILED = "failed"
