"""What `rehome storage info` says of the directories, in kafka-storage's words. Pure, but for `see`.

For files of version 0 and 1 these are kafka-storage's lines. What it cannot know is said besides: version 2's
directory.ids, and an id that is in the lists but on no disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage_node.directories import meta_properties
from storage_node.directories.errors import MalformedMetaProperties
from storage_node.directories.latch import reason_of
from storage_node.directories.meta_properties import FILE, MetaProperties
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
    """What is at one path; `reason` says why a file is malformed or cannot be read."""

    path: str
    state: Literal["ok", "unformatted", "missing", "no directory", "malformed"]
    properties: MetaProperties | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Info:
    """The directories that are there, keys and values of the first readable file (empty without one), what is wrong."""

    directories: tuple[str, ...]
    metadata: dict[str, str]
    problems: tuple[str, ...]


def see(path: str) -> Seen:
    """Look at one path; never raises and changes nothing."""
    if not Path(path).is_dir():
        return Seen(path, "no directory" if os.path.lexists(path) else "missing")
    try:
        properties = meta_properties.read(path)
    except (MalformedMetaProperties, MetadataIOError) as error:
        reason = error.reason if isinstance(error, MalformedMetaProperties) else reason_of(error)
        return Seen(path, "malformed", reason=reason)
    return Seen(path, "unformatted") if properties is None else Seen(path, "ok", properties)


def info(seen: Sequence[Seen], mode: str) -> Info:
    """What is said of the directories, sorted by path; `mode` says what the configuration file is for."""
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
    """Directory ids that two directories have, and those that no directory has."""
    problems: list[str] = []
    present: dict[str, str] = {}
    listed: dict[str, str] = {}
    for each in seen:
        if each.properties is None:
            continue
        id = each.properties.directory_id
        if id is not None and id in present:
            problems.append(f"Duplicate directory ID {id}: {present[id]} has it, and {each.path} as well.")
        elif id is not None:
            present[id] = each.path
        for other in each.properties.directory_ids:
            listed.setdefault(other, each.path)
    for id in sorted(listed.keys() - present.keys()):
        problems.append(
            f"No directory has the directory ID {id}, which {listed[id]}/{FILE} lists: its disk is not mounted or gone."
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
    """The lines that kafka-storage prints; a directory that is not there is among the problems alone."""
    told: list[str] = []
    if found.directories:
        told.append("Found log directory:" if len(found.directories) == 1 else "Found log directories:")
        told += [*(f"  {path}" for path in found.directories), ""]
    if found.metadata:
        pairs = ", ".join(f"{key}={value}" for key, value in found.metadata.items())
        told += [f"Found metadata: {{{pairs}}}", ""]
    if found.problems:
        told.append("Found problem:" if len(found.problems) == 1 else "Found problems:")
        told += [*(f"  {problem}" for problem in found.problems), ""]
    return told
