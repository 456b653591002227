"""What a client leaves in its history, however it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from ops.torture.clients import Orders, Sender
from ops.torture.history import INFO, SEND, Recorder, read


class Dying:
    """A producer whose third poll finds that it has ended with a fatal error."""

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


def test_a_producer_that_dies_leaves_no_send_without_an_outcome(tmp_path: Path) -> None:
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
