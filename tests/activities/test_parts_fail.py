"""Temporal's side of a node, and the controller's process, outlive whatever one of their parts fails with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from temporalio.api.workflowservice.v1 import PauseWorkflowExecutionRequest, UnpauseWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.temporal import state_file
from activities.temporal.describing import describe_run
from tests.activities.cluster import Cluster, move, running, until
from tests.support.programs.temporal import TemporalServer
from tests.support.refusing_server import refusing

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

FAILING = Path(__file__).with_name("failing.py")


@pytest.fixture(scope="module")
def cluster(temporal_server: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose parts fail when a test arms their points."""
    folder = tmp_path_factory.mktemp("parts")
    environment = {"REHOME_STATE_FILE": str(folder / "controller.state")}
    with running(temporal_server, f"c-{folder.name}", folder, environment=environment, program=FAILING) as it:
        yield it


def of_node(cluster: Cluster) -> dict[str, Any]:
    """The node's account of its client of Temporal."""
    return dict(cluster.ask("controller-client")["client"])


def of_controller(cluster: Cluster) -> dict[str, Any]:
    return dict((state_file.read(Path(cluster.environment["REHOME_STATE_FILE"])) or {})["temporal_client"])


def restarts(state: dict[str, Any], part: str) -> int:
    """How often a part that runs was started again; -1 while it does not run."""
    (row,) = [each for each in state["restarted"] if each["part"] == part] or [{"running": True, "restarts": 0}]
    return int(row["restarts"]) if row["running"] else -1


def test_every_part_runs_without_a_restart(cluster: Cluster) -> None:
    # A change of the state is in the controller's file soon, not at once.
    until("the file has the connection", lambda: of_controller(cluster)["connected"])
    for state in (of_node(cluster), of_controller(cluster)):
        assert state["connected"] and state["restarted"] == [] and state["notes"] == []
        assert (state["address"], state["namespace"]) == (cluster.server.address, "default")


def make(cluster: Cluster, topic: str) -> None:
    """Make a topic while a part fails: the client always has a response, at worst that the outcome is not known."""
    try:
        cluster.create_topic(topic)
    except KafkaException as error:
        assert error.args[0].code() == KafkaError.REQUEST_TIMED_OUT, error

        def there() -> bool:
            with contextlib.suppress(KafkaException):
                cluster.create_topic(topic)
            return topic in cluster.admin().list_topics(timeout=10).topics

        until("the topic is there", there)


@pytest.mark.parametrize(
    ("point", "part"),
    [
        ("part.client", "the client"),
        ("part.updates", "sending updates"),
        ("part.registering", "registering"),
        ("part.short", "serving the queues"),
        ("part.moves", "serving the queues"),
        ("part.orphans", "looking after moves without a run"),
        ("part.thread", "Temporal's thread"),
    ],
)
def test_part_of_a_node_that_fails_works_again(cluster: Cluster, point: str, part: str) -> None:
    topic = point.removeprefix("part.")
    before = restarts(of_node(cluster), part)
    with cluster.armed({point: "raise"}):
        make(cluster, topic)
        cluster.wait_passed(point)
        until(f"{part} runs again", lambda: restarts(of_node(cluster), part) == before + 1)
    count = cluster.produce(topic, 0.1)
    cluster.wait_registered()
    cluster.start_move(f"move-{topic}", move(topic, 0, 1, cluster.other_disk(topic)))
    assert cluster.result(f"move-{topic}")["rows"][0]["outcome"] == "deleted"
    assert cluster.read_numbers(topic, count) == list(range(count))
    assert of_node(cluster)["connected"]


def test_failed_start_of_a_run_is_retried(cluster: Cluster) -> None:
    cluster.create_topic("starting")
    target = cluster.other_disk("starting")
    with cluster.armed({"part.starting": "raise"}):
        assert cluster.alter_log_dirs(("starting", 0, 1, target)) == ["NoError"]
        cluster.wait_passed("part.starting")
    until("it is moved", lambda: cluster.where("starting") == [f"{target.name}/starting-0"])


@pytest.mark.parametrize(
    ("point", "part"),
    [
        ("part.workflows", "workflows"),
        ("part.exports", "exports"),
        ("part.house", "housekeeping"),
        ("part.state_file", "the state file"),
    ],
)
def test_part_of_the_controller_that_fails_works_again(cluster: Cluster, point: str, part: str) -> None:
    before = restarts(of_controller(cluster), part)
    with cluster.armed({point: "raise"}):
        cluster.wait_passed(point)
        until(f"{part} runs again", lambda: restarts(of_controller(cluster), part) == before + 1)
    cluster.create_topic(point.removeprefix("part."))
    assert cluster.processes["controller"].poll() is None


