"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The data folder of a stack (else REHOME_DATA, else ./.rehome).",
        file_okay=False,
        show_default=False,
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server", help="Kafka bootstrap servers (else REHOME_BOOTSTRAP_SERVER, else the stack's)."
    ),
]
TemporalAddress = Annotated[
    str | None,
    typer.Option("--temporal-address", help="Temporal's host:port (else TEMPORAL_ADDRESS, else the stack's)."),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="The cluster's name (else REHOME_CLUSTER, else the stack's).")
]
