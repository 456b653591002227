"""No batch of an idempotent producer overtakes one that was sent before it and refused for the moment.

A producer of which a log knows nothing may begin with any sequence: its earlier records may be gone. So if its first
batch is refused (too few replicas are in sync, another node leads) and the reason ends before the next one, which it
has sent right behind, is looked at, that one would be taken as its beginning. Clients conclude from an acknowledged
batch that all before it are there (librdkafka says so to its application): the first one would be lost. Apache Kafka
takes it.
"""

from __future__ import annotations

from storage_node.errors import OutOfOrderSequence
from storage_node.log.batch import HEADER_SIZE, MAGIC, NO_PRODUCER, Buffer, parse
from storage_node.log.producer_state import ProducerState

#: Producers remembered, the newest.
REMEMBERED = 1024


class Overtaking:
    """What was refused of producers that the log does not know. Changed under the partition's lock."""

    def __init__(self) -> None:
        self._refused: dict[int, tuple[int, int]] = {}

    def refused(self, records: Buffer, known: ProducerState) -> None:
        """This batch was refused, for a reason that may end at any moment."""
        first = _first(records)
        if first is None or known.get(first[0]) is not None:
            return
        producer, epoch, sequence = first
        before = self._refused.pop(producer, None)
        if before is not None and before[0] == epoch:
            sequence = min(sequence, before[1])
        self._refused[producer] = epoch, sequence
        while len(self._refused) > REMEMBERED:
            del self._refused[next(iter(self._refused))]

    def check(self, records: Buffer, known: ProducerState) -> None:
        """Raises `OutOfOrderSequence` for a batch behind one that was refused: its producer sends both again."""
        if not self._refused or (first := _first(records)) is None:
            return
        producer, epoch, sequence = first
        before = self._refused.get(producer)
        if before is None:
            return
        if before[0] == epoch and sequence > before[1] and known.get(producer) is None:
            raise OutOfOrderSequence(
                f"Out of order sequence number for producer {producer}: {sequence} (incoming seq. number), "
                f"{before[1]} was refused and has not come again"
            )
        del self._refused[producer]


def _first(records: Buffer) -> tuple[int, int, int] | None:
    """Producer id, epoch and base sequence of the first batch; None without them."""
    if len(records) < HEADER_SIZE:
        return None
    header = parse(records)
    if header.magic != MAGIC or header.producer_id == NO_PRODUCER or header.base_sequence < 0:
        return None
    return header.producer_id, header.producer_epoch, header.base_sequence
