"""ExportHistory: write closed histories, and a snapshot of open ones, for analytics."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import errors, handlers, options
from workflows.model import calls, fields, names, results
from workflows.model.calls import ExportCall, ExportResult


def parse_export(parameter: Any) -> ExportCall:
    """Parse {"directory", "query"?, "as_of"?, "keep_days"?}. Raises BadField."""
    known = ("directory", "query", "as_of", "keep_days")
    row = fields.an_object(parameter, "$", known)
    return ExportCall(
        fields.a_string(fields.need(row, "directory", "$"), "$.directory"),
        fields.a_string(row.get("query") or "", "$.query", empty=True),
        fields.a_string(row.get("as_of") or "", "$.as_of", empty=True),
        fields.a_number(row.get("keep_days") or 0, "$.keep_days", high=36_500),
    )


@workflow.defn(name=names.EXPORT_HISTORY)
class ExportHistory:
    """One export, started by a schedule or by hand; the activity is incremental and idempotent, so that any run may be
    repeated.
    """

    @workflow.run
    async def run(self, *given: Any) -> ExportResult:
        """Export; fails with InvalidPlan when the parameter cannot be used."""
        try:
            call = parse_export(handlers.only(given))
        except fields.BadField as bad:
            raise errors.invalid_plan(bad) from bad
        found = await workflow.execute_activity(
            calls.EXPORT_HISTORIES,
            call,
            task_queue=names.history_queue(workflow.info().task_queue),
            start_to_close_timeout=options.EXPORT_TIMEOUT,
            heartbeat_timeout=options.EXPORT_HEARTBEAT_TIMEOUT,
            retry_policy=options.EXPORT_RETRY,
        )
        try:
            return results.exported(found)
        except fields.BadField as bad:
            message = f"The result of {calls.EXPORT_HISTORIES} cannot be read: {bad}"
            raise ApplicationError(message, type=errors.NODE_FAILURE, non_retryable=True) from bad