def test_housekeeping_that_failed_still_starts_the_controller_again(cluster: Cluster) -> None:
    with cluster.armed({"part.house": "raise"}):
        cluster.wait_passed("part.house")
    before = int(cluster.ask("incarnation")["generation"])
    cluster.with_handle(cluster.name, lambda handle: handle.terminate())
    cluster.wait_generation(before + 1)


def pause(cluster: Cluster, *, go_on: bool = False) -> None:
    """Pause the controller's run as an operator does, or resume it."""

    async def ask(client: Client) -> bool:
        service, named = client.workflow_service, {"namespace": client.namespace, "workflow_id": cluster.name}
        # A task of the run that ends at the same moment would take the pause back (temporal issue 10239).
        with contextlib.suppress(RPCError):
            if go_on:
                await service.unpause_workflow_execution(UnpauseWorkflowExecutionRequest(**named, identity="operator"))
            else:
                await service.pause_workflow_execution(PauseWorkflowExecutionRequest(**named, identity="operator"))
        found = await describe_run(client, cluster.name)
        return found is not None and found.paused is not go_on

    until("the run goes on" if go_on else "the run is paused", lambda: cluster.run(ask), pause=0.5)


def test_paused_controller_ends_neither_node_nor_process(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    environment = {"REHOME_STATE_FILE": str(tmp_path / "controller.state")}
    with running(temporal_server, task_queue, tmp_path / "cluster", environment=environment) as cluster:
        cluster.create_topic("t")
        count = cluster.produce("t", 0.1)
        sentence = f"resume it with: temporal workflow unpause --workflow-id {cluster.name}"

        def both_say_so() -> bool:
            states = of_node(cluster), of_controller(cluster)
            return all(any(sentence in note for note in state["notes"]) for state in states)

        cluster.kill("node-1")
        assert cluster.stop("controller") == 0
        pause(cluster)
        cluster.start_controller()
        cluster.start_node(1)
        cluster.wait_serving()
        until("both report that it is paused", both_say_so)
        assert cluster.read_numbers("t", count) == list(range(count))
        pause(cluster, go_on=True)
        cluster.wait_registered()
        cluster.create_topic("u")
        for state in (of_node(cluster), of_controller(cluster)):
            assert state["connected"] and state["restarted"] == [], state
        until("neither reports it any more", lambda: not (of_node(cluster)["notes"] or of_controller(cluster)["notes"]))
        assert cluster.processes["controller"].poll() is None


def test_rejected_node_and_controller_report_it_and_recover_with_the_profile(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    profile = tmp_path / "temporal.toml"
    environment = {
        "REHOME_STATE_FILE": str(tmp_path / "controller.state"),
        "TEMPORAL_CONFIG_FILE": str(profile),
        "TEMPORAL_ADDRESS": "",
        "TEMPORAL_NAMESPACE": "",
    }
    cluster = Cluster(temporal_server, task_queue, tmp_path / "cluster", environment=environment)
    with refusing(16, "Jwt is expired") as other:
        try:
            credentials = 'api_key = "old"\n[profile.default.tls]\ndisabled = true\n'
            profile.write_text(f'[profile.default]\naddress = "{other}"\n{credentials}')
            cluster.start_controller()
            cluster.start_node(1)
            cluster.wait_serving()
            why = f"Temporal at {other} rejected this process's credentials for namespace default: Jwt is expired; "
            until("the node reports why", lambda: of_node(cluster)["reason"].startswith(why))
            until("the controller reports why", lambda: of_controller(cluster)["reason"].startswith(why))
            assert of_node(cluster)["kind"] == of_controller(cluster)["kind"] == "unauthorized"
            assert 1 <= cluster.log("node-1").count(why) <= 2, "logged once, and again each minute"
            profile.write_text(f'[profile.default]\naddress = "{temporal_server.address}"\n')
            cluster.wait_registered()
            cluster.create_topic("t")
            assert cluster.produce("t", 0.1)
            assert of_node(cluster)["connected"] and of_controller(cluster)["connected"]
        finally:
            cluster.close()
