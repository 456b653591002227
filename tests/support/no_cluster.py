"""An environment in which a command finds no cluster unless it is given one."""

from __future__ import annotations

from pathlib import Path

import pytest

#: What selects a cluster, or changes what an error looks like.
VARIABLES = ("REHOME_DATA", "REHOME_BOOTSTRAP_SERVER", "TEMPORAL_ADDRESS", "REHOME_CLUSTER", "REHOME_DEBUG")


def no_cluster_around(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Unset these variables, and work in an empty folder, below which no stack has its data."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
