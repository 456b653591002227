"""The changes of a repeated fetch without a session, found from its bytes."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from storage_node.protocol.fetch.call import Outline, outline
from storage_node.protocol.request import Request, read_client_id, read_header
from storage_node.wire.table import APIS
from tests.support.wire import encode_request

Row = tuple[str, int, int]
"""Topic, partition, offset."""
KEYS = [(topic, number) for topic in "abc" for number in range(3)]


def outlined(version: int, rows: list[Row]) -> Outline:
    """Return the outline of a request with these rows in this order; a topic may occur several times in it."""
    topics: list[dict[str, Any]] = [
        {
            "topic": topic,
            "partitions": [
                {"partition": number, "fetch_offset": offset, "partition_max_bytes": 100, "current_leader_epoch": -1}
                for _, number, offset in group
            ],
        }
        for topic, group in groupby(rows, key=lambda row: row[0])
    ]
    values = {"max_wait": timedelta(seconds=1), "min_bytes": 1, "max_bytes": 100, "session_epoch": -1, "topics": topics}
    frame = encode_request(1, version, values)[4:]
    header = read_header(frame)
    _, position = read_client_id(frame, header.position, version >= 12)
    found = outline(Request(APIS[1], version, header.correlation, "", frame, position, ""))
    assert found is not None
    return found


@given(
    st.sampled_from([9, 11, 12]),
    st.permutations(KEYS),
    st.permutations(KEYS),
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 3)), max_size=3),
    st.lists(st.tuples(st.integers(0, len(KEYS) - 1), st.sampled_from([*KEYS, ("d", 0)])), max_size=2),
)
def test_outline_finds_changed_rows_in_any_order(
    version: int,
    first: list[tuple[str, int]],
    second: list[tuple[str, int]],
    moved: list[tuple[tuple[str, int], int]],
    others: list[tuple[int, tuple[str, int]]],
) -> None:
    """Partitions with other offsets differ; with a duplicate or another partition it is not the same request."""
    offsets = dict(moved)
    rows = [(*key, offsets.get(key, 0)) for key in second]
    for place, key in others:
        rows[place] = (*key, offsets.get(key, 0))
    found = outlined(version, rows).items(outlined(version, [(*key, 0) for key in first]))
    if sorted(row[:2] for row in rows) == sorted(KEYS):
        assert found is not None
        assert {(item.topic, item.partition): item.offset for item in found} == offsets
    else:
        assert found is None
