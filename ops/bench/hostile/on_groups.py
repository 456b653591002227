"""Attacks by consumer groups and by the private API."""

from __future__ import annotations

import itertools
import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from ops.bench.hostile.attack import Attack, allowed
from ops.bench.hostile.field import ATTACKED, CLOSED, NONE, SILENT, Field, Line, errors, frame
from ops.bench.hostile.on_records import UNKNOWN
from storage_node.wire.table import PRIVATE

LONG_ID = 8 << 20
LONGEST_ID = 32_767
KEPT, DROPPED = "offsets kept", "offsets dropped"
#: Kafka's group.min.session.timeout.ms and group.max.session.timeout.ms.
SHORT, LONG = timedelta(seconds=6), timedelta(minutes=30)


def commit(group: str, topic: str = ATTACKED) -> Mapping[str, Any]:
    """Return the values of an OffsetCommit without a member."""
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": topic, "partitions": [row]}]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}


def join(group: str, member: str = "", session: timedelta = LONG, metadata: bytes = b"") -> Mapping[str, Any]:
    """Return the values of a JoinGroup."""
    return {
        "group_id": group,
        "session_timeout": session,
        "rebalance_timeout": session,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }


def _made_up() -> str:
    return f"made-up-{uuid.uuid4()}"


def _long_ids(field: Field) -> None:
    ids = itertools.count()

    def work(line: Line) -> None:
        number = next(ids)
        group = f"{number:010d}".ljust(LONG_ID, "g")
        match number % 3:
            case 0:
                response = line.ask(8, 8, **commit(group))
            case 1:
                response = line.ask(10, 3, key=group)
            case _:
                response = line.ask(11, 6, **join(group))
        field.note(*errors(response))

    field.crowd(2, work)


def _longest_ids(field: Field) -> None:
    ids = itertools.count()
    most = field.size(1_000)

    def name(number: int) -> str:
        return f"{number:010d}".ljust(LONGEST_ID, "g")

    field.crowd(2, field.asker(8, 8, lambda: commit(name(next(ids) % most))))
    _delete(field, [name(number) for number in range(most)], 20)


def _commits(field: Field) -> None:
    ids = itertools.count()
    most = field.size(20_000)
    field.crowd(4, field.asker(8, 8, lambda: commit(f"committed-{next(ids) % most}")))
    _delete(field, [f"committed-{number}" for number in range(most)], 500)


def _delete(field: Field, groups: Sequence[str], at_once: int) -> None:
    """Delete the groups, so that `group.state.max.bytes` has room for the groups of other attacks."""
    line = field.connect()
    for start in range(0, len(groups), at_once):
        line.ask(42, 2, groups_names=groups[start : start + at_once])
    line.reset()


def _commits_to_unknown(field: Field) -> None:
    field.crowd(4, field.asker(8, 8, lambda: commit(_made_up(), "nowhere")))


def _joins(field: Field) -> None:
    field.crowd(4, field.asker(11, 6, lambda: join(_made_up())))


def _joins_of_one(field: Field) -> None:
    field.crowd(4, field.asker(11, 6, lambda: join("besieged", session=SHORT)))


def _never_sync(field: Field, metadata: bytes, count: int) -> None:
    """Let members join with an id, and neither read the response nor send SyncGroup."""

    def enter(line: Line) -> None:
        group = _made_up()
        first = line.ask(11, 6, **join(group, session=SHORT))
        field.note(*errors(first))
        line.socket.sendall(frame(11, 6, join(group, first.member_id, SHORT, metadata)))

    with field.many(count) as lines:
        for line in lines:
            if field.over:
                break
            try:
                enter(line)
            except OSError:
                field.note(SILENT)
        field.rest()


def _strange_members(field: Field) -> None:
    def work(line: Line) -> None:
        member = {"group_id": _made_up(), "generation_id": 1, "member_id": "made-up"}
        field.note(*errors(line.ask(14, 4, **member, assignments=[])))
        field.note(*errors(line.ask(12, 4, **member)))

    field.crowd(4, work)


