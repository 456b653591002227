"""Finds the problems of the directories at a start or a format, per directory. Pure.

The messages are Kafka's where Kafka has them: `Invalid cluster.id in: ...`, `Stored node id ...`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from storage_node.directories.errors import Problem, StartRefused
from storage_node.directories.meta.properties import FILE, MetaProperties, is_reserved

__all__ = ["Found", "Judged", "State", "judge"]

State = Literal["ok", "unformatted", "missing", "error"]

#: The operator's options for a directory without a meta.properties.
_FORMAT = "format it with: rehome storage format -t {cluster} -c FILE; or mount the disk that holds it"


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a configured path.

    "ok": a readable meta.properties; "unformatted": a directory without one; "missing": does not exist; "error": cannot
    be read, for `reason`. `has_replicas`: an unformatted directory that nevertheless holds replicas.
    """

    path: str
    state: State
    properties: MetaProperties | None = None
    reason: str = ""
    has_replicas: bool = False


@dataclass(slots=True)
class Judged:
    """The cluster id ("" if unknown), the path of each present directory id, all known ids, the known ids that no
    present directory has, the directories that are to get their first file, and the problems.
    """

    cluster: str = ""
    present: dict[str, str] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)
    missing: frozenset[str] = frozenset()
    new: list[Found] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Expected:
    """What is expected of the directories; `metadata` is the path of the metadata directory."""

    what: str
    metadata: str
    separate: bool
    node_id: int
    cluster_id: str | None
    format: bool


def judge(
    found: Sequence[Found],
    what: str,
    *,
    metadata: str,
    separate: bool,
    node_id: int,
    cluster_id: str | None,
    format: bool,
    forget: Collection[str],
) -> Judged:
    """Check all directories; `what` begins the sentence, `separate`: metadata.log.dir is not in log.dirs.

    Raises StartRefused for an id that cannot be forgotten, since that is a problem of no directory.
    """
    expected = _Expected(what, metadata, separate, node_id, cluster_id, format)
    judged = Judged()
    own = _own(found, expected, judged)
    _ids(own, judged)
    known = dict.fromkeys(judged.present)
    for _, properties in own:
        known.update(dict.fromkeys(sorted(properties.directory_ids)))
    for id in forget:
        if id in judged.present:
            raise StartRefused(f"{what}: cannot forget directory id {id}, which {judged.present[id]} has")
        known.pop(id, None)
    judged.known = list(known)
    judged.missing = frozenset(known) - judged.present.keys()
    judged.new = [
        f for f in found if f.state == "unformatted" or (f.state == "missing" and (format or not judged.missing))
    ]
    _not_there(found, own, expected, judged)
    order = [f.path for f in found]
    judged.problems.sort(key=lambda problem: order.index(problem.path))
    return judged


def _own(found: Sequence[Found], expected: _Expected, judged: Judged) -> list[tuple[str, MetaProperties]]:
    """Return the files that belong to this node and cluster, and add problems for the others.

    Without a configured cluster.id, the file of the metadata directory decides, or else the first one.
    """
    good = [(f.path, f.properties) for f in found if f.properties is not None]
    by_rank = sorted(good, key=lambda each: each[0] != expected.metadata)
    cluster, source = expected.cluster_id or "", "the configuration"
    for path, properties in by_rank:
        if not cluster and properties.cluster_id and properties.node_id in (None, expected.node_id):
            cluster, source = properties.cluster_id, f"{path}/{FILE}"
    judged.cluster = cluster
    own = []
    for path, properties in good:
        foreign = False
        if properties.cluster_id is not None and cluster and properties.cluster_id != cluster:
            foreign = True
            says = (
                f"Invalid cluster.id in: {path}/{FILE}. Expected {cluster}, but read {properties.cluster_id} "
                f"({source} has {cluster})"
            )
            advice = "take the directory of the other cluster out of log.dirs, or correct the cluster.id"
            judged.problems.append(Problem(path, says, advice))
        if properties.node_id is not None and properties.node_id != expected.node_id:
            foreign = True
            says = (
                f"Stored node id {properties.node_id} doesn't match previous node id {expected.node_id} in "
                f"{path}/{FILE} (node.id in the configuration is {expected.node_id})"
            )
            judged.problems.append(Problem(path, says, "correct node.id or log.dirs"))
        if not foreign:
            own.append((path, properties))
    return own


