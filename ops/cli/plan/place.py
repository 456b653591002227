"""The cluster that a command of plans works on, and the options that select it, written once for all commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from ops.cli.options import Bootstrap, Cluster, Data, TemporalAddress
from ops.cli.plan import runs
from ops.cli.target import Target, resolve
from workflows.model import names

#: The options in place of a command's parameter `place`, in the order of the help text.
_OPTIONS = {"data": Data, "bootstrap": Bootstrap, "temporal_address": TemporalAddress, "cluster": Cluster}


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster; `named` is the option --cluster, None if it is not given."""

    target: Target
    named: str | None = None

    @property
    def cluster(self) -> str:
        """Return the cluster's name: by option, environment or stack, else Kafka's own id. Raises `OpsError`."""
        return runs.cluster_of(self.target, self.named)

    @property
    def searched(self) -> str:
        """Return the same for a command that searches the runs of plans among others: without bootstrap servers it
        searches by the name that is known. Raises `OpsError`.
        """
        return self.cluster if self.target.bootstrap else self.target.cluster

    def plan(self, name: str) -> str:
        """Return the workflow id of a plan, by its name or its id. Raises `OpsError`."""
        return name if "/plan/" in name else names.plan_id(self.cluster, name)


def at_place(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that select a cluster; it receives them as its parameter `place`."""
    hints = get_type_hints(command, include_extras=True)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        data, bootstrap, address, cluster = (given.pop(name) for name in _OPTIONS)
        command(place=Place(resolve(data, bootstrap, address, cluster), cluster), **given)

    kind = inspect.Parameter.KEYWORD_ONLY
    own = [
        parameter.replace(kind=kind, annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "place"
    ]
    options = [inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in _OPTIONS.items()]
    # --json is the last one in every command's help.
    at = next((at for at, parameter in enumerate(own) if parameter.name == "json"), len(own))
    parameters = [*own[:at], *options, *own[at:]]
    # Typer reads both; the wrapped command's own would shadow them.
    del run.__dict__["__wrapped__"]
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
