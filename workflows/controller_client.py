"""A run's requests to the controller: each is a signal, which the run repeats until the controller responds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import cancellation, options
from workflows.model import names


class ControllerClient:
    """The requests of one run, at most one in flight. `unavailable` is true while the controller does not respond."""

    def __init__(self) -> None:
        self.unavailable = False
        self._requests = self._changes = 0
        self._response: Mapping[str, Any] | None = None

    async def request(
        self,
        changes: Sequence[list[Any]] = (),
        looks: Sequence[tuple[str, int]] = (),
        *,
        hold: Mapping[str, Any] | None = None,
        release: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        """Signal the controller until it responds, and return the response; a repeated request is applied once.

        The fields are those of `workflows.model.controller.run_requests.ControllerRequest`.
        """
        self._requests += 1
        self._changes = len(changes)
        request, info = self._requests, workflow.info()
        controller = workflow.get_external_workflow_handle(names.cluster_id(info.task_queue))
        payload = {
            "request": request,
            "changes": list(changes),
            "looks": [list(key) for key in looks],
            "workflow_id": info.workflow_id,
            "run_id": info.run_id,
            **({"hold": hold} if hold else {}),
            **({"release": release} if release is not None else {}),
        }

        def responded() -> bool:
            return self._response is not None and self._response.get("request") == request

        pause = options.REQUEST_AGAIN_AFTER
        while not responded():
            try:
                await controller.signal("reassign", payload)
                # The SDK applies all jobs of a task as one batch: a cancel ends waits in every coroutine of the run.
                await cancellation.uncancelled(workflow.wait_condition(responded, timeout=pause))
            except ApplicationError:
                self.unavailable = True
                await workflow.sleep(pause, summary="until there is a controller")
            except TimeoutError:
                self.unavailable = True
            pause = min(2 * pause, options.REQUEST_AGAIN_AFTER_MAX)
        self.unavailable = False
        assert self._response is not None
        return self._response

    def accept(self, response: Mapping[str, Any]) -> None:
        """Accept a response of the controller, as `messages.answered` reads it; after an "error" the run repeats the
        request.

        A response with another request's number only proves that this run is open: see `Cluster._release_orphaned`.
        """
        if response["error"] or response["request"] != self._requests:
            return
        if len(response["results"]) != self._changes:
            workflow.logger.warning(
                "Ignored the signal answered: it has %d results for %d changes; the request is repeated",
                len(response["results"]),
                self._changes,
            )
            return
        self._response = response