def _ids(own: Sequence[tuple[str, MetaProperties]], judged: Judged) -> None:
    for path, properties in own:
        id = properties.directory_id
        for each in dict.fromkeys((*([id] if id else []), *properties.directory_ids)):
            if is_reserved(each):
                says = f"its {FILE} has the directory id {each}, which is reserved"
                judged.problems.append(Problem(path, says, "remove that line; the node then assigns a new id"))
        if id is None:
            continue
        if id in judged.present:
            other = judged.present[id]
            says = f"it has the same directory id {id} as {other}: one is a copy of the other"
            judged.problems.append(Problem(path, says, "take the copy out of log.dirs"))
            continue
        judged.present[id] = path


def _not_there(
    found: Sequence[Found], own: Sequence[tuple[str, MetaProperties]], expected: _Expected, judged: Judged
) -> None:
    """Add the problems of directories without a readable file."""
    bare = not any(f.state == "ok" for f in found)
    for f in found:
        if f.state == "ok":
            continue
        if f in judged.new and judged.missing:
            judged.problems.append(_unmounted(f, own, expected, judged))
        elif f in judged.new and f.has_replicas:
            says = f"it has no {FILE} but holds replicas, so that their cluster and node are unknown"
            judged.problems.append(Problem(f.path, says, f"restore its {FILE}, or empty the directory"))
        elif expected.format:
            if f.state == "error":
                says = f"I/O error trying to read log directory {f.path} ({f.reason}); formatting needs all directories"
                judged.problems.append(Problem(f.path, says, "repair it or take it out of log.dirs"))
        elif bare or (f.path == expected.metadata and (expected.separate or f in judged.new)):
            # (An error, or a disk that is gone, takes only that directory offline, also where it is the first.)
            judged.problems.append(_needed(f, bare, expected, judged.cluster))
    if judged.problems and not expected.format:
        listed = {problem.path for problem in judged.problems}
        for f in found:
            if f.state == "error" and f.path not in listed:
                advice = "repair its disk, or the node will start without it"
                judged.problems.append(Problem(f.path, f"it cannot be used ({f.reason})", advice))


def _unmounted(f: Found, own: Sequence[tuple[str, MetaProperties]], expected: _Expected, judged: Judged) -> Problem:
    ids = sorted(judged.missing)
    where = next(path for path, properties in own if judged.missing & set(properties.directory_ids))
    says = (
        f"it has no {FILE}, while {where}/{FILE} lists the directory id {', '.join(ids)}, which no directory present "
        f"has, so {f.path} may be a disk that is not mounted"
    )
    forget = f"rehome dirs forget {expected.node_id} {' '.join(ids)}"
    return Problem(f.path, says, f"mount it, or, if the disk is permanently lost, run: {forget}")


def _needed(f: Found, bare: bool, expected: _Expected, cluster: str) -> Problem:
    """Return the problem of a directory that the start needs: the metadata directory, or any if none is usable."""
    which = "metadata.log.dir" if expected.separate else "the first of log.dirs"
    name = f"the metadata directory ({which})" if f.path == expected.metadata else "the directory"
    command = _FORMAT.format(cluster=cluster or "CLUSTER_ID")
    if f.state == "unformatted":
        return Problem(f.path, f"{name} is not formatted: it has no {FILE}", command)
    if f.state == "missing":
        return Problem(f.path, f"{name} does not exist", command if bare else f"mount its disk, or {command}")
    return Problem(f.path, f"{name} cannot be used ({f.reason})", "mount or repair its disk")
