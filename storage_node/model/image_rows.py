"""The rows of the metadata: compact lists, in images and wherever else the metadata is carried.

    partition    [index, replicas, adding, removing, original, directories, generations, ISR, leader, leader epoch,
                 partition epoch], and, where replicas are reported offline, [[node, reason, file]]
    topic        [name, id, configs, [partition]]
    node         [id, incarnation, broker epoch, host, port, [[directory id, path, online]], fenced], and, where they
                 are set, rack and 1 for an unclean election that its server.properties allow

Rows are read by hand: typed decoding of thousands of partitions would take seconds inside a workflow task. Nothing is
taken for granted of them, and rows may have more fields than these.
"""

from __future__ import annotations

from typing import Any

from storage_node.model.assignment import Assignment
from storage_node.model.image_check import are_numbers, are_texts, damaged, is_configs, is_list, is_number, is_text
from storage_node.model.metadata import DirectoryRegistration, NodeImage, OfflineReplica, PartitionImage, TopicImage

_LONG = 1 << 63
_Numbers = tuple[int, ...]


def partition_row(partition: PartitionImage) -> list[Any]:
    """Return the partition's row."""
    held = partition.assignment
    row = [
        partition.index,
        held.replicas,
        held.adding,
        held.removing,
        held.original,
        partition.directories,
        partition.generations,
        partition.isr,
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
    ]
    if partition.offline:
        row.append([[each.node, each.reason, each.file] for each in partition.offline])
    return row


def topic_row(topic: TopicImage) -> list[Any]:
    """Return the topic's row."""
    return [topic.name, topic.id, dict(topic.configs), [partition_row(each) for each in topic.partitions]]


def node_row(node: NodeImage) -> list[Any]:
    """Return the node's row."""
    directories = [[each.id, each.path, int(each.online)] for each in node.directories]
    more = [node.rack, 1] if node.unclean else [node.rack] if node.rack else []
    start = [node.node, node.incarnation, node.broker_epoch, node.host, node.port]
    return [*start, directories, int(node.fenced), *more]


class RowReader:
    """Reads rows strictly. Thousands of partitions share a few assignments, directories and generations: what was read
    before is neither checked nor made again.
    """

    def __init__(self) -> None:
        self._assignments: dict[tuple[_Numbers, _Numbers, _Numbers, _Numbers], Assignment] = {}
        self._generations: dict[_Numbers, _Numbers] = {}
        self._directories: dict[tuple[str, ...], tuple[str, ...]] = {}

    def topic(self, row: Any) -> TopicImage:
        """Return the topic of a row. Raises ValueError."""
        if not (is_list(row, 4) and is_text(row[0]) and is_text(row[1]) and is_configs(row[2])):
            raise damaged("topics", row)
        partitions = self.partitions(row[3])
        if any([each.index != place for place, each in enumerate(partitions)]):
            raise damaged("topics", row)
        return TopicImage(row[0], row[1], row[2], partitions)

    def partitions(self, rows: Any) -> tuple[PartitionImage, ...]:
        """Return the partitions of rows, in their order. Raises ValueError."""
        if type(rows) is not list:
            raise damaged("partitions", rows)
        return tuple([self.partition(row) for row in rows])

    def partition(self, row: Any) -> PartitionImage:
        """Return the partition of a row. Raises ValueError."""
        if not is_list(row, 11):
            raise damaged("partitions", row)
        index, replicas, adding, removing, original, places, generations, isr, leader, epoch, version, *more = row
        lists = type(replicas) is type(adding) is type(removing) is type(original) is type(isr) is list
        if not (lists and type(places) is type(generations) is list):
            raise damaged("partitions", row)
        if not len(replicas) == len(places) == len(generations):
            raise ValueError(f"partition {index} has {replicas} in {places} at {generations}")
        if not (
            type(index) is type(leader) is type(epoch) is type(version) is int
            and (0 <= index < _LONG and -1 <= leader < _LONG and -1 <= epoch < _LONG and -1 <= version < _LONG)
        ):
            raise damaged("partitions", row)
        sets = tuple(replicas), tuple(adding), tuple(removing), tuple(original)
        where, at = tuple(places), tuple(generations)
        try:
            held = self._assignments.get(sets) or self._assignment(sets)
            where = self._directories.get(where) or self._known(self._directories, where, are_texts(where))
            at = self._generations.get(at) or self._known(self._generations, at, are_numbers(at))
            in_sync = held.replicas if isr == replicas else tuple(isr)
            if in_sync is not held.replicas and not (are_numbers(in_sync) and set(in_sync) <= set(held.replicas)):
                raise damaged("partitions", row)
        except (TypeError, ValueError) as problem:
            raise damaged("partitions", row) from problem
        offline = self._offline(more[0]) if more else ()
        return PartitionImage(index, held, where, at, in_sync, leader, epoch, version, offline)

    def _assignment(self, sets: tuple[_Numbers, _Numbers, _Numbers, _Numbers]) -> Assignment:
        if not sets[0] or not all(map(are_numbers, sets)):
            raise ValueError("not the nodes of an assignment")
        made = self._assignments[sets] = Assignment(*sets)
        return made

    @staticmethod
    def _known(known: dict[Any, Any], values: Any, fit: bool) -> Any:
        if not fit:
            raise ValueError("not of the right type")
        return known.setdefault(values, values)

    @staticmethod
    def _offline(rows: Any) -> tuple[OfflineReplica, ...]:
        if type(rows) is not list:
            raise damaged("partitions", rows)
        for row in rows:
            if not (type(row) is list and len(row) in (2, 3) and is_number(row[0]) and are_texts(row[1:])):
                raise damaged("partitions", row)
        return tuple([OfflineReplica(*row) for row in rows])


def read_node(row: Any) -> NodeImage:
    """Return the node of a row. Raises ValueError."""
    if not (
        is_list(row, 7)
        and are_numbers((row[0], row[2], row[4]))
        and is_text(row[1])
        and is_text(row[3])
        and type(row[5]) is list
        and all(is_list(each, 3) and are_texts(each[:2]) and each[2] in (0, 1) for each in row[5])
        and row[6] in (0, 1)
        and (len(row) < 8 or is_text(row[7]))
    ):
        raise damaged("nodes", row)
    node, incarnation, epoch, host, port, directories, fenced, *more = row
    held = tuple([DirectoryRegistration(each[0], each[1], bool(each[2])) for each in directories])
    rack, unclean = more[0] if more else "", len(more) > 1 and bool(more[1])
    return NodeImage(node, incarnation, epoch, host, port, held, bool(fenced), rack, unclean)
