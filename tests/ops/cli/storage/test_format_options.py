"""Which options of kafka-storage mean something for a storage node."""

from __future__ import annotations

from typing import Any

import pytest

from ops.cli.storage.format_options import Options, choose
from ops.stack.errors import OpsError, UsageError


def chosen(**given: Any) -> Options:
    nothing = {
        "release": None,
        "features": (),
        "scram": (),
        "standalone": False,
        "no_initial_controllers": False,
        "initial_controllers": None,
    }
    return choose(**{**nothing, **given})


@pytest.mark.parametrize(
    ("release", "version"),
    [("4.3", "4.3-IV0"), ("4.1", "4.1-IV1"), ("4.1-IV0", "4.1-IV0"), ("3.7.2", "3.7-IV4"), ("3.3", "3.3-IV3")],
)
def test_release_selects_its_last_metadata_version(release: str, version: str) -> None:
    assert chosen(release=release).metadata_version == version


@pytest.mark.parametrize(("level", "version"), [(7, "3.3-IV3"), (21, "3.9-IV0"), (25, "4.0-IV3"), (30, "4.3-IV0")])
def test_feature_level_selects_its_metadata_version(level: int, version: str) -> None:
    assert chosen(features=[f"metadata.version={level}"]).metadata_version == version


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"release": "2.8"}, OpsError, "Unknown metadata.version '2.8'. Supported metadata.version are: 3.3-IV3, "),
        ({"release": "4.1-IV9"}, OpsError, "Unknown metadata.version '4.1-IV9'"),
        ({"features": ["metadata.version=31"]}, OpsError, "feature level 31. Valid feature levels are from 7 to 30."),
        ({"features": ["group.version=1"]}, OpsError, "Unsupported feature: group.version. Supported features are"),
        ({"features": ["group.version"]}, UsageError, "Can't parse feature=level string group.version"),
        ({"features": ["metadata.version=27"], "release": "4.1"}, OpsError, "Use --release-version instead of"),
        ({"scram": ["SCRAM-SHA-256=[name=a,password=b]"]}, OpsError, "does not authenticate clients"),
        ({"standalone": True, "no_initial_controllers": True}, UsageError, "--no-initial-controllers is not allowed"),
        ({"standalone": True, "initial_controllers": "x"}, UsageError, "not allowed with --standalone"),
    ],
)
def test_unsupported_options_are_rejected(given: dict[str, Any], error: type[OpsError], says: str) -> None:
    with pytest.raises(error) as refused:
        chosen(**given)
    assert says in str(refused.value)
