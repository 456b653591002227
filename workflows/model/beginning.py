"""How a controller's run begins: what may be wrong with its parameter. Pure."""

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
        raise BadField("$", f"is followed by {len(given) - 1} more, but only one argument is read")
    return fields.an_object(given[0], "$") if given and given[0] is not None else {}


def problem(found: Exception, *, continued: bool) -> BadField:
    """Why the parameter cannot be used, for the failure with which a run ends that somebody has started.

    A run that an earlier one has continued as must not end by it, as all metadata would be lost with it. Then this
    raises ValueError: the task is tried again until a program runs that reads what the earlier one wrote.
    """
    if continued:
        raise ValueError(f"what the run before carried over cannot be read: {found!r}") from found
    return found if isinstance(found, BadField) else BadField("$", f"is no state of a controller: {found!r}")
