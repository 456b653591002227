"""Commands travel as JSON and come back as the same values; what is malformed is refused with the path of the field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model import commands
from storage_node.model.command_rows import NAMES, decode, encode, name_of
from storage_node.model.commands import (
    AlterConfigs,
    AlterPartitions,
    AlterReassignments,
    AssignDirectories,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DirectoryFailed,
    ElectLeaders,
    EndedMove,
    FailDirectory,
    IsrChange,
    LeaseEnded,
    ListChange,
    Malformed,
    MorePartitions,
    NewTopic,
    NextProducerIds,
    QueryVersion,
    RaiseGenerations,
    Reassign,
    Registration,
    ReplicaDirectory,
    ReplicaReport,
    ReportReplicas,
)
from storage_node.model.evidence import Sign
from storage_node.model.fields import BadField
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import DirectoryRegistration

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
WORD = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
NUMBER = st.integers(0, (1 << 31) - 1)
COUNT = st.integers(-(1 << 31), (1 << 31) - 1)
NODES = st.lists(NUMBER, max_size=3).map(tuple)
PARTITION = st.builds(TopicPartition, WORD, NUMBER)
ANY_PARTITION = st.builds(TopicPartition, TEXT, COUNT)
REPLICA = st.builds(ReplicaDirectory, PARTITION, TEXT, TEXT, NUMBER)
REPORT = st.builds(ReplicaReport, PARTITION, TEXT, TEXT, NUMBER, TEXT, TEXT)
ISR = st.lists(st.tuples(NUMBER, st.integers(-1, 9)), max_size=3).map(tuple)
CHANGE = TEXT | st.none() | st.builds(ListChange, st.lists(WORD).map(tuple), st.lists(WORD).map(tuple))


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3).map(tuple)


def directories() -> st.SearchStrategy[Any]:
    rows = st.builds(DirectoryRegistration, WORD, TEXT, st.booleans())
    return st.lists(rows, max_size=3, unique_by=lambda each: each.id).map(tuple)


TOPIC = st.builds(NewTopic, TEXT, COUNT, COUNT, st.dictionaries(TEXT, TEXT, max_size=2))
ASSIGNED = st.builds(NewTopic, TEXT, st.just(-1), st.just(-1), assignment=st.lists(NODES, min_size=1).map(tuple))
MOVE = st.builds(EndedMove, PARTITION, TEXT, TEXT, TEXT, TEXT, TEXT)
FAILURE = st.builds(
    lambda id_, path, reason, noticed, start, replicas, *moves_and_signs: DirectoryFailed(
        id_, path, reason, round(noticed, 3), start, tuple(replace(each, directory_id=id_) for each in replicas),
        moves_and_signs[0], signs=moves_and_signs[1],
    ),
    WORD, WORD, WORD, st.floats(0, 1e10), WORD,
    st.lists(st.builds(ReplicaDirectory, st.builds(TopicPartition, st.just("t"), NUMBER), st.just("id"), TEXT, NUMBER)),
    some(MOVE), some(st.builds(Sign, WORD, st.floats(0, 1e10))),
)  # fmt: skip
COMMANDS: dict[type, st.SearchStrategy[Any]] = {
    CreateTopics: st.builds(CreateTopics, some(TOPIC | ASSIGNED), st.booleans()),
    DeleteTopics: st.builds(DeleteTopics, some(TEXT), some(WORD)),
    CreatePartitions: st.builds(
        CreatePartitions, some(st.builds(MorePartitions, TEXT, COUNT, st.none() | some(NODES))), st.booleans()
    ),
    AlterConfigs: st.builds(
        AlterConfigs, st.just("broker"), TEXT, st.dictionaries(TEXT, CHANGE, max_size=3), st.booleans()
    ),
    NextProducerIds: st.builds(NextProducerIds, st.integers(1, 1_000_000)),
    RaiseGenerations: st.builds(RaiseGenerations, NUMBER, some(REPLICA)),
    AssignDirectories: st.builds(AssignDirectories, NUMBER, some(REPLICA)),
    FailDirectory: st.builds(FailDirectory, NUMBER, FAILURE),
    ReportReplicas: st.builds(ReportReplicas, NUMBER, NUMBER, some(REPORT)),
    AlterPartitions: st.builds(
        AlterPartitions,
        NUMBER,
        some(st.builds(IsrChange, PARTITION, TEXT, st.integers(-1, 9), st.integers(-1, 9), ISR)),
    ),
    AlterReassignments: st.builds(
        AlterReassignments, some(st.builds(Reassign, ANY_PARTITION, st.none() | NODES)), st.booleans(), TEXT, TEXT
    ),
    ElectLeaders: st.builds(ElectLeaders, some(ANY_PARTITION), st.booleans()),
    Registration: st.builds(
        Registration, NUMBER, WORD, WORD, st.integers(0, 65_535), directories(), NUMBER, NUMBER, TEXT, some(REPLICA),
        some(REPORT), TEXT, st.booleans(), TEXT,
    ),
    LeaseEnded: st.builds(LeaseEnded, NUMBER, WORD),
    QueryVersion: st.just(QueryVersion()),
}  # fmt: skip


def test_every_command_has_a_row() -> None:
    assert set(COMMANDS) == set(get_args(Command)) and len(NAMES) == len(COMMANDS)


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_what_was_encoded_is_decoded(kind: type, data: st.DataObject) -> None:
    command = data.draw(COMMANDS[kind])
    row = json.loads(json.dumps(encode(command)))
    assert row["do"] == name_of(command)
    assert decode(row) == command


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_anything_is_a_command_or_a_bad_field(data: st.DataObject) -> None:
    command = data.draw(st.sampled_from(sorted(COMMANDS, key=lambda kind: kind.__name__)).flatmap(COMMANDS.__getitem__))
    row = encode(command)
    name = data.draw(st.sampled_from(sorted(row)))
    junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text(), max_size=2)
    row[name] = data.draw(junk | st.dictionaries(st.text(), junk, max_size=2) | st.lists(st.lists(junk), max_size=2))
    try:
        found = decode(row)
    except BadField as bad:
        assert bad.path.startswith("$.")
    else:
        assert type(found) in COMMANDS


def test_topic_that_cannot_be_read_fails_alone() -> None:
    good = {"name": "good", "partitions": 3, "replication_factor": 2}
    rows: list[Any] = [good, {"name": "bad", "partitions": "3"}, 5, {"partitions": 1}]
    found = decode({"do": "create_topics", "topics": rows})
    assert found == CreateTopics(
        (
            NewTopic("good", 3, 2),
            Malformed("bad", "$.topics[1].partitions must be a whole number, not a string"),
            Malformed("", "$.topics[2] must be an object, not a number"),
            NewTopic("", 1, -1),
        )
    )


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"do": "nothing"}, "$.do"),
        ({}, "$.do"),
        ({"do": ["tell_version"]}, "$.do"),
        ({"do": "raise_generations", "node": 1, "replicas": [["t", 0, "", "d", "1"]]}, "$.replicas[0][4]"),
        ({"do": "alter_partitions", "node": 1, "partitions": [["t", 0, "", 1, 1, [[1]]]]}, "$.partitions[0][5][0]"),
        ({"do": "report_replicas", "node": 1, "replicas": []}, "$.epoch"),
        ({"do": "elect_leaders", "partitions": [["t"]]}, "$.partitions[0]"),
        ({"do": "alter_configs", "kind": "topic", "name": "t", "changes": {"k": {"add": []}}}, "$.changes.k.add"),
        ({"do": "lease_ended", "node": 1}, "$.incarnation"),
        ({"do": "next_producer_ids", "count": 0}, "$.count"),
    ],
)
def test_what_is_malformed_is_refused_with_its_path(row: dict[str, Any], path: str) -> None:
    with pytest.raises(BadField) as bad:
        decode(row)
    assert bad.value.path == path


def test_directory_without_an_id_is_not_named() -> None:
    one = Registration(1, "i", "h", 9, (DirectoryRegistration("", "/a", False), DirectoryRegistration("d", "/b")))
    assert encode(one)["directories"] == [["d", "/b", 1]]
    assert commands.Registration(1, "i", "h", 9, (DirectoryRegistration("d", "/b"),)) == decode(encode(one))
