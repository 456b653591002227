"""Requests of every size, in pieces of every size."""

from __future__ import annotations

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.protocol.network.receiving import GROWTH, LEAST
from tests.support.nodes.node_harness import Harness, raw_connection
from tests.support.wire import Client, encode_request, receive_frame

SIZES = [LEAST - 200, LEAST, 60_000, 64 * 1024, 64 * 1024 + 1, 1_000_000, GROWTH, GROWTH + 1, 5_000_000, 30_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_node_responds_to_a_request_of_any_size(harness: Harness, size: int) -> None:
    client = Client(harness)
    each = 30_000
    topics = [{"name": f"{number:05}" + "x" * (each - 5)} for number in range(size // each)]
    topics.append({"name": "y" * (size % each)})
    answer = client.ask(3, 9, {"topics": topics})
    assert len(answer.topics) == len(topics)
    assert client.ask(18, 3).error_code == 0, "the next request begins where it ended"
    client.close()


@pytest.mark.parametrize("piece", [1, 3, 5, 1000, 70_000])
def test_pieces_of_any_size(harness: Harness, piece: int) -> None:
    harness.create_topic("t")
    frames = [
        encode_request(18, 0, {}, 1),
        encode_request(3, 9, {"topics": [{"name": "z" * 200}]}, 2),
        *([] if piece < 100 else [encode_request(3, 9, {"topics": [{"name": "y" * 30_000}] * 5}, 3)]),
        encode_request(18, 0, {}, 4),
    ]
    data = b"".join(frames)
    with raw_connection(harness) as connection:
        for at in range(0, len(data), piece):
            connection.sendall(data[at : at + piece])
        for frame in frames:
            assert receive_frame(connection)[:4] == frame[8:12]
    client = Client(harness)
    assert client.produce("t", 0, build_batch([b"x" * 900_000])).error == 0
    client.close()
