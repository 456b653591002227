"""ListOffsets and DeleteRecords of a partition."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ops.stack.errors import OpsError

ANSWER_SECONDS = 10.0

_SILENT = logging.getLogger("rehome.torture.admin")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def marks(bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
    """Return log start and end offset. Raises `OpsError`."""
    admin = _admin(bootstrap)
    place = TopicPartition(topic, partition)
    found = []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        try:
            future = admin.list_offsets({place: spec}, request_timeout=ANSWER_SECONDS)[place]
            found.append(int(future.result(ANSWER_SECONDS + 5).offset))
        except (KafkaException, TimeoutError) as error:
            raise OpsError(f"cannot read the offsets of {topic}-{partition}: {error}") from error
    if min(found) < 0:  # librdkafka's "invalid", without an error
        raise OpsError(f"cannot read the offsets of {topic}-{partition}: the client found {found}")
    return found[0], found[1]


def delete_records(bootstrap: str, topic: str, partition: int, offset: int) -> str:
    """Delete the records below `offset`; return the error, or ""."""
    place = TopicPartition(topic, partition, offset)
    admin = _admin(bootstrap)  # kept until the response: closing the client cancels its requests
    try:
        futures = admin.delete_records([place], request_timeout=ANSWER_SECONDS)
        for future in futures.values():
            future.result(ANSWER_SECONDS + 5)
    except (KafkaException, TimeoutError) as error:
        return str(error) or type(error).__name__
    return ""


def _admin(bootstrap: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}, logger=_SILENT)
