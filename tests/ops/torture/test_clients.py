"""The history of a client after an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from ops.torture.clients import Reader, Sender
from ops.torture.history import FAIL, INFO, POLL, SEND, Recorder, read
from ops.torture.orders import Orders


class Dying:
    """A producer whose third poll raises a fatal error."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._polls = 0

    def produce(self, *arguments: Any, **options: Any) -> None:
        self._producer.produce(*arguments, **options)

    def poll(self, _timeout: float) -> int:
        self._polls += 1
        if self._polls == 3:
            raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "desynchronized", fatal=True))
        return 0


def test_producer_with_a_fatal_error_records_an_outcome_for_every_send(tmp_path: Path) -> None:
    topics = {"orders": ("orders", 1)}
    orders = Orders("producer", "idempotent-0", "127.0.0.1:9", tmp_path / "sends.jsonl", topics, 1, count=9)
    with Recorder(orders.history) as recorder:
        sender = Sender(orders, recorder)
        sender._producer = Dying(sender._producer)
        with pytest.raises(KafkaException):
            sender.once()
    found = [(event.op, event.type, event.value, event.error) for event in read([orders.history])]
    assert found == [(SEND, INFO, f"idempotent-0-{n}", "OUT_OF_ORDER_SEQUENCE_NUMBER") for n in range(3)]
    assert sender.counts[INFO] == 3


class Erring:
    """A consumer whose only poll returns OFFSET_OUT_OF_RANGE."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        return [self]

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 5321, 6255

    def incremental_assign(self, *_: Any) -> None: ...

    def incremental_unassign(self, *_: Any) -> None: ...

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._AUTO_OFFSET_RESET, "Broker: Offset out of range (broker 1)")

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


@pytest.mark.parametrize(("offset", "kind"), [(5516, FAIL), (2035, INFO)], ids=["here", "where it was before"])
def test_out_of_range_counts_only_at_the_current_position(tmp_path: Path, offset: int, kind: str) -> None:
    orders = Orders("wanderer", "wanderer-0", "127.0.0.1:9", tmp_path / "polls.jsonl", {"orders": ("orders", 1)})
    with Recorder(orders.history) as recorder:
        reader = Reader(orders, recorder)
        reader._consumer.close()
        reader._consumer = Erring(offset)
        reader._put("orders", 0, (5321, 6255), 5516)
        reader._poll()
    (found,) = [event for event in read([orders.history]) if event.op == POLL]
    assert found.type == kind
