"""Strict reading of what clients and other runs send, before a handler gets it: no input fails a workflow task.

A handler that raises would run again at every retry of its task, and its run would make no more progress: `read` is the
strict parser of a handler's argument. A signal that it rejects is ignored with one warning, since its sender gets no
response; an update is rejected by its validator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.converter import PayloadConverter
from temporalio.workflow import UpdateMethodMultiParam

from storage_node.model import fields
from storage_node.model.fields import BadField, Undecoded
from workflows import cancellation

Argument = TypeVar("Argument")


def signal(
    read: Callable[[Any], Argument], *, description: str
) -> Callable[[Callable[[Any, Argument], None]], Callable[..., None]]:
    """Decorate a signal's handler: it receives the signal's one argument as `read` returns it.

    A signal for which `read` raises BadField, or with any other number of arguments, is ignored with a warning.
    """

    def decorate(handle: Callable[[Any, Argument], None]) -> Callable[..., None]:
        def receive(self: Any, *given: Any) -> None:
            try:
                argument = read(only(given))
            except BadField as problem:
                workflow.logger.warning("Ignored the signal %s: %s", handle.__name__, problem)
                return
            handle(self, argument)

        # Not functools.wraps: the SDK would decode arguments by the annotations of the wrapped handler.
        receive.__name__, receive.__qualname__, receive.__doc__ = handle.__name__, handle.__qualname__, handle.__doc__
        decorated: Callable[..., None] = workflow.signal(name=handle.__name__, description=description)(receive)
        return decorated

    return decorate


def update(
    *, description: str, idle: Callable[[Any], bool] = lambda _run: True
) -> Callable[[Callable[..., Awaitable[Any]]], UpdateMethodMultiParam[..., Any]]:
    """Decorate an update's handler: it begins once the run has handled everything else in the same task.

    The SDK starts the handlers of updates before it resumes what waited for a timer or an activity of the same task. A
    worker that starts with an empty cache joins a task that led to no command with the update behind it, and a later
    replay does not (sdk-rust issue 1146): if an update overtook the timer in one of the two, they would produce
    different commands, and the run could never be replayed again. `idle` returns whether the run has nothing left
    to do before the update.

    Not for updates that interrupt a step: an activity cancelled in the task that schedules it is never resolved.
    """

    def decorate(handle: Callable[..., Awaitable[Any]]) -> UpdateMethodMultiParam[..., Any]:
        async def receive(self: Any, *given: Any) -> Any:
            await cancellation.uncancelled(workflow.wait_condition(lambda: idle(self)))
            return await handle(self, *given)

        receive.__name__, receive.__qualname__, receive.__doc__ = handle.__name__, handle.__qualname__, handle.__doc__
        del receive.__annotations__["self"]  # The SDK compares the parameters with those of the validator.
        return workflow.update(name=handle.__name__, description=description)(receive)

    return decorate


def only(given: Sequence[Any], *, optional: bool = False) -> Any:
    """Return the one argument; None where it is `optional` and missing. Raises BadField."""
    if not given and not optional:
        raise BadField("$", "is missing: one argument is required")
    if len(given) > 1:
        raise BadField("$", f"is followed by {len(given) - 1} more, but only one argument is allowed")
    return given[0] if given else None


def nothing(given: Sequence[Any]) -> None:
    """Raise BadField if there are arguments: such an update takes none."""
    if given:
        raise BadField("$", f"is {fields.kind_of(given[0])}, but no argument is allowed")


class ReadableConverter(PayloadConverter):
    """A payload converter for runs: it passes undecodable payloads to the strict parsers, as `Undecoded`.

    Without it the SDK drops an undecodable signal with a traceback, and fails the first task of a run whose parameter
    is undecodable at every retry. Where the caller has a type hint (results of activities), it raises.
    """

    def __init__(self, converter: PayloadConverter) -> None:
        self._converter = converter

    def to_payloads(self, values: Sequence[Any]) -> list[Any]:
        """See PayloadConverter."""
        return self._converter.to_payloads(values)

    def from_payloads(self, payloads: Sequence[Any], type_hints: list[type] | None = None) -> list[Any]:
        """See PayloadConverter."""
        hints: Sequence[Any] = type_hints or [None] * len(payloads)
        return [self._decoded(payload, hint) for payload, hint in zip(payloads, hints, strict=True)]

    def _decoded(self, payload: Any, hint: Any) -> Any:
        try:
            return self._converter.from_payloads([payload], None if hint is None else [hint])[0]
        except Exception as problem:
            if hint is not None and hint is not Any:
                raise
            cause = problem.__cause__ or problem
            return Undecoded(f"{type(cause).__name__}: {cause}")
