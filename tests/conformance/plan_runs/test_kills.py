"""SIGKILL of the worker of plans, of Temporal's server, of a broker and of the controller, at eleven moments of a plan.

Whatever is killed, and whenever: the plan ends as it would have ended (but for one whose broker is unavailable at its
check: that is refused), each replica stands where its outcome says, all records are there, and the throttles are
those from before (conftest.py looks after each test).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.client import RPCError, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from tests.conformance.clusters import REHOME, Cluster
from tests.conformance.log_dirs.calls import where as directory_of
from tests.conformance.plan_runs.conftest import throttles
from tests.conformance.plan_runs.orchestrator import Orchestrator, Plan
from tests.conformance.plan_runs.test_plans import SLOW as RATES
from tests.conformance.plan_runs.test_plans import filled, other
from tests.conformance.replication.between import see, under_way
from tests.support.programs.temporal import TemporalServer, make_server
from tests.support.scale import FULL

pytestmark = pytest.mark.timeout(300)

#: The node that receives the replica of another one: the one that is killed.
TARGET = 2
#: All three are under way together, for as long as a test looks at them.
SLOW = {**RATES, "slots_per_disk": 3}
FAST = dict.fromkeys(RATES, 50_000_000)
PATIENCE = 150.0


@dataclass(frozen=True)
class Scene:
    """A plan of three moves: a small and a large one between directories of node 1, and one from node 1 to node 2."""

    cluster: Cluster
    orchestrator: Orchestrator
    plan: Plan
    small: str
    large: str
    node: str
    target: dict[str, str]

    def under_way_between_directories(self) -> bool:
        """Whether the node has the future log."""
        return directory_of(self.cluster, 1, self.large, future=True) is not None

    def moved(self) -> set[str]:
        """The topics whose replica stands at its target, and nothing of it elsewhere."""
        here = {
            topic for topic in (self.small, self.large) if directory_of(self.cluster, 1, topic) == self.target[topic]
        }
        found = see(self.cluster, self.node)
        return here | ({self.node} if found is not None and found.replicas == (TARGET,) else set())

    def eventually(self, what: Callable[[], Any], why: str) -> None:
        self.cluster.eventually(what, why, PATIENCE)


@dataclass(frozen=True)
class Moment:
    """How a plan gets there, what it needs afterwards to end, and how it ends."""

    reach: Callable[[Scene], Any]
    options: dict[str, Any]
    carry_on: Callable[[Scene], Any] = lambda scene: None
    ends: str = "done"


def _approve(scene: Scene) -> None:
    scene.plan.wait_phase("awaiting_approval")
    scene.plan.update("approve", {"by": "ada"})


def _small_is_moved(scene: Scene) -> None:
    scene.eventually(lambda: scene.plan.progress()["outcomes"].get("moved") == 1, "the small one is in place")


def _all_under_way(scene: Scene) -> None:
    scene.eventually(lambda: under_way(scene.cluster, scene.node) is not None, "the reassignment is under way")
    scene.eventually(scene.under_way_between_directories, "the copy between directories is under way")


def _update(kind: str, *argument: Any, after: Callable[[Scene], Any] = _all_under_way) -> Callable[[Scene], Any]:
    def reach(scene: Scene) -> None:
        after(scene)
        scene.plan.update(kind, *argument)

    return reach


def _pause_and_resume(scene: Scene) -> None:
    _all_under_way(scene)
    scene.plan.update("pause")
    scene.plan.update("resume")


ONE_AT_A_TIME = {**RATES, "lane_moves": 1, "slots_cluster": 1}
MOMENTS = {
    "submitted": Moment(lambda scene: None, SLOW),
    "awaiting approval": Moment(
        lambda scene: scene.plan.wait_phase("awaiting_approval"), {**SLOW, "approval": "required"}, _approve
    ),
    "approved": Moment(_approve, {**SLOW, "approval": "required"}),
    "throttles set": Moment(
        lambda scene: scene.eventually(lambda: throttles(scene.cluster)["nodes"], "a throttle is set"), SLOW
    ),
    "copying between brokers": Moment(
        lambda scene: scene.eventually(lambda: under_way(scene.cluster, scene.node), "it is under way"), SLOW
    ),
    "copying between directories": Moment(
        lambda scene: scene.eventually(scene.under_way_between_directories, "it is under way"), SLOW
    ),
    "next move begins": Moment(_small_is_moved, ONE_AT_A_TIME),
    "paused": Moment(_update("pause"), SLOW, lambda scene: scene.plan.update("resume")),
    "resumed": Moment(_pause_and_resume, SLOW),
    "cancelled": Moment(_update("cancel"), SLOW, ends="cancelled"),
    "rolling back": Moment(
        _update("cancel", {"rollback": True}, after=_small_is_moved), ONE_AT_A_TIME, ends="rolled_back"
    ),
}  # fmt: skip


def _kill_worker(scene: Scene) -> None:
    scene.orchestrator.kill()
    scene.orchestrator.start()


def _kill_temporal(scene: Scene) -> None:
    server = scene.orchestrator.server
    server.kill()
    server.start()


def _kill_broker(scene: Scene) -> None:
    scene.cluster.kill(TARGET)
    scene.cluster.start(TARGET)


def _kill_controller(scene: Scene) -> None:
    if scene.cluster.kind != REHOME:
        pytest.skip("the brokers are the controllers")
    with scene.cluster.no_controller(1):
        pass


VICTIMS = {"worker": _kill_worker, "temporal": _kill_temporal, "broker": _kill_broker, "controller": _kill_controller}
#: Who is killed, and when, outside the full set, which kills each of them at every moment.
OFTEN = [
    ("worker", "approved"),
    ("worker", "copying between directories"),
    ("worker", "paused"),
    ("temporal", "copying between brokers"),
    ("broker", "rolling back"),
    ("controller", "copying between brokers"),
]
CASES = list(itertools.product(VICTIMS, MOMENTS)) if FULL else OFTEN


@pytest.fixture(scope="module")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A server for this module alone, which kills it."""
    server = make_server(tmp_path_factory.mktemp("temporal"))
    server.start()
    yield server
    server.stop()


