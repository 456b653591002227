"""worker.py with other waits: the same program, but what it waits for when something is away takes a second, not ten.

Heartbeat timeouts and leases are as ever, since what they tell apart (dead, or only slow) depends on their length.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import storage_node.admin
import storage_node.alter_log_dirs
import worker
from activities.controller import cluster_link, housekeeping
from activities.moves import copying, creating, orphans
from activities.node import runtime
from activities.temporal import client
from storage_node.model.metadata import TopicImage
from tests.support.steps import SHORT, limited
from workflows import options
from workflows.model import calls
from workflows.model.metadata import topics
from workflows.step_specs import SPECS

#: Seconds that a request for a directory waits for the controller, where a test is to see that it gives up.
PATIENCE = "REHOME_TEST_PATIENCE"
#: A value of retention.ms that a controller of other rules gives every new topic.
OTHER_RULES = "REHOME_TEST_OTHER_RULES"


def hurry() -> None:
    """Shorten what the modules read when they need it."""
    # How long the node waits for its controller, for itself and for its clients.
    storage_node.admin.DEFAULT_TIMEOUT = 2.0
    # (Who asks for a directory asks once: a stall of the machine is not to be told as a refusal.)
    if patience := os.environ.get(PATIENCE):
        storage_node.alter_log_dirs.DEFAULT_TIMEOUT = float(patience)
    # How often the node looks which controller there is, and the controller's process whether one runs.
    cluster_link.WATCH = 0.5
    cluster_link.PAUSE = 0.3
    cluster_link.LONGEST_PAUSE = 1.0
    housekeeping.WATCH = 0.3
    client.WATCH = 0.5
    # How long a `.move` may be without its run.
    orphans.LOOK = 0.2
    orphans.GRACE = 1.0
    # How long a cancel may be on its way to a copy.
    copying.HEARTBEAT = 0.2
    runtime.MOVES_THROTTLE = timedelta(seconds=0.2)
    # What is small is copied in the first step, for which 50 ms are not always enough where others use the machine.
    creating.SMALL_COPIES = 1.0
    # How long a run waits for a node before it asks whether there is one.
    second = timedelta(seconds=1)
    SPECS.update(limited(*SHORT, pick_up=second, accepted_pick_up=second))
    options.LOCATE_TIMEOUT = timedelta(seconds=2)
    SPECS.update(limited(calls.PLACE_REPLICAS, brief=second))
    options.COLLECT_AGAIN_AFTER = timedelta(seconds=1)
    # How long the controller stands still when a step of it was lost.
    options.CLUSTER_TASK_TIMEOUT = timedelta(seconds=5)


def decide_otherwise(retention: str) -> None:
    """Have new topics made by another rule than the one that histories were made by, as by a faulty new version."""
    new_topic = topics._new_topic

    def by_another_rule(*args: Any) -> TopicImage:
        topic = new_topic(*args)
        return replace(topic, configs={**topic.configs, "retention.ms": retention})

    topics._new_topic = by_another_rule


if __name__ == "__main__":
    hurry()
    if retention := os.environ.get(OTHER_RULES):
        decide_otherwise(retention)
    code = worker.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
