"""How commands travel: JSON objects, named by `do`, with compact rows where there may be thousands.

Reading is strict: what is malformed is a BadField with the path of the bad field. Of a request whose topics succeed or
fail by themselves only the topic is (`Malformed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from storage_node.model import commands, fields
from storage_node.model.commands import (
    ConfigChange,
    DirectoryFailed,
    EndedMove,
    FailDirectory,
    IsrChange,
    ListChange,
    Malformed,
    MorePartitions,
    NewTopic,
    Reassign,
    Registration,
    ReplicaDirectory,
    ReplicaReport,
)
from storage_node.model.evidence import evidence_row, read_evidence, read_signs, sign_rows
from storage_node.model.fields import BadField
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import DirectoryRegistration

_INT: Final = (1 << 31) - 1
_ANY: Final = (-(1 << 31), _INT)
#: Characters of an incarnation; the id of its lease's run has them.
LONGEST_INCARNATION: Final = 200
#: Characters of who requested a reassignment: histories keep it.
LONGEST_WHO: Final = 200
#: Characters of a reason, and of a file's path, at most: they stand in every image.
MAX_REASON: Final = 500
MAX_FILE: Final = 4096

Row = dict[str, Any]


def encode(command: commands.Command) -> Row:
    """Return the command as it travels."""
    name, write, _ = _CODECS[type(command)]
    return {"do": name, **write(command)}


def decode(row: Any) -> commands.Command:
    """Read a command. Raises BadField; where `do` names no command, its path is `$.do`."""
    row = fields.an_object(row, "$")
    name = row.get("do")
    read = _READERS.get(name) if isinstance(name, str) else None
    if read is None:
        raise BadField("$.do", f"is {name!r}, which is not the name of a command")
    return read(row)


def name_of(command: commands.Command) -> str:
    """Return the name by which a command travels."""
    return _CODECS[type(command)][0]


# --- topics


def _new_topic(row: Mapping[str, Any], path: str) -> NewTopic:
    name = row.get("name")
    configs = fields.an_object(row.get("configs") or {}, f"{path}.configs")
    rows = fields.a_list(row.get("assignment") or [], f"{path}.assignment")
    partitions = fields.a_number(row.get("partitions", -1), f"{path}.partitions", *_ANY)
    factor = fields.a_number(row.get("replication_factor", -1), f"{path}.replication_factor", *_ANY)
    assignment = _assignment(rows, f"{path}.assignment")
    # The rules of names and configs reject what is not text, with an error of their own.
    return NewTopic(name if isinstance(name, str) else "", partitions, factor, dict(configs), assignment)


def _more_partitions(row: Mapping[str, Any], path: str) -> MorePartitions:
    name = fields.a_string(fields.need(row, "name", path), f"{path}.name", empty=True)
    count = fields.a_number(fields.need(row, "count", path), f"{path}.count", *_ANY)
    rows, here = row.get("assignment"), f"{path}.assignment"
    return MorePartitions(name, count, None if rows is None else _assignment(fields.a_list(rows, here), here))


def _assignment(rows: Sequence[Any], path: str) -> tuple[tuple[int, ...], ...]:
    found = []
    for index, row in enumerate(rows):
        here = f"{path}[{index}]"
        found.append(tuple([fields.a_number(node, here, *_ANY) for node in fields.a_list(row, here)]))
    return tuple(found)


def _each_topic(row: Mapping[str, Any], read: Callable[[Mapping[str, Any], str], Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for place, each in enumerate(fields.a_list(fields.need(row, "topics", "$"), "$.topics")):
        path = f"$.topics[{place}]"
        try:
            found.append(read(fields.an_object(each, path), path))
        except BadField as bad:
            name = each.get("name") if isinstance(each, Mapping) else None
            found.append(Malformed(name if isinstance(name, str) else "", str(bad)))
    return tuple(found)


def _validate_only(row: Mapping[str, Any]) -> bool:
    return fields.a_flag(row.get("validate_only", False), "$.validate_only")


def _write_create_topics(command: commands.CreateTopics) -> Row:
    return {"topics": [_topic_row(each) for each in command.topics], "validate_only": command.validate_only}


def _topic_row(topic: NewTopic | Malformed) -> Row:
    """A topic; with an assignment the two counts follow from it."""
    if isinstance(topic, Malformed):
        return {"name": topic.name}
    row: Row = {"name": topic.name, "configs": dict(topic.configs)}
    if topic.assignment:
        return row | {"partitions": -1, "replication_factor": -1, "assignment": [list(one) for one in topic.assignment]}
    return row | {"partitions": topic.partitions, "replication_factor": topic.replication_factor}


def _read_create_topics(row: Mapping[str, Any]) -> commands.CreateTopics:
    return commands.CreateTopics(_each_topic(row, _new_topic), _validate_only(row))


def _write_create_partitions(command: commands.CreatePartitions) -> Row:
    return {"topics": [_more_row(each) for each in command.topics], "validate_only": command.validate_only}


def _more_row(topic: MorePartitions | Malformed) -> Row:
    if isinstance(topic, Malformed):
        return {"name": topic.name}
    rows = None if topic.assignment is None else [list(replicas) for replicas in topic.assignment]
    return {"name": topic.name, "count": topic.count, "assignment": rows}


def _read_create_partitions(row: Mapping[str, Any]) -> commands.CreatePartitions:
    return commands.CreatePartitions(_each_topic(row, _more_partitions), _validate_only(row))


def _write_delete_topics(command: commands.DeleteTopics) -> Row:
    return {"names": list(command.names)} | ({"ids": list(command.ids)} if command.ids else {})


def _read_delete_topics(row: Mapping[str, Any]) -> commands.DeleteTopics:
    names = fields.a_list(row.get("names") or [], "$.names")
    ids = fields.a_list(row.get("ids") or [], "$.ids")
    return commands.DeleteTopics(
        tuple([fields.a_string(each, f"$.names[{place}]", empty=True) for place, each in enumerate(names)]),
        tuple([fields.a_string(each, f"$.ids[{place}]") for place, each in enumerate(ids)]),
    )


# --- configs and producer ids


def _write_alter_configs(command: commands.AlterConfigs) -> Row:
    changes = {key: _change_row(change) for key, change in command.changes.items()}
    row: Row = {"kind": command.kind, "name": command.name, "changes": changes}
    return row | {"validate_only": True} if command.validate_only else row


def _change_row(change: ConfigChange) -> Any:
    if not isinstance(change, ListChange):
        return change
    parts = {"append": list(change.append), "subtract": list(change.subtract)}
    return {name: items for name, items in parts.items() if items}


def _read_alter_configs(row: Mapping[str, Any]) -> commands.AlterConfigs:
    kind = fields.a_string(fields.need(row, "kind", "$"), "$.kind")
    name = fields.a_string(fields.need(row, "name", "$"), "$.name", empty=kind == "broker")
    changes = fields.an_object(fields.need(row, "changes", "$"), "$.changes")
    only_check = _validate_only(row)
    found = {key: _read_change(change, f"$.changes.{key}") for key, change in changes.items()}
    return commands.AlterConfigs(kind, name, found, only_check)


def _read_change(change: Any, path: str) -> ConfigChange:
    """A value of the wrong type stays what it is: the rules of the config reject it."""
    if not isinstance(change, Mapping):
        value: ConfigChange = change
        return value
    fields.an_object(change, path, ("append", "subtract"))
    return ListChange(_items(change, "append", path), _items(change, "subtract", path))


def _items(change: Mapping[str, Any], name: str, path: str) -> tuple[str, ...]:
    items = fields.a_list(change.get(name) or [], f"{path}.{name}")
    return tuple([fields.a_string(item, f"{path}.{name}") for item in items])


def _read_next_producer_ids(row: Mapping[str, Any]) -> commands.NextProducerIds:
    return commands.NextProducerIds(fields.a_number(fields.need(row, "count", "$"), "$.count", 1, 1_000_000))


# --- replicas


def _replica_row(one: ReplicaDirectory) -> list[Any]:
    return [one.partition.topic, one.partition.partition, one.topic_id, one.directory_id, one.generation]


def _read_replica(row: Any, path: str) -> ReplicaDirectory:
    if isinstance(row, list) and len(row) == 5:  # as nodes send it, thousands at once
        topic, index, topic_id, directory, generation = row
        texts = isinstance(topic, str) and isinstance(topic_id, str) and isinstance(directory, str)
        if texts and topic and (topic + topic_id + directory).isascii() and fields.are_numbers((index, generation)):
            return ReplicaDirectory(TopicPartition(topic, index), topic_id, directory, generation)
    if len(fields.a_list(row, path)) != 5:
        raise BadField(path, "must have a topic, a partition, a topic id, a directory id and a generation")
    return ReplicaDirectory(
        TopicPartition(fields.a_string(row[0], f"{path}[0]"), fields.a_number(row[1], f"{path}[1]")),
        fields.a_string(row[2], f"{path}[2]", empty=True),
        fields.a_string(row[3], f"{path}[3]", empty=True),
        fields.a_number(row[4], f"{path}[4]"),
    )


def _report_row(one: ReplicaReport) -> list[Any]:
    tp = one.partition
    return [tp.topic, tp.partition, one.topic_id, one.directory_id, one.generation, one.reason, one.file]


def _read_report(row: Any, path: str) -> ReplicaReport:
    if len(fields.a_list(row, path)) != 7:
        raise BadField(
            path, "must have a topic, a partition, a topic id, a directory id, a generation, a reason and a file"
        )
    reason = fields.a_note(row[5], f"{path}[5]")
    file = fields.a_note(row[6], f"{path}[6]")
    held = _read_replica(list(row[:5]), path)
    where = held.partition, held.topic_id, held.directory_id, held.generation
    return ReplicaReport(*where, reason[:MAX_REASON], file[:MAX_FILE])


def _all_of(row: Mapping[str, Any], name: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    rows = fields.a_list(fields.need(row, name, "$"), f"$.{name}")
    return tuple([read(each, f"$.{name}[{place}]") for place, each in enumerate(rows)])


def _node(row: Mapping[str, Any]) -> int:
    return fields.a_number(fields.need(row, "node", "$"), "$.node")


def _write_replicas(command: commands.RaiseGenerations | commands.AssignDirectories) -> Row:
    return {"node": command.node, "replicas": [_replica_row(each) for each in command.replicas]}


def _read_raise_generations(row: Mapping[str, Any]) -> commands.RaiseGenerations:
    return commands.RaiseGenerations(_node(row), _all_of(row, "replicas", _read_replica))


def _read_assign_directories(row: Mapping[str, Any]) -> commands.AssignDirectories:
    return commands.AssignDirectories(_node(row), _all_of(row, "replicas", _read_replica))


def _write_report_replicas(command: commands.ReportReplicas) -> Row:
    rows = [_report_row(each) for each in command.replicas]
    return {"node": command.node, "epoch": command.epoch, "replicas": rows}


def _read_report_replicas(row: Mapping[str, Any]) -> commands.ReportReplicas:
    epoch = fields.a_number(fields.need(row, "epoch", "$"), "$.epoch")
    return commands.ReportReplicas(_node(row), epoch, _all_of(row, "replicas", _read_report))


# --- a failed directory


_FAILURE = (
    "node", "incarnation", "directory", "directory_id", "reason", "noticed", "replicas", "moves", "evidence", "signs",
)  # fmt: skip
_MOVE = ("topic", "partition", "source", "directory", "workflow_id", "run_id", "message")


def failure_row(command: FailDirectory) -> Row:
    """Return the parameter of DirectoryFailure: replicas grouped by topic, since a directory may hold thousands."""
    failure = command.failure
    topics: dict[tuple[str, str], list[list[int]]] = {}
    for row in failure.replicas:
        pairs = topics.setdefault((row.partition.topic, row.topic_id), [])
        pairs.append([row.partition.partition, row.generation])
    return {
        "node": command.node,
        "incarnation": failure.incarnation,
        "directory": failure.path,
        "directory_id": failure.directory_id,
        "reason": failure.reason,
        "noticed": round(failure.noticed, 3),
        "replicas": [[topic, topic_id, pairs] for (topic, topic_id), pairs in topics.items()],
        "moves": [move_row(move) for move in failure.moves],
        **({"evidence": evidence_row(failure.evidence)} if failure.evidence is not None else {}),
        **({"signs": sign_rows(failure.signs)} if failure.signs else {}),
    }


def read_failure(parameter: Any) -> FailDirectory:
    """Read the parameter of DirectoryFailure, strictly. Raises BadField."""
    row = fields.an_object(parameter, "$", _FAILURE)

    def text(name: str) -> str:
        return fields.a_string(fields.a_note(fields.need(row, name, "$"), f"$.{name}"), f"$.{name}")

    noticed = fields.need(row, "noticed", "$")
    if isinstance(noticed, bool) or not isinstance(noticed, int | float) or not 0 <= noticed < 1e11:
        raise BadField("$.noticed", "must be a time in seconds since the epoch")
    node = fields.a_number(fields.need(row, "node", "$"), "$.node", high=_INT)
    incarnation, path, directory_id, reason = map(text, ("incarnation", "directory", "directory_id", "reason"))
    replicas = _failed_replicas(row.get("replicas") or [], "$.replicas", directory_id)
    moves = fields.a_list(row.get("moves") or [], "$.moves")
    ended = tuple([_read_move(each, f"$.moves[{place}]") for place, each in enumerate(moves)])
    evidence, signs = read_evidence(row.get("evidence"), "$.evidence"), read_signs(row.get("signs"), "$.signs")
    return FailDirectory(
        node, DirectoryFailed(directory_id, path, reason, float(noticed), incarnation, replicas, ended, evidence, signs)
    )


def _failed_replicas(rows: Any, path: str, directory_id: str) -> tuple[ReplicaDirectory, ...]:
    found = []
    for place, row in enumerate(fields.a_list(rows, path)):
        here = f"{path}[{place}]"
        if len(fields.a_list(row, here)) != 3:
            raise BadField(here, "must have a topic, a topic id and a list of partitions with generations")
        topic, topic_id = fields.a_string(row[0], f"{here}[0]"), fields.a_string(row[1], f"{here}[1]")
        for number, pair in enumerate(fields.a_list(row[2], f"{here}[2]")):
            there = f"{here}[2][{number}]"
            if len(fields.a_list(pair, there)) != 2:
                raise BadField(there, "must have a partition and a generation")
            index = fields.a_number(pair[0], f"{there}[0]")
            generation = fields.a_number(pair[1], f"{there}[1]")
            found.append(ReplicaDirectory(TopicPartition(topic, index), topic_id, directory_id, generation))
    return tuple(found)


def move_row(move: EndedMove) -> Row:
    """Return an ended move as it stands in results and in the parameter of DirectoryFailure."""
    tp = move.partition
    values = tp.topic, tp.partition, move.source, move.directory, move.owner, move.run_id, move.message
    return dict(zip(_MOVE, values, strict=True))


def _read_move(each: Any, path: str) -> EndedMove:
    row = fields.an_object(each, path, _MOVE)
    topic = fields.a_string(fields.need(row, "topic", path), f"{path}.topic")
    index = fields.a_number(fields.need(row, "partition", path), f"{path}.partition")
    notes = [fields.a_note(row.get(name, ""), f"{path}.{name}") for name in _MOVE[2:]]
    return EndedMove(TopicPartition(topic, index), *notes)


def _read_fail_directory(row: Mapping[str, Any]) -> FailDirectory:
    return read_failure({name: row[name] for name in _FAILURE if name in row})


# --- partitions


def _isr_row(one: IsrChange) -> list[Any]:
    tp, members = one.partition, [list(member) for member in one.isr]
    return [tp.topic, tp.partition, one.topic_id, one.leader_epoch, one.partition_epoch, members]


def _read_isr(row: Any, path: str) -> IsrChange:
    if (sent := _as_sent(row)) is not None:
        return sent
    if len(fields.a_list(row, path)) != 6:
        raise BadField(path, "must have a topic, a partition, a topic id, two epochs and an ISR")
    members = []
    for place, member in enumerate(fields.a_list(row[5], f"{path}[5]")):
        here = f"{path}[5][{place}]"
        if len(fields.a_list(member, here)) != 2:
            raise BadField(here, "must have a node and a broker epoch")
        members.append((fields.a_number(member[0], here), fields.a_number(member[1], here, -1)))
    return IsrChange(
        TopicPartition(fields.a_string(row[0], f"{path}[0]"), fields.a_number(row[1], f"{path}[1]")),
        fields.a_string(row[2], f"{path}[2]", empty=True),
        fields.a_number(row[3], f"{path}[3]", -1),
        fields.a_number(row[4], f"{path}[4]", -1),
        tuple(members),
    )


def _as_sent(row: Any) -> IsrChange | None:
    """The row as nodes send it, thousands at once; None for a malformed row, whose error is found field by field."""
    if not isinstance(row, list) or len(row) != 6 or not isinstance(row[5], list):
        return None
    topic, index, topic_id, leader_epoch, partition_epoch, rows = row
    isr = [(each[0], each[1]) for each in rows if isinstance(each, list) and len(each) == 2]
    if len(isr) != len(rows) or not (isinstance(topic, str) and isinstance(topic_id, str) and topic):
        return None
    nodes, epochs = [node for node, _ in isr], [epoch for _, epoch in isr]
    if not fields.are_numbers([index, *nodes]) or not fields.are_numbers([leader_epoch, partition_epoch, *epochs], -1):
        return None
    return IsrChange(TopicPartition(topic, index), topic_id, leader_epoch, partition_epoch, tuple(isr))


def _write_alter_partitions(command: commands.AlterPartitions) -> Row:
    return {"node": command.node, "partitions": [_isr_row(each) for each in command.partitions]}


def _read_alter_partitions(row: Mapping[str, Any]) -> commands.AlterPartitions:
    return commands.AlterPartitions(_node(row), _all_of(row, "partitions", _read_isr))


_WHO = ("client", "principal")


def _write_alter_reassignments(command: commands.AlterReassignments) -> Row:
    rows = [
        [one.partition.topic, one.partition.partition, None if one.replicas is None else list(one.replicas)]
        for one in command.partitions
    ]
    row: Row = {"partitions": rows, "may_change_factor": command.may_change_factor}
    return row | {name: value for name in _WHO if (value := getattr(command, name))}


def _read_alter_reassignments(row: Mapping[str, Any]) -> commands.AlterReassignments:
    rows = fields.a_list(fields.need(row, "partitions", "$"), "$.partitions")
    may_change = fields.a_flag(row.get("may_change_factor", True), "$.may_change_factor")
    who = [fields.a_string(row.get(name) or "", f"$.{name}", empty=True)[:LONGEST_WHO] for name in _WHO]
    wanted = tuple([_read_reassign(each, f"$.partitions[{place}]") for place, each in enumerate(rows)])
    return commands.AlterReassignments(wanted, may_change, *who)


def _read_reassign(row: Any, path: str) -> Reassign:
    if len(fields.a_list(row, path)) != 3:
        raise BadField(path, "must have a topic, a partition, and nodes or null")
    nodes = None
    if row[2] is not None:
        nodes = tuple([fields.a_number(each, f"{path}[2]", *_ANY) for each in fields.a_list(row[2], f"{path}[2]")])
    return Reassign(_partition(row, path), nodes)


def _partition(row: Any, path: str) -> TopicPartition:
    """A partition that may not exist: any name, any number."""
    topic = fields.a_string(row[0], f"{path}[0]", empty=True)
    return TopicPartition(topic, fields.a_number(row[1], f"{path}[1]", *_ANY))


def _write_elect_leaders(command: commands.ElectLeaders) -> Row:
    return {"partitions": [[tp.topic, tp.partition] for tp in command.partitions], "unclean": command.unclean}


def _read_elect_leaders(row: Mapping[str, Any]) -> commands.ElectLeaders:
    def read(each: Any, path: str) -> TopicPartition:
        if len(fields.a_list(each, path)) != 2:
            raise BadField(path, "must have a topic and a partition")
        return _partition(each, path)

    unclean = fields.a_flag(row.get("unclean", False), "$.unclean")
    return commands.ElectLeaders(_all_of(row, "partitions", read), unclean)


# --- nodes


def _write_registration(one: Registration) -> Row:
    """The image is large, and stays in the run's history: the node sends it only when the controller requests it."""
    return {
        "node": one.node,
        "incarnation": one.incarnation,
        "host": one.host,
        "port": one.port,
        "rack": one.rack,
        # One that could not be read at the start has no id: what it holds is as offline as if it were named.
        "directories": [[each.id, each.path, int(each.online)] for each in one.directories if each.id],
        "generation": one.known_cluster_generation,
        "version": one.known_version,
        "image": one.image,
        **({"cluster": one.cluster} if one.cluster else {}),
        "lost": [_replica_row(each) for each in one.in_offline_directories],
        **({"offline": [_report_row(each) for each in one.offline]} if one.offline else {}),
        **({"unclean": True} if one.unclean else {}),
        **({"assigned": [_replica_row(each) for each in one.assigned]} if one.assigned else {}),
    }


