"""Errors that workflows raise; their types are `storage_node.model.error_types`."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField


def invalid_plan(bad: BadField) -> ApplicationError:
    """Return the error of an invalid parameter, with the path of the bad field as its detail."""
    return ApplicationError(str(bad), bad.path, type=ErrorType.INVALID_PLAN, non_retryable=True)
