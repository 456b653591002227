"""What is wrong with the disks of a stopped broker, as values: one finding each, with what to do about it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ops.disks.duplicates import Duplicate, duplicates, listed
from ops.disks.found import Copy, DamageKind, DirectoryFound, Folder, FolderKind
from storage_node.directories import partition_metadata
from storage_node.directories.checkpoints import LOG_START_OFFSETS
from storage_node.directories.meta.problems import judge
from storage_node.model.ids import TopicPartition

__all__ = ["Kind", "Problem", "Verdict", "verdict"]


class Kind(StrEnum):
    """What a problem is about; scripts read these words."""

    DUPLICATE = "duplicate replica"
    LEFTOVER = "leftover"
    TOPIC_ID = "topic id"
    RECORDS = "records"
    INDEX = "index"
    EPOCHS = "leader epochs"
    CHECKPOINT = "checkpoint"
    META = "meta.properties"
    SWAPPED = "swapped disks"
    FOREIGN = "foreign folder"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: where, what, and what the operator can do. A `note` needs no action and does not fail a check.

    `details` has a line for each copy of a replica that is in several directories.
    """

    kind: Kind
    path: str
    says: str
    advice: str = ""
    tp: TopicPartition | None = None
    note: bool = False
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings, problems first, and the replicas that are in several directories."""

    problems: tuple[Problem, ...]
    duplicates: tuple[Duplicate, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing needs an action."""
        return all(problem.note for problem in self.problems)


def verdict(
    found: Sequence[DirectoryFound],
    *,
    node_id: int | None,
    cluster_id: str = "",
    metadata: str = "",
    beside: bool = False,
    topics: Mapping[str, str] | None = None,
) -> Verdict:
    """Judge the directories, in the order of log.dirs.

    `node_id` and `cluster_id` are the configuration's (None and "" where it has none), `metadata` the path of the
    metadata directory, `beside` whether that is not in log.dirs. `topics`: topic ids by name in the metadata that the
    broker has on its disks.
    """
    of_node = any(directory.of_node for directory in found)
    problems = [*_meta(found, node_id, cluster_id, metadata, beside, of_node), *_swapped(found, metadata)]
    for directory in found:
        problems += _directory(directory, of_node)
    twice = duplicates(found, topics)
    problems += [_duplicate(each, of_node) for each in twice]
    problems += _topic_ids(found, of_node, topics or {})
    for directory in found:
        for copy in directory.copies:
            problems += _log(copy, directory, of_node)
    return Verdict(tuple(sorted(problems, key=lambda each: each.note)), tuple(twice))


# meta.properties and the directories themselves


def _meta(
    found: Sequence[DirectoryFound], node_id: int | None, cluster_id: str, metadata: str, beside: bool, of_node: bool
) -> list[Problem]:
    metas = [directory.meta for directory in found]
    node = node_id if node_id is not None else next((m.properties.node_id for m in metas if m.properties), None)
    judged = judge(
        metas,
        "",
        metadata=metadata or metas[0].path,
        separate=beside,
        node_id=node if node is not None else -1,
        cluster_id=cluster_id or None,
        format=False,
        forget=(),
    )
    problems = [Problem(Kind.META, each.path, each.says, each.advice) for each in judged.problems]
    said = {each.path for each in judged.problems}
    kind = "a storage node" if of_node else "Apache Kafka"
    for meta in metas:
        if meta.path not in said and meta.state == "missing":
            problems.append(Problem(Kind.META, meta.path, "the directory does not exist", "mount its disk"))
        elif meta.path not in said and meta.state == "unformatted":
            advice = f"format it as the other directories of {kind} were, or mount the disk that holds it"
            problems.append(Problem(Kind.META, meta.path, "it has no meta.properties", advice))
        elif meta.properties is not None and meta.properties.directory_id is None:
            problems.append(
                Problem(Kind.META, meta.path, "it has no directory.id; the next start assigns one", note=True)
            )
    return problems


def _swapped(found: Sequence[DirectoryFound], metadata: str) -> list[Problem]:
    """Find disks that are mounted at each other's mount points.

    A storage node writes the ids of all directories in the order of log.dirs. Apache Kafka keeps no order, but starts
    only if its metadata log is in the metadata directory.
    """
    problems: list[Problem] = []
    present = {directory.id: directory.path for directory in found if directory.id}
    for directory in found:
        properties = directory.meta.properties
        listed = [each for each in properties.directory_ids if each in present] if properties is not None else []
        now = [each.id for each in found if each.id in listed]
        if listed and now != listed:
            for was, is_ in zip(now, listed, strict=True):
                if was != is_:
                    says = (
                        f"the disk with directory.id {was} is mounted here; at the last start it was the one with {is_}"
                    )
                    advice = f"mount {is_} here again (it is at {present[is_]}); the records are served either way"
                    problems.append(Problem(Kind.SWAPPED, present[was], says, advice))
            break
    logs = [directory.path for directory in found if any(f.kind is FolderKind.METADATA for f in directory.folders)]
    if metadata and logs and metadata not in logs:
        says = f"it holds Apache Kafka's metadata log, which is expected in {metadata}: the broker does not start"
        advice = f"mount the two disks at each other's mount points, or set metadata.log.dir={logs[0]}"
        problems.append(Problem(Kind.SWAPPED, logs[0], says, advice))
    return problems


