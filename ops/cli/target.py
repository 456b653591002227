"""Which cluster a command works on: a stack's folder, or addresses; options go before the environment."""

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
    """A cluster's addresses; "" where unknown. `stack` is set when it is one of ours."""

    bootstrap: str
    temporal_address: str
    namespace: str
    cluster: str
    stack: StackSpec | None = None
    temporal_binary: str = ""

    def need_kafka(self) -> str:
        if not self.bootstrap:
            raise OpsError(f"{_NOWHERE}; or give --bootstrap-server HOST:PORT")
        return self.bootstrap

    def need_temporal(self) -> str:
        if not self.temporal_address:
            raise OpsError(f"{_NOWHERE}; or give --temporal-address HOST:PORT")
        return self.temporal_address


_NOWHERE = (
    f"there is no stack in {DEFAULT_DATA}, so it is not known which cluster is meant; give --data DIR of a stack "
    "(start one with: rehome stack up)"
)


def data_folder(data: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The data folder that is meant, absolute."""
    chosen = data or Path(environment.get("REHOME_DATA") or DEFAULT_DATA)
    return Path(os.path.abspath(chosen.expanduser()))  # noqa: PTH100 - symbolic links stay as the user knows them


def resolve(
    data: Path | None = None,
    bootstrap: str | None = None,
    temporal_address: str | None = None,
    cluster: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Target:
    """Options first; then the stack of `--data`; then the environment; then the stack of the default folder."""
    folder = data_folder(data, environment)
    current = state.load(folder)
    if data is not None and current is None:
        raise state.NoStack(f"there is no stack in {folder}; start one with: rehome stack up --data {folder}")
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