def _go_on(scene: Scene, moment: Moment) -> None:
    """Carry the plan on, without a throttle that holds it; it may have ended already."""
    moment.carry_on(scene)
    try:
        scene.plan.update("set_options", FAST)
    except (RPCError, WorkflowUpdateFailedError):
        assert moment.ends != "done" or not scene.plan.open


def _is_refused(scene: Scene) -> bool:
    """Whether the plan was checked while its broker was unavailable: that changes nothing, and names the broker."""
    scene.eventually(lambda: not scene.plan.open or scene.plan.progress()["phase"] == "moving", "it is checked")
    if scene.plan.open:
        return False
    with pytest.raises(WorkflowFailureError) as raised:
        scene.plan.result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError) and cause.type == "PlanRefused" and f"broker {TARGET}" in cause.message
    assert scene.moved() == set() and throttles(scene.cluster)["nodes"] == {}
    return True


@pytest.mark.parametrize(("victim", "moment"), CASES, ids=[f"{victim} at {moment}" for victim, moment in CASES])
def test_plan_survives_a_kill_at(victim: str, moment: str, cluster: Cluster, orchestrator: Orchestrator) -> None:
    at = MOMENTS[moment]
    small, large, node = filled(cluster, 1, megabytes=0), filled(cluster, 1), filled(cluster, 1)
    cluster.produce(small, n=10)
    source = {topic: directory_of(cluster, 1, topic) for topic in (small, large)}
    target = {topic: other(cluster, topic, 1) for topic in (small, large)}
    plan = orchestrator.submit(
        (small, 0, [1], [target[small]]), (large, 0, [1], [target[large]]), (node, 0, [TARGET], None),
        options=at.options,
    )  # fmt: skip
    scene = Scene(cluster, orchestrator, plan, small, large, node, target)
    at.reach(scene)
    VICTIMS[victim](scene)
    if (victim, moment) == ("broker", "submitted") and _is_refused(scene):
        return
    _go_on(scene, at)
    result = plan.result(PATIENCE)
    if at.ends == "done":
        assert (result["outcome"], result["outcomes"]) == ("done", {"moved": 3})
        assert result["verified"]["ok"], result["verified"]
    else:
        # What came to its end between the order and the kill stays moved, unless it is taken back.
        assert result["outcome"] == at.ends, result
        assert set(result["outcomes"]) <= {"moved", "cancelled", "rolled_back"}, result
    moved = 0 if at.ends == "rolled_back" else result["outcomes"].get("moved", 0)
    scene.eventually(lambda: len(scene.moved()) == moved, f"{moved} are at their targets")
    scene.eventually(lambda: under_way(cluster, node) is None, "nothing is under way between brokers")
    for topic in {small, large} - scene.moved():
        assert directory_of(cluster, 1, topic) == source[topic]
    assert not scene.under_way_between_directories()
    assert [cluster.end_offset(topic) for topic in (small, large, node)] == [10, 2000, 2000]
    assert not plan.open
