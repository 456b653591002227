"""How a controller's run begins: errors of its parameter. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workflows.model import fields
from workflows.model.fields import BadField

#: What reading rows of another shape raises.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def parameter(given: Sequence[Any]) -> Mapping[str, Any]:
    """The parameter of a run: an object, {} where none was given. Raises BadField."""
    if len(given) > 1:
        raise BadField("$", f"is followed by {len(given) - 1} more, but only one argument is allowed")
    return fields.an_object(given[0], "$") if given and given[0] is not None else {}


def problem(found: Exception, *, continued: bool) -> BadField:
    """Return why the parameter cannot be used, for the failure of a run that a client has started.

    A run that an earlier one has continued as must not fail by it, as all metadata would be lost with it. Then this
    raises ValueError: the task is retried until a worker runs that reads what the earlier run wrote.
    """
    if continued:
        raise ValueError(f"the state that the previous run carried over cannot be read: {found!r}") from found
    return found if isinstance(found, BadField) else BadField("$", f"is not a valid state of a controller: {found!r}")
