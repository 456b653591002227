"""How a run sends requests to the controller and waits for each response: it repeats a signal until that comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import cancellation, options
from workflows.model import names


class Asking:
    """One run's requests to the controller, one after the other. `away` is true while it does not respond."""

    def __init__(self) -> None:
        self.away = False
        self._requests = self._changes = 0
        self._answer: Mapping[str, Any] | None = None

    async def ask(
        self,
        changes: Sequence[list[Any]] = (),
        looks: Sequence[tuple[str, int]] = (),
        *,
        hold: Mapping[str, Any] | None = None,
        release: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        """Signal the controller until it responds; it carries out a request once, however often it receives it.

        The fields are those of `workflows.model.run_requests.Asked`.
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

        def answered() -> bool:
            return self._answer is not None and self._answer.get("request") == request

        pause = options.ASK_AGAIN_AFTER
        while not answered():
            try:
                await controller.signal("reassign", payload)
                # With all jobs of a task in one batch, the SDK ends waits in any of a run's coroutines with its cancel.
                await cancellation.uncancelled(workflow.wait_condition(answered, timeout=pause))
            except ApplicationError:
                self.away = True
                await workflow.sleep(pause, summary="until there is a controller")
            except TimeoutError:
                self.away = True
            pause = min(2 * pause, options.ASK_AGAIN_AFTER_MAX)
        self.away = False
        assert self._answer is not None
        return self._answer

    def take(self, answer: Mapping[str, Any]) -> None:
        """Take a response of the controller, as `messages.answered` reads it; after an "error" the request is repeated.

        A response with another request's number only proves that this run is open: see `Cluster._release_left`.
        """
        if answer["error"] or answer["request"] != self._requests:
            return
        if len(answer["results"]) != self._changes:
            workflow.logger.warning(
                "Ignored the signal answered: it has %d results for %d changes",
                len(answer["results"]),
                self._changes,
            )
            return
        self._answer = answer