def _read_registration(row: Mapping[str, Any]) -> Registration:
    node = fields.a_number(fields.need(row, "node", "$"), "$.node", high=_INT)
    incarnation = fields.a_string(fields.need(row, "incarnation", "$"), "$.incarnation")
    if len(incarnation) > LONGEST_INCARNATION:
        raise BadField("$.incarnation", f"is longer than {LONGEST_INCARNATION} characters")
    host = fields.a_string(fields.need(row, "host", "$"), "$.host")
    port = fields.a_number(fields.need(row, "port", "$"), "$.port", 0, 65_535)
    directories = _directories(fields.need(row, "directories", "$"), "$.directories")

    def some(name: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
        return _all_of({name: row.get(name) or []}, name, read)

    return Registration(
        node,
        incarnation,
        host,
        port,
        directories,
        fields.a_number(row.get("generation", 0), "$.generation"),
        fields.a_number(row.get("version", 0), "$.version"),
        fields.a_string(row.get("image") or "", "$.image", empty=True),
        some("lost", _read_replica),
        some("offline", _read_report),
        fields.a_string(row.get("rack") or "", "$.rack", empty=True),
        fields.a_flag(row.get("unclean", False), "$.unclean"),
        fields.a_note(row.get("cluster") or "", "$.cluster"),
        some("assigned", _read_replica),
    )


def _directories(rows: Any, path: str) -> tuple[DirectoryRegistration, ...]:
    found: list[DirectoryRegistration] = []
    for place, row in enumerate(fields.a_list(rows, path)):
        here = f"{path}[{place}]"
        if len(fields.a_list(row, here)) != 3:
            raise BadField(here, "must have an id, a path and whether it is online")
        directory_id = fields.a_string(row[0], f"{here}[0]")
        where = fields.a_note(row[1], f"{here}[1]")
        found.append(DirectoryRegistration(directory_id, where, fields.a_flag(row[2], f"{here}[2]")))
    if len({each.id for each in found}) != len(found):
        raise BadField(path, "names a directory id twice")
    return tuple(found)


def _read_lease_ended(row: Mapping[str, Any]) -> commands.LeaseEnded:
    return commands.LeaseEnded(_node(row), fields.a_string(fields.need(row, "incarnation", "$"), "$.incarnation"))


_CODECS: Mapping[type, tuple[str, Callable[[Any], Row], Callable[[Mapping[str, Any]], commands.Command]]] = {
    commands.CreateTopics: ("create_topics", _write_create_topics, _read_create_topics),
    commands.DeleteTopics: ("delete_topics", _write_delete_topics, _read_delete_topics),
    commands.CreatePartitions: ("create_partitions", _write_create_partitions, _read_create_partitions),
    commands.AlterConfigs: ("alter_configs", _write_alter_configs, _read_alter_configs),
    commands.NextProducerIds: ("next_producer_ids", lambda one: {"count": one.count}, _read_next_producer_ids),
    commands.RaiseGenerations: ("raise_generations", _write_replicas, _read_raise_generations),
    commands.AssignDirectories: ("assign_directories", _write_replicas, _read_assign_directories),
    commands.FailDirectory: ("directory_failed", failure_row, _read_fail_directory),
    commands.ReportReplicas: ("report_replicas", _write_report_replicas, _read_report_replicas),
    commands.AlterPartitions: ("alter_partitions", _write_alter_partitions, _read_alter_partitions),
    commands.AlterReassignments: ("alter_reassignments", _write_alter_reassignments, _read_alter_reassignments),
    commands.ElectLeaders: ("elect_leaders", _write_elect_leaders, _read_elect_leaders),
    commands.Registration: ("register", _write_registration, _read_registration),
    commands.LeaseEnded: (
        "lease_ended",
        lambda one: {"node": one.node, "incarnation": one.incarnation},
        _read_lease_ended,
    ),
    commands.QueryVersion: ("tell_version", lambda _: {}, lambda _: commands.QueryVersion()),
}
#: The names of all commands.
NAMES = frozenset(name for name, _, _ in _CODECS.values())
_READERS: Mapping[str, Callable[[Mapping[str, Any]], commands.Command]] = {
    name: read for name, _, read in _CODECS.values()
}