def _listed(field: Field) -> None:
    field.crowd(4, field.asker(16, 4, dict))


def _described(field: Field) -> None:
    data = frame(15, 5, {"groups": [_made_up() for _ in range(field.size(10_000))]})
    field.crowd(2, field.sender(15, 5, data, 1))


def _deleted(field: Field) -> None:
    field.crowd(4, field.asker(42, 2, lambda: {"groups_names": [_made_up() for _ in range(50)]}))


def private(op: str, **fields: object) -> bytes:
    """Return a request of the private API as a frame."""
    return _private(json.dumps({"op": op, **fields}).encode())


def _private(body: bytes) -> bytes:
    head = struct.pack(">hhih", PRIVATE.key, 0, 1, 7) + b"hostile"
    return struct.pack(">i", len(head) + len(body)) + head + body


def _private_garbage(field: Field) -> None:
    rows = itertools.cycle([b"", b"[" * 60_000, b"{" * 1000, b'"a"', b"\xff" * 100, b"[" + b"1," * 100_000])

    def work(line: Line) -> None:
        line.socket.sendall(_private(next(rows)))
        line.skip()
        field.note(NONE)

    field.crowd(4, work)


def _taken(field: Field) -> None:
    """Send `groups-taken` without a token; the node must keep the groups' offsets."""
    groups = [f"handed-over-{number}" for number in range(20)]

    def work(line: Line) -> None:
        for group in groups:
            line.ask(8, 8, **commit(group))
        line.socket.sendall(private("groups-taken", groups=groups))
        line.skip()
        for group in groups:
            (topic,) = line.ask(9, 7, group_id=group, topics=[{"name": ATTACKED, "partition_indexes": [0]}]).topics
            field.note(KEPT if topic.partitions[0].committed_offset == 1 else DROPPED)

    field.crowd(2, work)


#: Outcomes of commits to more groups than `group.state.max.bytes` allows.
FULL = allowed(NONE, "INVALID_COMMIT_OFFSET_SIZE")
#: Outcomes of joins of more members than it allows.
JOINS = allowed("MEMBER_ID_REQUIRED", "GROUP_MAX_SIZE_REACHED")

GROUPS = (
    Attack("group ids of 8 MiB", "OffsetCommit, JoinGroup and FindCoordinator", _long_ids, allowed(CLOSED)),
    Attack("longest group ids", "commits of groups whose ids have 32,767 characters", _longest_ids, FULL),
    Attack("made-up groups", "commits of 20,000 groups", _commits, FULL),
    Attack("commits to nowhere", "commits for a topic that does not exist", _commits_to_unknown, allowed(UNKNOWN)),
    Attack("join flood", "joins of made-up groups, never completed", _joins, JOINS),
    Attack("join flood of one", "joins of one group, never completed", _joins_of_one, JOINS),
    Attack(
        "members never sync",
        "members of 500 groups join and send no SyncGroup",
        lambda f: _never_sync(f, b"", f.size(500)),
        JOINS | allowed("left open", CLOSED),
    ),
    Attack(
        "large members",
        "members join with 8 MiB of metadata and send no SyncGroup",
        lambda f: _never_sync(f, bytes(8 << 20), f.size(40)),
        JOINS | allowed("left open", CLOSED),
    ),
    Attack(
        "strange members",
        "SyncGroup and Heartbeat of unknown members",
        _strange_members,
        allowed("UNKNOWN_MEMBER_ID"),
    ),
    Attack("groups listed", "ListGroups after the attacks above", _listed, allowed(NONE)),
    Attack(
        "groups described", "DescribeGroups of 10,000 made-up groups", _described, allowed(NONE, "GROUP_ID_NOT_FOUND")
    ),
    Attack("groups deleted", "DeleteGroups of made-up groups", _deleted, allowed("GROUP_ID_NOT_FOUND")),
    Attack(
        "private garbage", "requests of the private API that are not JSON objects", _private_garbage, allowed(CLOSED)
    ),
    Attack("groups taken", "groups-taken without a token", _taken, allowed(KEPT), ours_only=True),
)
