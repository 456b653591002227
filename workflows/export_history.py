"""ExportHistory: writes closed histories, and a snapshot of open ones, for analytics."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from storage_node.model import fields
from storage_node.model.error_types import ErrorType
from workflows import errors, handlers
from workflows.model import calls, names, results
from workflows.model.calls import ExportCall, ExportResult
from workflows.step_specs import start


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
    """One export, started by a schedule or an operator; the activity is incremental and idempotent, so that any run may
    be repeated.
    """

    @workflow.run
    async def run(self, *given: Any) -> ExportResult:
        """Export, and return the counts; fails with InvalidPlan if the parameter is invalid."""
        try:
            call = parse_export(handlers.only(given))
        except fields.BadField as bad:
            raise errors.invalid_plan(bad) from bad
        found = await start(calls.EXPORT_HISTORIES, call)
        try:
            return results.exported(found)
        except fields.BadField as bad:
            message = f"The result of {calls.EXPORT_HISTORIES} cannot be read: {bad}"
            raise ApplicationError(message, type=ErrorType.NODE_FAILURE, non_retryable=True) from bad
