"""DirectoryFailure: reports an offline log directory of a node to the controller, and keeps it in the history."""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from storage_node.model.command_rows import move_row, read_failure
from storage_node.model.commands import DirectoryFailed, FailDirectory
from storage_node.model.evidence import evidence_row, sign_rows
from storage_node.model.fields import BadField
from workflows import errors, handlers, options
from workflows.model import messages, names
from workflows.model.messages import Recorded
from workflows.model.phases import ENDED
from workflows.model.run_progress import DirectoryFailureProgress
from workflows.model.run_results import (
    DirectoryFailureResult,
    EarlySign,
    EndedMoveRow,
    FailureEvidence,
    OfflineReplicas,
)

RECORDING = "recording"


@workflow.defn(name=names.DIRECTORY_FAILURE)
class DirectoryFailure:
    """Report the failure to the controller until it has recorded it in the metadata; return the details.

    The node starts the run, and keeps the failure on its disks until the server has accepted that. Its moves from and
    to the directory have ended before; the result lists them.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._notice = FailDirectory(-1, DirectoryFailed("", "", "", 0.0, ""))
        try:
            self._notice = read_failure(handlers.only(given))
        except BadField as problem:
            self._problem = problem
        self._response: Recorded | None = None
        self._rejection = ""
        self._recorded = 0.0

    @workflow.run
    async def run(self, *given: Any) -> DirectoryFailureResult:
        """Return the details of the failure once the metadata has it. Fails with InvalidPlan and the path of the bad
        field.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        (parameter,) = given
        pause = options.RECORD_AGAIN_AFTER
        while self._response is None:
            await self._report(parameter, pause)
            pause = min(2 * pause, options.RECORD_AGAIN_AFTER_MAX)
            if self._response is None and workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(parameter)
        self._recorded = round(workflow.time(), 3)
        return self._account()

    async def _report(self, parameter: Any, patience: timedelta) -> None:
        """Report the failure and wait for the response; a report that is lost is repeated."""
        info = workflow.info()
        controller = workflow.get_external_workflow_handle(names.cluster_id(info.task_queue))
        report = {"notice": parameter, "workflow_id": info.workflow_id, "run_id": info.run_id}
        try:
            await controller.signal("directory_failed", report)
            await workflow.wait_condition(lambda: self._response is not None, timeout=patience)
        except ApplicationError:
            self._rejection = "no controller runs"
            await workflow.sleep(patience, summary="until there is a controller")
        except TimeoutError:
            workflow.logger.info("The controller has not recorded the failure yet; it is reported again")

    @handlers.signal(messages.recorded, description="The controller responds with the outcome of the failure")
    def recorded(self, response: Recorded) -> None:
        """Keep {"outcome", "version", "value", "offline"}; after {"error", "message"} the run reports it again."""
        if response.error:
            self._rejection = response.error
        elif self._response is None:
            self._response = response

    @workflow.query(description="What failed, since when, why, and whether the metadata has it")
    def progress(self) -> DirectoryFailureProgress:
        """Return the result as far as it is known."""
        waiting = "" if self._response is not None else self._rejection or "the controller"
        seconds = max(0.0, (self._recorded or time.time()) - self._notice.failure.noticed)
        account = self._account()
        return DirectoryFailureProgress(
            **{each.name: getattr(account, each.name) for each in dataclasses.fields(account)},
            workflow_id=workflow.info().workflow_id,
            phase=ENDED if self._recorded else RECORDING,
            waiting_for=waiting,
            seconds=round(seconds, 3),
        )

    def _account(self) -> DirectoryFailureResult:
        one, response = self._notice.failure, self._response or Recorded()
        offline = response.offline
        if offline is None:
            held: dict[tuple[str, str], list[int]] = {}
            for row in one.replicas:
                held.setdefault((row.partition.topic, row.topic_id), []).append(row.partition.partition)
            offline = tuple((topic, tuple(partitions)) for (topic, _), partitions in held.items())
        return DirectoryFailureResult(
            node=self._notice.node,
            incarnation=one.incarnation,
            directory=one.path,
            directory_id=one.directory_id,
            reason=one.reason,
            noticed=one.noticed,
            recorded=self._recorded or None,
            outcome=response.outcome,
            version=response.version,
            broker_epoch=response.broker_epoch,
            replicas=[OfflineReplicas(topic, list(partitions)) for topic, partitions in offline],
            moves=[EndedMoveRow(**move_row(move)) for move in one.moves],
            evidence=FailureEvidence(**evidence_row(one.evidence)) if one.evidence is not None else None,
            signs=[EarlySign(**row) for row in sign_rows(one.signs)],
        )
