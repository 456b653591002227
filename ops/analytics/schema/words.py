"""The enumerated values of the tables: each is defined once, most of them by the model."""

from __future__ import annotations

from storage_node.model.moves import ABSENCES, MoveState, Outcome, Phase, StallReason
from storage_node.model.reassignments import ReassignmentPhase, ReplicaState
from storage_node.model.sla import SlaVerdict
from workflows.model import names, phases

#: The reasons by which a node counts a move's time.
NODE_REASONS = tuple(
    reason for reason in StallReason if reason not in ABSENCES and reason is not StallReason.PAUSED_BY_SERVER
)
#: The absences of a node by which its run counts time; the rest of the time between two attempts is unknown.
KNOWN_ABSENCES = (StallReason.DEAD, StallReason.CUT_OFF, StallReason.FENCED)
#: The reasons that rows count.
COUNTED_REASONS = (*NODE_REASONS, *KNOWN_ABSENCES)
#: All, with unknown time: the node was unavailable for an unknown reason, or the run waited for a retry.
REASONS = (*COUNTED_REASONS, StallReason.UNAVAILABLE)

# What a move changes: the directory of a replica, its node, or both.
DISK, NODE, BOTH = "disk", "node", "both"
KINDS = (DISK, NODE, BOTH)

# Status of a run and state of an activity.
COMPLETED, FAILED, CANCELLED, TERMINATED, TIMED_OUT, CONTINUED, OPEN = (
    "completed",
    "failed",
    "cancelled",
    "terminated",
    "timed out",
    "continued as new",
    "open",
)

# Outcome of a move, beside the last five of the above.
MOVED, IN_PLACE, SUPERSEDED = "moved", Outcome.IN_PLACE, Outcome.SUPERSEDED
#: The outcomes of a move that reached its target.
DONE = (MOVED, IN_PLACE)

# Phases of a move. Those that the model does not have are parts of a copy, and the time between two steps.
CREATING, COPYING, SWAPPING = Phase.CREATING, Phase.COPYING, Phase.SWAPPING
DELETE_DELAY, CANCELLING = Phase.DELETE_DELAY, Phase.CANCELLING
QUEUED, THROTTLED = MoveState.QUEUED, MoveState.THROTTLED
STALLED, PAUSED, UNAVAILABLE = "stalled", phases.PAUSED, StallReason.UNAVAILABLE
# Phases that only a move between nodes has.
ASKING, DELETING, DIRECTING = ReassignmentPhase.ASKING, ReassignmentPhase.DELETING, ReassignmentPhase.DIRECTING
IN_SYNC = ReplicaState.IN_SYNC
#: In the order in which a report shows them.
PHASES = (
    *(ASKING, QUEUED, CREATING, COPYING, THROTTLED, STALLED, UNAVAILABLE, PAUSED, IN_SYNC, SWAPPING),
    *(DIRECTING, DELETE_DELAY, DELETING, CANCELLING),
)
#: The phases in which bytes are copied, or would be without a limit or a slow disk.
BUSY = (COPYING, THROTTLED, STALLED)

# Whether a move met its SLA.
YES, NO, NO_SLA, NOT_DUE, EXCLUDED = SlaVerdict

# What a throttle limits: the copies of one run, one node, or the replicas of one topic.
OF_RUN, OF_NODE, OF_TOPIC = "run", "node", "topic"

#: Types of workflows that plan moves: their children carry the plan's workflow id.
PLAN_TYPES = (names.REASSIGNMENT_PLAN,)