def _directory(directory: DirectoryFound, of_node: bool) -> list[Problem]:
    problems: list[Problem] = []
    if directory.unreadable:
        says = f"it cannot be listed: {directory.unreadable}"
        problems.append(Problem(Kind.DIRECTORY, directory.path, says, "repair its disk or take it out of log.dirs"))
    for path, reason in directory.files_say:
        advice = "the broker starts without its offsets and writes it again; remove it"
        problems.append(Problem(Kind.CHECKPOINT, path, f"it is malformed: {reason}", advice))
    return problems + [
        _folder(folder, of_node) for folder in directory.folders if folder.kind is not FolderKind.METADATA
    ]


_LEFTOVERS: Mapping[FolderKind, tuple[str, str]] = {
    FolderKind.FUTURE: ("the unfinished copy of a move between directories", "the broker continues the move"),
    FolderKind.DELETE: ("a replica that is to be deleted", "the broker deletes it after file.delete.delay.ms"),
    FolderKind.STRAY: ("a replica that the broker no longer serves", "examine it, and remove it to free its space"),
    FolderKind.MOVE: ("the moving copy of a storage node", "the node continues the move when it starts"),
    FolderKind.NODE_DELETE: ("a storage node's replica that is to be deleted", "the node decides when it starts"),
    FolderKind.ASIDE: ("a replica that rehome has set aside", "remove it when it is no longer needed"),
    FolderKind.COPYING: ("the copy of an unfinished offline move", "run the same `rehome storage move` again"),
}


def _folder(folder: Folder, of_node: bool) -> Problem:
    if folder.kind is FolderKind.FOREIGN:
        if of_node:
            return Problem(Kind.FOREIGN, folder.path, "it is not a replica; a storage node leaves it alone", note=True)
        says = "its name is not that of a replica: Apache Kafka does not start with such a folder in a log directory"
        return Problem(Kind.FOREIGN, folder.path, says, "move it elsewhere")
    if folder.kind is FolderKind.SYMLINK:
        says = f"a symlink to {folder.target}, which was not followed"
        advice = "put the folder itself into its place: a storage node does not serve what a symlink leads to"
        return Problem(Kind.LEFTOVER, folder.path, says, advice, folder.tp, note=True)
    foreign = (FolderKind.MOVE, FolderKind.NODE_DELETE) if not of_node else ()
    says, advice = _LEFTOVERS[folder.kind]
    if folder.kind in foreign:
        says, advice = f"{says}: Apache Kafka does not start with it", "move it elsewhere, or start the storage node"
    return Problem(Kind.LEFTOVER, folder.path, says, advice, folder.tp, note=folder.kind not in foreign)


# Duplicates, topic ids and records


def _duplicate(found: Duplicate, of_node: bool) -> Problem:
    where = ", ".join(sorted(copy.directory for copy in found.copies))
    says = f"the replica is in {len(found.copies)} directories ({where})"
    path = found.copies[0].folder
    details = tuple(_copy(copy) for copy in found.copies)
    if found.by_itself:
        says = (
            f"{says}: the one in {found.copies[0].directory if found.keep is None else found.keep.directory} is newer"
        )
        return Problem(Kind.DUPLICATE, path, says, "the storage node keeps it when it starts", found.tp, True, details)
    then = "the storage node keeps it offline" if of_node else "Apache Kafka does not start"
    if found.keep is None:
        advice = f"decide, and run: rehome storage repair -c FILE --keep {found.tp}=DIR"
        return Problem(Kind.DUPLICATE, path, f"{says}: {then}, and {found.why}", advice, found.tp, False, details)
    advice = f"keep {found.keep.directory} ({found.why}): rehome storage repair -c FILE"
    return Problem(Kind.DUPLICATE, path, f"{says}: {then}", advice, found.tp, False, details)


def _copy(copy: Copy) -> str:
    log = copy.log
    state = "whole" if log.whole else "damaged"
    if log.reach > log.end:
        state += f", with records up to offset {log.reach} behind the damage"
    epochs = ", ".join(f"{epoch} from offset {start}" for epoch, start in log.epochs.entries) or "none"
    return f"{copy.folder}: {state}, offsets {copy.start} to {log.end}, leader epochs {epochs}"


