"""The controller's memory is lost with Temporal's database, or goes back to yesterday's: the nodes know better."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.activities.cluster import Cluster, move, running, until
from tests.support.programs.temporal import TemporalServer
from workflows.model import names

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]


def forget(server: TemporalServer) -> None:
    """Remove the database of a server that does not run."""
    for path in server.folder.glob(f"{server.database.name}*"):
        path.unlink()


def topics(cluster: Cluster) -> set[str]:
    """The topics that the node tells its clients of."""
    admin = cluster.admin()
    return set(admin.list_topics(timeout=10).topics)


def test_deleted_database_is_recovered(own_temporal_server: TemporalServer, task_queue: str, tmp_path: Path) -> None:
    limit = {"replica.alter.log.dirs.io.max.bytes.per.second": "400000"}
    with running(own_temporal_server, task_queue, tmp_path / "cluster", settings=limit) as cluster:
        cluster.create_topic("t")
        count = cluster.produce("t", 8)
        generation = int(cluster.ask("incarnation")["generation"])
        target = cluster.other_disk("t")
        cluster.start_move("m", move("t", 0, 1, target))
        claim = cluster.wait_copying("t")["claim"]
        own_temporal_server.kill()
        forget(own_temporal_server)
        own_temporal_server.start()
        cluster.wait_generation(generation + 1)
        assert topics(cluster) == {"t"}
        cluster.create_topic("after")

        # The run that moved the replica is as unknown as everything else: a new one carries on with its copy.
        adopted = names.move_id(cluster.name, 1, "t", 0, 1, claim + 1)
        cluster.set_move_rate(None)
        (row,) = until("a new run carries on", lambda: cluster.result(adopted, 60), 60)["rows"]
        assert row["outcome"] == "deleted" and cluster.disk_of("t") == target
        assert cluster.read_numbers("t", count) == list(range(count))


def test_restored_database_is_recovered(own_temporal_server: TemporalServer, task_queue: str, tmp_path: Path) -> None:
    server = own_temporal_server
    with running(server, task_queue, tmp_path / "cluster") as cluster:
        cluster.create_topic("yesterday")
        generation = int(cluster.ask("incarnation")["generation"])
        server.stop()
        backup = tmp_path / "backup"
        backup.mkdir()
        for path in server.folder.glob(f"{server.database.name}*"):
            shutil.copy(path, backup / path.name)
        server.start()
        cluster.wait_registered()
        cluster.create_topic("today")
        target = cluster.other_disk("yesterday")
        cluster.start_move("m", move("yesterday", 0, 1, target))
        assert cluster.result("m")["rows"][0]["outcome"] == "deleted"

        server.stop()
        forget(server)
        for path in backup.iterdir():
            shutil.copy(path, server.folder / path.name)
        server.start()
        cluster.wait_generation(generation + 1)
        assert topics(cluster) == {"yesterday", "today"}
        assert cluster.disk_of("yesterday") == target
        cluster.create_topic("tomorrow")
        source = cluster.other_disk("yesterday")
        cluster.start_move("back", move("yesterday", 0, 1, source))
        assert cluster.result("back")["rows"][0]["outcome"] == "deleted"
