"""Print the page about finding plans by search attributes: `python -m ops.docs.searching > ops/docs/searching.md`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from workflows.model import names
from workflows.model.search_attributes import (
    CLUSTER,
    DEADLINE,
    LARGEST_LIST,
    MORE,
    NODES,
    OUTCOME,
    PHASE,
    TOPICS,
    TYPES,
)

_HEAD = f"""# Finding plans and their lanes

Runs of `{names.REASSIGNMENT_PLAN}`, `{names.PLAN_LANE}` and `{names.EVACUATE_DIRECTORY}` have search attributes, by
which Temporal's UI and `temporal workflow list --query QUERY` find them. A lane is the run that moves up to fifty
replicas of a plan. The page is printed by `python -m ops.docs.searching > ops/docs/searching.md`.

The worker registers the attributes when it starts, `rehome plan submit` and `rehome drain` before a run. Where the
server rejects that, the worker logs a note and runs plans without them; an administrator can create them with
`temporal operator search-attribute create`, and plans that are checked from then on have them.
"""

_MEANINGS = {
    CLUSTER: "the cluster's name, as in the task queues",
    TOPICS: "topics with a replica that moves",
    NODES: "brokers whose disks are read or written",
    PHASE: "the phase of the query `progress`; `ended` at the end",
    OUTCOME: "done, failed, cancelled, or (plans) rolled_back; none while the run is open",
    DEADLINE: "a plan's option `deadline`",
}

_TAIL = f"""
A list holds at most {LARGEST_LIST} bytes. One that was cut ends with `{MORE}`: add `OR {TOPICS} = '{MORE}'` to a query
that must find every plan. Lanes are smaller, and their lists are rarely cut.
"""


@dataclass(frozen=True, slots=True)
class Query:
    """A question, and the query that answers it; TOPIC, NODE, CLUSTER and NOW stand for values."""

    question: str
    query: str

    def of(self, **values: str) -> str:
        """Return the query with values."""
        found = self.query
        for name, value in values.items():
            found = found.replace(name.upper(), value)
        return found


_LANES = f"WorkflowType = '{names.PLAN_LANE}'"
_PLANS = f"WorkflowType = '{names.REASSIGNMENT_PLAN}'"
_OPEN = "CloseTime IS NULL"
QUERIES = {
    "of_cluster": Query("all runs of plans of a cluster", f"{CLUSTER} = 'CLUSTER'"),
    "topic_now": Query("moves of a topic that are under way", f"{_LANES} AND {TOPICS} = 'TOPIC' AND {_OPEN}"),
    "topic_ever": Query("moves of a topic, as far back as the server keeps runs", f"{_LANES} AND {TOPICS} = 'TOPIC'"),
    "node_now": Query("moves from or to a broker that are under way", f"{_LANES} AND {NODES} = 'NODE' AND {_OPEN}"),
    "stalled": Query("moves that do not advance", f"{_LANES} AND {PHASE} = 'stalled' AND {_OPEN}"),
    "late": Query("plans that are late", f"{_PLANS} AND {DEADLINE} < 'NOW' AND {_OPEN}"),
    "paused": Query("plans that an operator has paused", f"{_PLANS} AND {PHASE} = 'paused' AND {_OPEN}"),
    "approval": Query("plans that wait for an approval", f"{_PLANS} AND {PHASE} = 'awaiting_approval' AND {_OPEN}"),
    "missed": Query("plans that did not reach all targets", f"{_PLANS} AND {OUTCOME} = 'failed'"),
    "back": Query(
        "plans that were cancelled or rolled back", f"{_PLANS} AND {OUTCOME} IN ('cancelled', 'rolled_back')"
    ),
}


def page() -> str:
    """Return the page."""
    lines = [_HEAD, "| attribute | type | value |", "|---|---|---|"]
    lines += [f"| {name} | {TYPES[name]} | {meaning} |" for name, meaning in _MEANINGS.items()]
    lines += ["", "| question | query |", "|---|---|"]
    lines += [f"| {each.question} | `{each.query}` |" for each in QUERIES.values()]
    return "\n".join(lines) + "\n" + _TAIL


if __name__ == "__main__":
    sys.stdout.write(page())