def _topic_ids(found: Sequence[DirectoryFound], of_node: bool, topics: Mapping[str, str]) -> list[Problem]:
    problems: list[Problem] = []
    ids: defaultdict[str, Counter[str]] = defaultdict(Counter)
    copies = [copy for directory in found for copy in directory.copies]
    for copy in copies:
        if copy.topic_id:
            ids[copy.tp.topic][copy.topic_id] += 1
    for copy in copies:
        known = ids[copy.tp.topic]
        right, whose = topics.get(copy.tp.topic, ""), "in the metadata on this broker's disks"
        if not right and known and known.most_common(1)[0][1] * 2 > known.total():
            right, whose = known.most_common(1)[0][0], "of the topic's other replicas"
        if (problem := _topic_id(copy, right, whose, of_node, known)) is not None:
            problems.append(problem)
        elif topics and copy.tp.topic not in topics:
            says = "the metadata on this broker's disks has no such topic: it was deleted, or created later"
            advice = "the broker decides when it has the newest metadata"
            path = f"{copy.folder}/{partition_metadata.FILE}"
            problems.append(Problem(Kind.TOPIC_ID, path, says, advice, copy.tp, note=True))
    return problems


def _topic_id(copy: Copy, right: str, whose: str, of_node: bool, known: Iterable[str]) -> Problem | None:
    """Return what is wrong with a replica's topic id, given the one that is `right` ("" if that is not known)."""
    path = f"{copy.folder}/{partition_metadata.FILE}"
    restore = "write it again with the topic id that `kafka-topics --describe` shows"
    if right:
        restore = f"write it again: `version: 0` and `topic_id: {right}`, the one {whose}"
    if copy.topic_id_says:
        return Problem(Kind.TOPIC_ID, path, copy.topic_id_says, restore, copy.tp)
    if not copy.topic_id:
        then = "the storage node takes the metadata's" if of_node else "Apache Kafka renames it to -stray at its start"
        return Problem(Kind.TOPIC_ID, path, f"the replica has no topic id: {then}", restore, copy.tp, note=of_node)
    if right and copy.topic_id != right:
        says = f"its topic id is {copy.topic_id}, the one {whose} is {right}"
        advice = "the broker takes it for a deleted topic's; compare with `kafka-topics --describe`"
        return Problem(Kind.TOPIC_ID, path, says, advice, copy.tp)
    if not right:
        says = f"the topic's replicas have different topic ids: {listed(known)}"
        return Problem(Kind.TOPIC_ID, path, says, "compare with `kafka-topics --describe`", copy.tp)
    return None


_KINDS = {DamageKind.INDEX: Kind.INDEX, DamageKind.EPOCHS: Kind.EPOCHS}


def _log(copy: Copy, directory: DirectoryFound, of_node: bool) -> list[Problem]:
    problems: list[Problem] = []
    if copy.starts_beyond:
        then = (
            "the storage node keeps the replica offline, or fetches it again from a leader that has its records"
            if of_node
            else "Apache Kafka removes all of them at its start"
        )
        log = copy.log
        says = (
            f"its log start offset of {copy.tp}, {copy.log_start}, lies beyond the log's end, {log.reach}, with "
            f"{log.segments} segments and {log.size} bytes of records: {then}"
        )
        advice = (
            "remove the replica's line and lower the number in the second line by one, or put the newer copy of "
            f"{copy.folder} back"
        )
        path = f"{copy.directory}/{LOG_START_OFFSETS}"
        problems.append(Problem(Kind.CHECKPOINT, path, says, advice, copy.tp))
    for damage in copy.log.damages:
        kind = _KINDS.get(damage.kind, Kind.RECORDS)
        where = f" at position {damage.position}" if damage.position else ""
        offset = f" (offset {damage.offset})" if damage.offset >= 0 else ""
        says = f"{damage.kind}{where}{offset}: {damage.says}"
        path = f"{copy.folder}/{damage.file}"
        # A start after an unclean stop cuts a torn tail off and builds the indexes beyond the recovery point again.
        note = not directory.clean and damage.kind in (DamageKind.TORN_TAIL, DamageKind.INDEX)
        advice = _ADVICE[damage.kind] or _epochs(copy)
        problems.append(Problem(kind, path, says, advice, copy.tp, note=note))
    return problems


def _epochs(copy: Copy) -> str:
    rows = ", ".join(f"{epoch} {offset}" for epoch, offset in copy.log.epochs.entries)
    return f"write the (epoch, offset) of its batches into it: {rows or 'none'}; or remove it for a storage node"


_FETCH = "replace it by another replica of the partition: remove the folder, and the broker fetches it from the leader"
_ADVICE: Mapping[DamageKind, str] = {
    DamageKind.BATCH: f"if there is another replica, {_FETCH}",
    DamageKind.TRUNCATED: f"if there is another replica, {_FETCH}",
    DamageKind.UNREADABLE: "move what can be read: rehome storage move --offline -c FILE --from DIR --to DIR",
    DamageKind.TORN_TAIL: "the start after an unclean stop cuts it off; remove .kafka_cleanshutdown if there is one",
    DamageKind.INDEX: "remove the file: the broker builds it again from the records when it starts",
    DamageKind.EPOCHS: "",
}
