"""The options of kafka-storage about Kafka's controllers and features: accepted, without effect, or rejected. Pure.

A storage node has no controller quorum and no feature levels of its own. A script that formats Kafka brokers works
unchanged where an option has no effect, and fails where it requests something that a storage node does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ops.stack.errors import OpsError, UsageError

__all__ = ["LATEST", "Options", "choose"]

#: Apache Kafka 4.3's metadata.versions in their order; the first has the feature level 7.
_RELEASES: Final = (
    *("3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0"),
)
_FIRST_LEVEL: Final = 7
_FEATURE: Final = "metadata.version"

#: The metadata.version whose protocol a storage node speaks.
LATEST: Final = _RELEASES[-1]

_NO_QUORUM = (
    "{option} has no effect: the Cluster workflow keeps the metadata of a cluster of storage nodes, and there is no "
    "controller quorum to set up"
)


@dataclass(frozen=True, slots=True)
class Options:
    """The metadata.version to print, and a sentence for each option without effect."""

    metadata_version: str
    notes: tuple[str, ...]


def choose(
    *,
    release: str | None,
    features: Sequence[str],
    scram: Sequence[str],
    standalone: bool,
    no_initial_controllers: bool,
    initial_controllers: str | None,
) -> Options:
    """Evaluate the options. Raises OpsError for an unsupported one, UsageError for a contradiction or a bad value."""
    quorum = [
        name
        for name, given in (
            ("--standalone", standalone),
            ("--no-initial-controllers", no_initial_controllers),
            ("--initial-controllers", initial_controllers is not None),
        )
        if given
    ]
    if len(quorum) > 1:
        raise UsageError(f"{quorum[1]} is not allowed with {quorum[0]}")
    if scram:
        raise OpsError(
            "--add-scram is not supported: a storage node does not authenticate clients; remove the option, and "
            "restrict the listener to a trusted network"
        )
    level = _level(features)
    if level is not None and release is not None:
        raise OpsError(f"Use --release-version instead of --feature {_FEATURE}=X to avoid ambiguity.")
    version = _RELEASES[level - _FIRST_LEVEL] if level is not None else _release(release)
    return Options(version, tuple(_NO_QUORUM.format(option=option) for option in quorum))


def _release(text: str | None) -> str:
    """Return the metadata.version of a release (4.1, 4.1.2: the last of its versions) or of itself (4.1-IV0)."""
    if text is None:
        return LATEST
    short = ".".join(text.split(".")[:2])
    for version in reversed(_RELEASES):
        if text == version or short == version.partition("-")[0]:
            return version
    raise OpsError(f"Unknown {_FEATURE} '{text}'. Supported {_FEATURE} are: {', '.join(_RELEASES)}")


def _level(features: Sequence[str]) -> int | None:
    """Return the level of metadata.version among `feature=level`; None without it."""
    found = None
    for each in features:
        name, equals, text = (part.strip() for part in each.partition("="))
        if not equals or not text.lstrip("-").isdecimal():
            why = "no number after the equals sign" if equals else "equals sign not found"
            raise UsageError(f"Can't parse feature=level string {each}: {why}.")
        if name != _FEATURE:
            raise OpsError(f"Unsupported feature: {name}. Supported features are: {_FEATURE}")
        found = int(text)
        last = _FIRST_LEVEL + len(_RELEASES) - 1
        if not _FIRST_LEVEL <= found <= last:
            levels = f"from {_FIRST_LEVEL} to {last}"
            raise OpsError(f"No MetadataVersion with feature level {found}. Valid feature levels are {levels}.")
    return found
