"""A controller that repeats its decisions with other outcomes: its nodes notice, and follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.activities.cluster import running, until
from tests.activities.impatient import OTHER_RULES
from tests.support.programs.temporal import TemporalServer

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]


def test_nodes_detect_a_controller_with_other_rules(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster") as cluster:
        cluster.create_topic("before", configs={"retention.ms": "1111111"})
        status = cluster.ask("status")["metadata"]
        assert status == {"differs": False, "differences": 0, "last_difference": None}

        cluster.kill("controller")
        cluster.start_controller({OTHER_RULES: "2222222"})
        cluster.create_topic("after")

        def noticed() -> bool:
            found = cluster.ask("status")["metadata"]
            return bool(found["differences"]) and not found["differs"]

        until("the node has noticed, and has the controller's metadata", noticed)
        last = cluster.ask("status")["metadata"]["last_difference"]
        assert last["digest"] != last["controller_digest"]
        log = cluster.log("node-1")
        assert "is not the controller's: its digest is" in log and "the controller's again" in log
        assert cluster.query(cluster.name, "describe")["rules"] == 1
        # The next change finds the two agreed.
        noted = cluster.ask("status")["metadata"]["differences"]
        cluster.create_topic("later")
        assert cluster.ask("status")["metadata"]["differences"] == noted
