"""The cluster that a command works on: a stack's folder, or addresses; options override the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.stack import state
from ops.stack.errors import OpsError
from ops.stack.layout import NAMESPACE, StackSpec

DEFAULT_DATA = Path(".rehome")


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster's addresses; "" if unknown. `stack` is set for a cluster of `rehome stack`."""

    bootstrap: str
    temporal_address: str
    namespace: str
    cluster: str
    stack: StackSpec | None = None
    temporal_binary: str = ""

    @property
    def apache_kafka(self) -> bool:
        """Whether the cluster is the Apache Kafka of a stack: its brokers have no private API, and no controller of
        ours, which would run moves and hold throttles on lease.
        """
        return self.stack is not None and self.stack.apache_kafka and self.bootstrap == self.stack.bootstrap

    @property
    def storage_nodes(self) -> bool:
        """Whether the cluster is known to be storage nodes, those of a stack."""
        return self.stack is not None and not self.stack.apache_kafka and self.bootstrap == self.stack.bootstrap

    @property
    def has_runs(self) -> bool:
        """Whether runs of the cluster's controller move replicas and hold throttles."""
        return bool(self.temporal_address) and not self.apache_kafka

    @property
    def without_runs(self) -> str:
        """A clause for messages: why there are no such runs."""
        return "on Apache Kafka" if self.apache_kafka else "without Temporal"

    def refuse_apache_kafka(self, what: str) -> None:
        """Raise `OpsError` if the cluster is Apache Kafka; `what` is a clause: why the command cannot work there."""
        if self.apache_kafka:
            raise OpsError(f"this cluster is Apache Kafka: {what}")

    def need_kafka(self) -> str:
        """Return the bootstrap servers. Raises `OpsError` if they are unknown."""
        if not self.bootstrap:
            raise OpsError(f"{_NOWHERE}; or pass --bootstrap-server HOST:PORT")
        return self.bootstrap

    def need_temporal(self) -> str:
        """Return Temporal's address. Raises `OpsError` if it is unknown."""
        if not self.temporal_address:
            raise OpsError(f"{_NOWHERE}; or pass --temporal-address HOST:PORT")
        return self.temporal_address


_NOWHERE = (
    f"no cluster is selected, and there is no stack in {DEFAULT_DATA}; pass --data DIR of a stack "
    "(start one with: rehome stack up)"
)


def data_folder(data: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute path of the selected data folder."""
    chosen = data or Path(environment.get("REHOME_DATA") or DEFAULT_DATA)
    return Path(os.path.abspath(chosen.expanduser()))  # noqa: PTH100 - keeps symbolic links as the user typed them


def resolve(
    data: Path | None = None,
    bootstrap: str | None = None,
    temporal_address: str | None = None,
    cluster: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Target:
    """Resolve each address from the options, then the stack of `--data`, the environment, and the default stack."""
    folder = data_folder(data, environment)
    current = state.load(folder)
    if data is not None and current is None:
        raise state.NoStack(folder)
    spec = current.spec if current else None
    named = data is not None and spec is not None

    def choose(option: str | None, variable: str, of_stack: str, fallback: str = "") -> str:
        if option:
            return option
        if named:
            return of_stack
        return environment.get(variable) or of_stack or fallback

    return Target(
        bootstrap=choose(bootstrap, "REHOME_BOOTSTRAP_SERVER", spec.bootstrap if spec else ""),
        temporal_address=choose(temporal_address, "TEMPORAL_ADDRESS", spec.temporal_address if spec else ""),
        namespace=choose(None, "TEMPORAL_NAMESPACE", NAMESPACE if spec else "", NAMESPACE),
        cluster=choose(cluster, "REHOME_CLUSTER", spec.cluster if spec else "", "rehome"),
        stack=spec,
        temporal_binary=current.temporal_binary if current else "",
    )
