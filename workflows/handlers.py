"""What comes from outside is read before a handler sees it, so that nothing that is sent fails a workflow task.

A handler that raises would be run again by every retry of its task, and its run would do nothing else from then on:
`read` is the strict parser of what a handler takes. A signal that it refuses is ignored with one warning, since its
sender hears nothing; an update is refused by its validator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.converter import PayloadConverter
from temporalio.workflow import UpdateMethodMultiParam

from workflows import cancellation
from workflows.model import fields
from workflows.model.fields import BadField, Undecoded

Told = TypeVar("Told")


def signal(
    read: Callable[[Any], Told], *, description: str
) -> Callable[[Callable[[Any, Told], None]], Callable[..., None]]:
    """Decorate a signal's handler: it gets what `read` makes of the signal's one argument.

    Whatever makes `read` raise BadField, and any other number of arguments, is ignored with a warning.
    """

    def decorate(handle: Callable[[Any, Told], None]) -> Callable[..., None]:
        def heard(self: Any, *given: Any) -> None:
            try:
                told = read(only(given))
            except BadField as problem:
                workflow.logger.warning("The signal %s is ignored: %s", handle.__name__, problem)
                return
            handle(self, told)

        # (Not functools.wraps: the SDK would decode arguments by the annotations of what is wrapped.)
        heard.__name__, heard.__qualname__, heard.__doc__ = handle.__name__, handle.__qualname__, handle.__doc__
        decorated: Callable[..., None] = workflow.signal(name=handle.__name__, description=description)(heard)
        return decorated

    return decorate


def update(
    *, description: str, settled: Callable[[Any], bool] = lambda _run: True
) -> Callable[[Callable[..., Awaitable[Any]]], UpdateMethodMultiParam[..., Any]]:
    """Decorate an update's handler: it begins once the run has done all else that the same workflow task has brought.

    The SDK starts the handlers of updates before it resumes what waited for a timer or an activity of the same task. A
    worker that begins afresh joins a task that led to no command with the update behind it, and a later replay does not
    (sdk-rust issue 1146): where an update overtook the timer in one of the two, they would give other commands, and the
    run could never be replayed again. `settled` is whether the run has nothing to do before the update.
    """

    def decorate(handle: Callable[..., Awaitable[Any]]) -> UpdateMethodMultiParam[..., Any]:
        async def heard(self: Any, *given: Any) -> Any:
            await cancellation.uncancelled(workflow.wait_condition(lambda: settled(self)))
            return await handle(self, *given)

        heard.__name__, heard.__qualname__, heard.__doc__ = handle.__name__, handle.__qualname__, handle.__doc__
        del heard.__annotations__["self"]  # the SDK compares the parameters with those of the validator
        return workflow.update(name=handle.__name__, description=description)(heard)

    return decorate


def only(given: Sequence[Any], *, optional: bool = False) -> Any:
    """The one argument that was given; None where it is `optional` and was not. Raises BadField."""
    if not given and not optional:
        raise BadField("$", "is missing: an argument is needed")
    if len(given) > 1:
        raise BadField("$", f"is followed by {len(given) - 1} more, but only one argument is read")
    return given[0] if given else None


def nothing(given: Sequence[Any]) -> None:
    """Raise BadField if anything was given: such an update takes no argument."""
    if given:
        raise BadField("$", f"is {fields.kind_of(given[0])}, but no argument is read")


class ReadableConverter(PayloadConverter):
    """A payload converter for runs: what cannot be decoded is given to the strict parsers as such.

    Without it the SDK drops an undecodable signal with a traceback, and fails the first task of a run whose parameter
    is undecodable, again and again. Where a type is asked for (what activities return), an error stays one.
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
