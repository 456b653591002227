"""Names of replicas' directories inside a log directory, and the rules for topic names.

`<topic>-<partition>` is the replica that serves, `<topic>-<partition>.move` its moving copy (KIP-113), and
`<topic>-<partition>.<32 lowercase hex>.delete` one that awaits deletion; a bare `.delete` is parsed too. Apache Kafka's
own `-future` and `-delete` are recognised but not used: they are reported and left alone.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final, Literal

from storage_node.errors import InvalidTopic
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition

__all__ = [
    "CLUSTER_METADATA",
    "NAME_MAX",
    "Kind",
    "ReplicaName",
    "delete_name",
    "is_valid_topic",
    "movable",
    "move_name",
    "new_delete_id",
    "parse",
    "replica_name",
    "validate_topic",
]

CLUSTER_METADATA: Final = "__cluster_metadata-0"  # Apache Kafka's metadata log, which is not a replica of this node
NAME_MAX: Final = 255  # bytes, the limit of a file name on Linux
TOPIC_MAX: Final = 249  # characters, Kafka's limit

Kind = Literal["current", "move", "delete", "stray", "other"]

_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_MAX}}}")
_REPLICA = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})", re.DOTALL)
_ID = re.compile(r"[0-9a-f]{32}")
_WITH_ID = re.compile(r"(.*)\.([0-9a-f]{32})", re.DOTALL)

_MOVE: Final = ".move"
_DELETE: Final = ".delete"
_KAFKA_SUFFIXES: Final = ("-future", "-delete", "-stray")
# Topic names cannot contain this character: a name that does was shortened, and its topic is unknown.
_CUT: Final = "~"


@dataclass(frozen=True, slots=True)
class ReplicaName:
    """The meaning of a directory's name.

    `tp` is None if the name does not have it (a shortened `.delete`, whose marker holds the full name, and foreign
    names); `id` is the 32 hexadecimal characters, "" if there are none. "stray" is Kafka's `-stray`; "other" is any
    name that is not that of a replica of this node.
    """

    tp: TopicPartition | None
    kind: Kind
    id: str = ""


def replica_name(tp: TopicPartition) -> str:
    """Return the directory name of a replica that serves: `<topic>-<partition>`."""
    return f"{tp.topic}-{tp.partition}"


def move_name(tp: TopicPartition) -> str:
    """Return the directory name of a moving copy, `<topic>-<partition>.move`; `movable` checks its length."""
    return f"{tp.topic}-{tp.partition}{_MOVE}"


def new_delete_id() -> str:
    """Return a new id for `delete_name`: a topic may be deleted again while an earlier deletion is pending."""
    return uuid.uuid4().hex


def delete_name(tp: TopicPartition, hex32: str) -> str:
    """Return the directory name of a replica that awaits deletion; a long topic name is shortened.

    Raises ValueError if `hex32` is not 32 lowercase hexadecimal characters.
    """
    if not _ID.fullmatch(hex32):
        raise ValueError(f"not 32 lowercase hexadecimal characters: {hex32!r}")
    full = f"{tp.topic}-{tp.partition}.{hex32}{_DELETE}"
    if len(full) <= NAME_MAX:
        return full
    suffix = f"{_CUT}-{tp.partition}.{hex32}{_DELETE}"
    return tp.topic[: NAME_MAX - len(suffix)] + suffix


def movable(tp: TopicPartition) -> None:
    """Raise InvalidTopic if the name of the moving copy would exceed the limit of a file name."""
    longest = NAME_MAX - len(f"-{tp.partition}{_MOVE}")
    if len(tp.topic) > longest:
        raise InvalidTopic(
            f"The topic name of {tp} is too long to be moved between log directories: it has {len(tp.topic)} "
            f"characters, and for this partition at most {longest} are possible."
        )


def is_valid_topic(name: str) -> bool:
    """Return whether a topic may have this name, without building the message of `validate_topic`."""
    return len(name) <= TOPIC_MAX and name not in (".", "..") and _TOPIC.fullmatch(name) is not None


def validate_topic(name: str) -> None:
    """Check a topic name as Kafka does, with Kafka's messages: 1 to 249 of `a-zA-Z0-9._-`, not `.` or `..`.

    Raises InvalidTopic; `__cluster_metadata` is rejected with INVALID_REQUEST, as by Kafka's controller.
    """
    if not name:
        raise InvalidTopic("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopic(f"Topic name is invalid: '{name}' is not allowed")
    if f"{name}-0" == CLUSTER_METADATA:
        raise InvalidTopic(f"Creation of internal topic {name} is prohibited.", ErrorCode.INVALID_REQUEST)
    if len(name) > TOPIC_MAX:
        raise InvalidTopic(
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {TOPIC_MAX}"
        )
    if not _TOPIC.fullmatch(name):
        raise InvalidTopic(
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )


def parse(name: str) -> ReplicaName:
    """Return the meaning of a directory's name; never raises: an unknown name is of kind "other"."""
    if name.endswith(_MOVE):
        tp = _replica(name.removesuffix(_MOVE))
        return ReplicaName(tp, "move") if tp else _OTHER
    if name.endswith(_DELETE):
        return _parse_delete(name.removesuffix(_DELETE))
    for suffix in _KAFKA_SUFFIXES:
        matched = _WITH_ID.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if matched:
            # Kafka shortens the topic without a mark, so a name of full length does not determine the topic.
            tp = _replica(matched[1]) if len(name) < NAME_MAX else None
            return ReplicaName(tp, "stray" if suffix == "-stray" else "other", matched[2])
    tp = _replica(name)
    return ReplicaName(tp, "current") if tp else _OTHER


_OTHER: Final = ReplicaName(None, "other")


def _parse_delete(rest: str) -> ReplicaName:
    matched = _WITH_ID.fullmatch(rest)
    if matched is None:
        tp = _replica(rest)
        return ReplicaName(tp, "delete") if tp else _OTHER
    before, id = matched[1], matched[2]
    tp = _replica(before)
    if tp is not None:
        return ReplicaName(tp, "delete", id)
    cut, mark, partition = before.rpartition(f"{_CUT}-")
    if mark and _TOPIC.fullmatch(cut) and _partition(partition) is not None:
        return ReplicaName(None, "delete", id)
    return _OTHER


def _replica(text: str) -> TopicPartition | None:
    matched = _REPLICA.fullmatch(text)
    if matched is None or not _TOPIC.fullmatch(matched[1]) or matched[1] in (".", ".."):
        return None
    partition = _partition(matched[2])
    return None if partition is None else TopicPartition(matched[1], partition)


def _partition(text: str) -> int | None:
    # Only the spelling that `replica_name` writes; otherwise two directories could name the same replica.
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", text):
        return None
    value = int(text)
    return value if value < 2**31 else None
