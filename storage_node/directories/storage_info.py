"""The output of `rehome storage info`, in kafka-storage's words. Pure, except for `see`.

For files of version 0 and 1 these are kafka-storage's lines. Added are version 2's directory.ids, and ids that a file
lists but no directory has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage_node.directories.errors import MalformedMetaProperties
from storage_node.directories.io_faults import reason_of
from storage_node.directories.meta import properties as meta_properties
from storage_node.directories.meta.properties import FILE, MetaProperties
from storage_node.errors import MetadataIOError

__all__ = ["Info", "Seen", "info", "lines", "see"]

_KRAFT_IN_LEGACY = (
    "The kafka configuration file appears to be for a cluster in KRaft mode, but the directories are formatted for "
    "legacy mode."
)
_LEGACY_IN_KRAFT = (
    "The kafka configuration file appears to be for a legacy cluster, but the directories are formatted for a cluster "
    "in KRaft mode."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of one path; `reason`: why a file is malformed or cannot be read."""

    path: str
    state: Literal["ok", "unformatted", "missing", "no directory", "malformed"]
    properties: MetaProperties | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Info:
    """The existing directories, keys and values of the first readable file (empty if there is none), the problems."""

    directories: tuple[str, ...]
    metadata: dict[str, str]
    problems: tuple[str, ...]


def see(path: str) -> Seen:
    """Inspect one path; never raises and changes nothing."""
    if not Path(path).is_dir():
        return Seen(path, "no directory" if os.path.lexists(path) else "missing")
    try:
        properties = meta_properties.read(path)
    except (MalformedMetaProperties, MetadataIOError) as error:
        reason = error.reason if isinstance(error, MalformedMetaProperties) else reason_of(error)
        return Seen(path, "malformed", reason=reason)
    return Seen(path, "unformatted") if properties is None else Seen(path, "ok", properties)


def info(seen: Sequence[Seen], mode: str) -> Info:
    """Summarise the directories, sorted by path; `mode` is that of the configuration file (kraft or legacy)."""
    ordered = sorted(seen, key=lambda each: each.path)
    problems: list[str] = []
    first: MetaProperties | None = None
    for each in ordered:
        match each.state:
            case "missing":
                problems.append(f"{each.path} does not exist")
            case "no directory":
                problems.append(f"{each.path} is not a directory")
            case "unformatted":
                problems.append(f"{each.path} is not formatted.")
            case "malformed":
                problems.append(f"Error loading {each.path}/{FILE}: {each.reason}")
        if each.properties is None:
            continue
        if first is None:
            first = each.properties
        elif first.cluster_id != each.properties.cluster_id:
            problems.append("Mismatched cluster IDs between storage directories.")
        elif first.node_id != each.properties.node_id:
            problems.append("Mismatched node IDs between storage directories.")
    if first is not None and mode == "kraft" and first.version == 0:
        problems.append(_KRAFT_IN_LEGACY)
    if first is not None and mode == "legacy" and first.version > 0:
        problems.append(_LEGACY_IN_KRAFT)
    problems += _ids(ordered)
    there = tuple(each.path for each in ordered if each.state not in ("missing", "no directory"))
    return Info(there, _metadata(first) if first is not None else {}, tuple(problems))


def _ids(seen: Sequence[Seen]) -> list[str]:
    """Return the problems of ids that two directories have, and of listed ids that no directory has."""
    problems: list[str] = []
    present: dict[str, str] = {}
    listed: dict[str, str] = {}
    for each in seen:
        if each.properties is None:
            continue
        id = each.properties.directory_id
        if id is not None and id in present:
            problems.append(f"Duplicate directory ID {id} in {present[id]} and {each.path}.")
        elif id is not None:
            present[id] = each.path
        for other in each.properties.directory_ids:
            listed.setdefault(other, each.path)
    for id in sorted(listed.keys() - present.keys()):
        problems.append(
            f"Directory ID {id} is listed in {listed[id]}/{FILE}, but no directory has it: "
            f"its disk is not mounted or lost."
        )
    return problems


def _metadata(properties: MetaProperties) -> dict[str, str]:
    values = {"version": str(properties.version)}
    if properties.cluster_id is not None:
        values["cluster.id"] = properties.cluster_id
    if properties.node_id is not None:
        values["node.id" if properties.version else "broker.id"] = str(properties.node_id)
    if properties.directory_id is not None:
        values["directory.id"] = properties.directory_id
    if properties.version > 1 and properties.directory_ids:
        values["directory.ids"] = ",".join(properties.directory_ids)
    return dict(sorted(values.items()))


def lines(found: Info) -> list[str]:
    """Return the lines that kafka-storage prints; a missing directory appears among the problems only."""
    printed: list[str] = []
    if found.directories:
        printed.append("Found log directory:" if len(found.directories) == 1 else "Found log directories:")
        printed += [*(f"  {path}" for path in found.directories), ""]
    if found.metadata:
        pairs = ", ".join(f"{key}={value}" for key, value in found.metadata.items())
        printed += [f"Found metadata: {{{pairs}}}", ""]
    if found.problems:
        printed.append("Found problem:" if len(found.problems) == 1 else "Found problems:")
        printed += [*(f"  {problem}" for problem in found.problems), ""]
    return printed
