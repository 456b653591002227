"""How a controller's run begins: errors of its parameter. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField

#: The exceptions of reading malformed rows.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def parameter(given: Sequence[Any]) -> Mapping[str, Any]:
    """Return the parameter of a run, an object; {} without one. Raises BadField."""
    if len(given) > 1:
        raise BadField("$", f"is followed by {len(given) - 1} more, but only one argument is allowed")
    return fields.an_object(given[0], "$") if given and given[0] is not None else {}


def problem(found: Exception, *, continued: bool) -> BadField:
    """Return why the parameter is invalid, for the failure of a run that a client has started.

    A run that continues an earlier one (`continued`) must not fail, as all metadata would be lost with it. For it this
    raises ValueError: the task is retried until a worker runs that can read the state of the earlier run.
    """
    if continued:
        raise ValueError(f"the state that the previous run carried over cannot be read: {found!r}") from found
    return found if isinstance(found, BadField) else BadField("$", f"is not a valid state of a controller: {found!r}")
