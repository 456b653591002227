"""Names of replicas' directories (KIP-113) and Kafka's rules for topic names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.directories import names
from storage_node.directories.names import ReplicaName
from storage_node.errors import InvalidTopic
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition

HEX = "0123456789abcdef" * 2
LONG = "t" * 249

topics = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))
partitions = st.integers(0, 2**31 - 1)
tps = st.builds(TopicPartition, topics, partitions)


@pytest.mark.conformance(67)
@given(tps)
def test_every_name_is_read_back(tp: TopicPartition) -> None:
    assert names.parse(names.replica_name(tp)) == ReplicaName(tp, "current")
    assert names.parse(names.move_name(tp)) == ReplicaName(tp, "move")


@pytest.mark.conformance(68, 71)
@given(tps, st.uuids())
def test_deleting_is_always_possible_and_read_back(tp: TopicPartition, uuid: object) -> None:
    id = str(uuid).replace("-", "")
    name = names.delete_name(tp, id)
    full = f"{tp}.{id}.delete"
    assert len(name.encode()) <= 255
    # A shortened name never parses as another topic's: the marker inside holds the full one.
    assert names.parse(name) == ReplicaName(tp if len(full) <= 255 else None, "delete", id)
    assert name == full or len(full) > 255


@given(tps, tps)
def test_different_replicas_never_share_a_name(one: TopicPartition, other: TopicPartition) -> None:
    assert (names.replica_name(one) == names.replica_name(other)) == (one == other)


@given(st.text(max_size=300))
def test_parsing_never_raises_and_means_one_spelling(name: str) -> None:
    parsed = names.parse(name)
    if parsed.kind == "current":
        assert parsed.tp is not None and names.replica_name(parsed.tp) == name


@pytest.mark.conformance(67, 68)
@pytest.mark.feature("113-02")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t-0", ReplicaName(TopicPartition("t", 0), "current")),
        ("my.topic-with-dashes-12", ReplicaName(TopicPartition("my.topic-with-dashes", 12), "current")),
        ("a.move-0", ReplicaName(TopicPartition("a.move", 0), "current")),
        ("a.delete-3.move", ReplicaName(TopicPartition("a.delete", 3), "move")),
        ("t-0.move", ReplicaName(TopicPartition("t", 0), "move")),
        ("t-0.delete", ReplicaName(TopicPartition("t", 0), "delete")),
        (f"a.b-0.{HEX}.delete", ReplicaName(TopicPartition("a.b", 0), "delete", HEX)),
        (f"a.b-7.{HEX}-stray", ReplicaName(TopicPartition("a.b", 7), "stray", HEX)),
        (f"a.b-7.{HEX}-future", ReplicaName(TopicPartition("a.b", 7), "other", HEX)),
        (f"a.b-7.{HEX}-delete", ReplicaName(TopicPartition("a.b", 7), "other", HEX)),
        ("t-2147483647", ReplicaName(TopicPartition("t", 2147483647), "current")),
    ],
)
def test_forms_a_start_reads(name: str, expected: ReplicaName) -> None:
    assert names.parse(name) == expected


@pytest.mark.conformance(69)
@pytest.mark.parametrize(
    "name",
    [
        "",
        "t",
        "-0",
        "t-",
        "t-x",
        "t-00",
        "t-+1",
        "t-2147483648",
        "t-٣",
        "..-0",
        "t t-0",
        "t-0.moved",
        ".move",
        "t.move",
        "t.delete",
        f"t.{HEX}.delete",
        f"t-0.{HEX.upper()}.delete",
        f"t-0.{HEX[:31]}.delete",
        f"~-0.{HEX}.delete",
        f"-0.{HEX}.delete",
        "t-0\n",
        "lost+found",
        LONG + "t-0",
    ],
)
def test_other_names_are_of_kind_other(name: str) -> None:
    assert names.parse(name) == ReplicaName(None, "other")


def test_topic_with_the_longest_name_can_be_deleted_but_not_moved() -> None:
    tp = TopicPartition(LONG, 0)
    assert len(names.replica_name(tp)) == 251
    assert len(names.delete_name(tp, HEX)) == 255
    with pytest.raises(InvalidTopic, match="too long to be moved"):
        names.movable(tp)


@given(tps)
def test_movable_is_exactly_what_a_file_name_holds(tp: TopicPartition) -> None:
    if len(names.move_name(tp)) <= 255:
        names.movable(tp)
    else:
        with pytest.raises(InvalidTopic) as refused:
            names.movable(tp)
        assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_delete_ids_are_new_and_well_formed() -> None:
    ids = {names.new_delete_id() for _ in range(100)}
    assert len(ids) == 100
    for id in ids:
        names.delete_name(TopicPartition("t", 0), id)
    with pytest.raises(ValueError):
        names.delete_name(TopicPartition("t", 0), HEX.upper())


@pytest.mark.parametrize("name", ["a", LONG, "A.b_c-9", "...", "-"])
def test_allowed_topics(name: str) -> None:
    names.validate_topic(name)


@pytest.mark.parametrize("name", ["", ".", "..", LONG + "t", "a b", "a/b", "ä", "a\n", "a~"])
def test_invalid_topic_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidTopic) as refused:
        names.validate_topic(name)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_kafkas_own_log_is_not_a_topic_for_users() -> None:
    with pytest.raises(InvalidTopic) as refused:
        names.validate_topic("__cluster_metadata")
    assert refused.value.code == ErrorCode.INVALID_REQUEST
