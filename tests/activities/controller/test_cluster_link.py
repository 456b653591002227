"""When a node has to register again, whenever the controller may know less than before, and what it sends then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus as RawStatus
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.controller import cluster_run
from activities.controller.cluster_link import ClusterLink
from activities.controller.cluster_run import ClusterRun, paused_sentence
from storage_node.model.commands import Registration

BEFORE = ClusterRun("first", "run", 100)


@pytest.mark.parametrize(
    ("now", "again"),
    [
        (ClusterRun("first", "run", 100), False),
        (ClusterRun("first", "run", 140), False),
        (ClusterRun("first", "run", 99), True),  # the database went back
        (ClusterRun("first", "later", 3), True),  # continued as new, or went back: nobody can tell
        (ClusterRun("other", "other", 300), True),  # terminated and started again
    ],
)
def test_other_run_or_shorter_history_replaces_the_one_before(now: ClusterRun, again: bool) -> None:
    assert now.replaces(BEFORE) is again


def current(status: int, *, ended: bool = False, unknown: bool = False) -> ClusterRun | None:
    """What a server that describes the run so is taken to have."""

    async def describe(request: object, **more: object) -> DescribeWorkflowExecutionResponse:
        if unknown:
            raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")
        found = DescribeWorkflowExecutionResponse()
        info = found.workflow_execution_info
        info.execution.run_id, info.first_run_id, info.history_length = "run", "first", 7
        info.status = cast(Any, status)
        if ended:
            info.close_time.FromSeconds(1)
        return found

    server = SimpleNamespace(
        namespace="default", workflow_service=SimpleNamespace(describe_workflow_execution=describe)
    )
    return asyncio.run(cluster_run.current(cast(Client, server), "c"))


def test_run_is_open_until_the_server_has_its_close_time() -> None:
    paused = current(RawStatus.WORKFLOW_EXECUTION_STATUS_PAUSED)
    assert current(RawStatus.WORKFLOW_EXECUTION_STATUS_RUNNING) == ClusterRun("first", "run", 7)
    assert paused == ClusterRun("first", "run", 7, paused=True)
    assert current(77) == ClusterRun("first", "run", 7), "open in a way that only a later server has"
    assert current(RawStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED, ended=True) is None
    assert current(78, ended=True) is None
    assert current(0, unknown=True) is None
    assert paused_sentence("c", paused).endswith("temporal workflow unpause --workflow-id c")
    assert (
        paused_sentence("c", current(RawStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)) == paused_sentence("c", None) == ""
    )


class Controller:
    """Responds to a node's updates, as client and as handle."""

    def __init__(self, *results: dict[str, Any]) -> None:
        self.results = list(results)
        self.sent: list[dict[str, Any]] = []
        self.pairs: list[tuple[int, int]] = []
        self.namespace = "default"
        self.all_sent = asyncio.Event()

    async def client(self) -> Any:
        return self

    def get_workflow_handle(self, _id: str) -> Any:
        return self

    @property
    def workflow_service(self) -> Any:
        return SimpleNamespace(describe_workflow_execution=self._describe)

    async def _describe(self, request: object, **more: object) -> DescribeWorkflowExecutionResponse:
        found = DescribeWorkflowExecutionResponse()
        info = found.workflow_execution_info
        info.execution.run_id, info.first_run_id, info.history_length = "run", "first", 5
        info.status = RawStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        return found

    async def execute_update(self, _name: str, payload: dict[str, Any], **_more: Any) -> dict[str, Any]:
        self.sent += payload["commands"]
        self.pairs.append((payload["generation"], payload["version"]))
        result = self.results.pop(0)
        if not self.results:
            self.all_sent.set()
        return {"results": [[result]], "image": "", "register": False}


class Node:
    id, incarnation = 1, "now"
    metadata = SimpleNamespace(image=SimpleNamespace(pair=(2, 7)))
    metadata_check = SimpleNamespace(pair=(3, 0), look=lambda *_: True, request_again=lambda: None)

    def registration(self, *, with_image: bool = True) -> Registration:
        return Registration(1, "now", "h", 9, (), 2, 7, "all it knows" if with_image else "", cluster="c")


@pytest.mark.parametrize(
    ("results", "images"),
    [
        ([{"value": 3}], [""]),
        ([{"error": 42, "message": "lacks the image", "wants_image": True}, {"value": 3}], ["", "all it knows"]),
    ],
    ids=["serving", "collecting"],
)
def test_registration_has_the_image_only_if_requested(results: list[dict[str, Any]], images: list[str]) -> None:
    controller = Controller(*results)

    async def until_registered() -> None:
        registered = asyncio.Event()
        link = ClusterLink("c", Node(), controller.client, registered.set)  # type: ignore[arg-type]
        running = [asyncio.create_task(link.send_updates()), asyncio.create_task(link.keep_registered())]
        await asyncio.wait_for(registered.wait(), 20)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(until_registered())
    assert [command["image"] for command in controller.sent] == images
    assert {command["cluster"] for command in controller.sent} == {"c"}


def test_batch_has_the_requesting_pair_and_a_registration_the_images() -> None:
    controller, node = Controller({"value": 3}, {"version": 7}), Node()

    async def until_requested() -> None:
        link = ClusterLink("c", node, controller.client)  # type: ignore[arg-type]
        loops = (link.send_updates(), link.keep_registered(), link.keep_metadata_equal())
        running = [asyncio.create_task(each) for each in loops]
        await asyncio.sleep(0)  # each of them has begun
        node.metadata_check.request_whole()
        await controller.all_sent.wait()
        await asyncio.sleep(0.05)  # `wait_for` of Python 3.11 ignores a cancel that comes together with its result
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(until_requested(), 20))
    assert [command["do"] for command in controller.sent] == ["register", "tell_version"]
    assert controller.pairs == [(2, 7), (3, 0)]
