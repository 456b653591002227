"""DirectoryFailure: a log directory of a node went offline; the metadata learns of it, and the history keeps it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import errors, handlers, options
from workflows.model import failures, messages, names
from workflows.model.failures import Notice
from workflows.model.fields import BadField
from workflows.model.messages import Recorded
from workflows.model.phases import ENDED

RECORDING = "recording"


@workflow.defn(name=names.DIRECTORY_FAILURE)
class DirectoryFailure:
    """Tells the controller until it has the failure in the metadata, then ends with what is known of it.

    Started by the node, which notes the failure on its disks until the run is taken. The node's moves from and to the
    directory have ended by then; the result says which.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._notice = Notice(-1, "", "", "", "", 0.0)
        try:
            self._notice = failures.parse_notice(handlers.only(given))
        except BadField as problem:
            self._problem = problem
        self._answer: Recorded | None = None
        self._refusal = ""
        self._recorded = 0.0

    @workflow.run
    async def run(self, *given: Any) -> dict[str, Any]:
        """Answer node, directory, its id, reason, when it was noticed and recorded, the replicas that are offline with
        it and the moves that it ended. Fails with InvalidPlan and the path of the bad field.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        (parameter,) = given
        pause = options.RECORD_AGAIN_AFTER
        while self._answer is None:
            await self._tell(parameter, pause)
            pause = min(2 * pause, options.RECORD_AGAIN_AFTER_MAX)
            if self._answer is None and workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(parameter)
        self._recorded = round(workflow.time(), 3)
        return self._account()

    async def _tell(self, parameter: Any, patience: timedelta) -> None:
        """Tell the controller, and give it time to answer; the next word repeats what a lost one said."""
        info = workflow.info()
        controller = workflow.get_external_workflow_handle(names.cluster_id(info.task_queue))
        told = {"notice": parameter, "workflow_id": info.workflow_id, "run_id": info.run_id}
        try:
            await controller.signal("directory_failed", told)
            await workflow.wait_condition(lambda: self._answer is not None, timeout=patience)
        except ApplicationError:
            self._refusal = "no controller runs"
            await workflow.sleep(patience, summary="until there is a controller")
        except TimeoutError:
            workflow.logger.info("The controller has not put the failure on record yet")

    @handlers.signal(messages.recorded, description="The controller responds with the outcome of the failure")
    def recorded(self, answer: Recorded) -> None:
        """{"outcome", "version", "value", "offline"}, or {"error", "message"} when the run is to report it again."""
        if answer.error:
            self._refusal = answer.error
        elif self._answer is None:
            self._answer = answer

    @workflow.query(description="What failed, since when, why, and whether the metadata has it")
    def progress(self) -> dict[str, Any]:
        """The result as far as it is known; `waiting_for` says what is missing, `seconds` how long it has been."""
        waiting = "" if self._answer is not None else self._refusal or "the controller"
        seconds = max(0.0, (self._recorded or time.time()) - self._notice.noticed)
        return {
            **self._account(),
            "workflow_id": workflow.info().workflow_id,
            "phase": ENDED if self._recorded else RECORDING,
            "waiting_for": waiting,
            "seconds": round(seconds, 3),
        }

    def _account(self) -> dict[str, Any]:
        one, answer = self._notice, self._answer or Recorded()
        offline = answer.offline
        if offline is None:
            offline = tuple((topic, tuple(partition for partition, _ in pairs)) for topic, _, pairs in one.replicas)
        return {
            "node": one.node,
            "incarnation": one.incarnation,
            "directory": one.directory,
            "directory_id": one.directory_id,
            "reason": one.reason,
            "noticed": one.noticed,
            "recorded": self._recorded or None,
            "outcome": answer.outcome,
            "version": answer.version,
            "broker_epoch": answer.broker_epoch,
            "replicas": [{"topic": topic, "partitions": list(partitions)} for topic, partitions in offline],
            "moves": [move.row() for move in one.moves],
        }
