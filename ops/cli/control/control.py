"""rehome pause, resume, throttle, retarget, cancel: requests to the runs of an id, a partition, a topic or a prefix."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ops.cli import output, waits
from ops.cli.control import selecting, sending
from ops.cli.control.selecting import listed
from ops.cli.control.sending import Found, Order, Sent, Verb
from ops.cli.moves.runs import with_temporal
from ops.cli.options import Json
from ops.cli.plan.place import Place, at_place
from ops.stack.errors import (
    ExitCode,
    OpsError,
    Refused,
    ResponseTimeout,
    StillRunning,
    UsageError,
)

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="A workflow id, a partition such as orders-3, orders- for all partitions of the topic orders, or a prefix "
        "such as orders* for those of all topics whose names begin so.",
    ),
]
_ERRORS = {each.exit_code: each for each in (OpsError, ResponseTimeout, StillRunning, Refused)}


def register(app: typer.Typer) -> None:
    """Add the commands to the root of `rehome`."""
    for command in (pause, resume, throttle, retarget, cancel):
        app.command(command.__name__)(command)


@at_place
def pause(place: Place, what: What, json: Json = False) -> None:
    """Pause runs; what they have copied stays. A run that is paused already is left as it is."""
    _send(place, what, Order(Verb.PAUSE), json)


@at_place
def resume(place: Place, what: What, json: Json = False) -> None:
    """Resume paused runs. A run that is not paused is left as it is."""
    _send(place, what, Order(Verb.RESUME), json)


@at_place
def throttle(
    place: Place,
    what: What,
    rate: Annotated[str, typer.Argument(metavar="RATE", help="Bytes per second, such as 20MB; none for no limit.")],
    json: Json = False,
) -> None:
    """Limit the rate of each run; copies in progress continue from where they are."""
    limit = None if rate.lower() == "none" else output.parse_rate(rate)
    _send(place, what, Order(Verb.THROTTLE, rate=limit), json)


@at_place
def retarget(
    place: Place,
    what: What,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Another of the node's log.dirs.")],
    json: Json = False,
) -> None:
    """Move replicas to another directory of their node instead, before they are swapped."""
    if not to.is_absolute():
        raise UsageError(f"--to {to} is a relative path; pass the absolute path of one of the node's log.dirs")
    _send(place, what, Order(Verb.RETARGET, directory=str(to)), json)


@at_place
def cancel(
    place: Place,
    what: What,
    yes: Annotated[
        bool, typer.Option("--yes", help="Cancel the runs of a topic or a prefix without confirmation.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return when Temporal has accepted the request.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait until the runs have ended.")] = 60.0,
    json: Json = False,
) -> None:
    """Cancel runs and wait until their copies are removed; the sources keep serving.

    Of a run that moves several replicas, a partition, topic or prefix cancels only those that it names. A topic or a
    prefix is confirmed first, even if it names one run.
    """
    _send(place, what, Order(Verb.CANCEL, wait=None if no_wait else timeout), json, yes=yes)


def _send(place: Place, what: str, order: Order, json: bool, *, yes: bool = True) -> None:
    """Find the runs and send the request. Raises `OpsError` for the first run that has not carried it out,
    `PartialAnswer` if there may be more runs that are meant.
    """
    target = place.target
    found = with_temporal(target, lambda client: sending.by_id(client, what))
    if found is None:
        selecting.wanted(what)
        of_plans = place.searched
        found = with_temporal(target, lambda client: sending.search(client, target.cluster, of_plans, what))
    if not yes and (found.many or len(found.runs) > 1):
        _confirm(found)
    count = len(found.runs)
    with waits.lines(f"{order.verb}: waiting for {count} run{'s' if count != 1 else ''}"):
        sent = with_temporal(target, lambda client: sending.send(client, order, found.runs))
    if json:
        runs = [each.as_json() for each in sent]
        output.print_json({"version": 1, "runs": runs, "unread": list(found.unread)})
    else:
        for each in sent:
            if each.code is ExitCode.OK:
                typer.echo(each.line)
    if any(each.code is not ExitCode.OK for each in sent):
        for sentence in found.missed:
            output.say(sentence)
    _need_all(sent)
    output.need_whole(found.missed)


def _confirm(found: Found) -> None:
    """Ask before the runs of a topic or a prefix are cancelled; without a terminal --yes is required. Raises
    `OpsError`.
    """
    for each in found.runs:
        output.say(f"{each.run.workflow_id}: {listed(each.partitions)}")
    for sentence in found.missed:
        output.say(sentence)
    runs = "1 run" if len(found.runs) == 1 else f"{len(found.runs)} runs"
    if not sys.stdin.isatty():
        raise UsageError(f"--yes is required without a terminal to cancel {runs}; nothing was changed")
    if not typer.confirm(f"Cancel {runs}?", default=False, err=True):
        raise OpsError("nothing was changed")


def _need_all(sent: Sequence[Sent]) -> None:
    missed = [each for each in sent if each.code is not ExitCode.OK]
    for each in missed[1:]:
        output.say(each.line)
    if missed:
        more = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        raise _ERRORS[missed[0].code](f"{missed[0].line}{more}", where=missed[0].run.run.workflow_id)
