"""What a log has promised its clients, and whether what is read keeps it.

A value may stand at an offset if it was appended there; it must stand there if it was acknowledged and nothing since
could have taken it: no truncation, no deletion, no loss of power before it was flushed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage_node.log.batches.batch import build_batch, headers
from storage_node.log.log import Log

__all__ = ["Promises", "batch_of", "read_all"]

_VALUE = 10  # bytes of a record's value


def batch_of(number: int, count: int, timestamp: int) -> tuple[bytes, bytes]:
    """A batch of `count` records that all hold one value which no other batch has: (value, bytes)."""
    value = b"%0*d" % (_VALUE, number)
    return value, build_batch([value] * count, timestamp=timestamp)


def read_all(log: Log) -> tuple[int, int, dict[int, bytes]]:
    """(log start offset, log end offset, value at each offset between them)."""
    found: dict[int, bytes] = {}
    start, end = log.log_start_offset, log.log_end_offset
    at = start
    while at < end:
        data = log.read(at, 1 << 20)
        for position, header in headers(data.data):
            last = position + header.length - 1  # the last byte counts the record's headers
            value = bytes(data.data[last - _VALUE : last])
            for offset in range(max(header.base_offset, start), header.next_offset):
                found[offset] = value
        assert data.next_offset > at, f"nothing is read at {at}, the log ends at {end}"
        at = data.next_offset
    return start, end, found


@dataclass
class Promises:
    """Of one topic; offsets from `start` to `end` hold `current`."""

    topic_id: str
    start: int = 0
    end: int = 0
    current: dict[int, bytes] = field(default_factory=dict)
    allowed: dict[int, set[bytes]] = field(default_factory=dict)
    """What may be found at an offset after a crash: what is there, what was tried, what was truncated."""
    flushed: int = 0
    """The log said that everything before this is on the disk."""
    highest_start: int = 0
    """The highest log start offset that a request asked for."""
    in_doubt: int | None = None
    """A truncation to here may or may not have been done."""
    crashed: str = ""
    """"kill" or "power" since the log was last read."""
    ever: bool = False
    """Whether it was ever served."""

    # What is asked for and answered

    def trying(self, value: bytes, count: int) -> None:
        """A batch is appended; the answer is not there yet."""
        for offset in range(self.end, self.end + count):
            self.allowed.setdefault(offset, set()).add(value)

    def acked(self, base: int, last: int, value: bytes) -> None:
        """The batch was acknowledged at these offsets."""
        assert base == self.end, f"appended at {base}, the log ended at {self.end}"
        for offset in range(base, last + 1):
            self.current[offset] = value
        self.end = last + 1

    def truncating(self, offset: int) -> None:
        """A truncation is asked for; it may take the whole batch that holds the offset."""
        if offset < self.end:
            while offset > 0 and self.current.get(offset - 1) == self.current.get(offset):
                offset -= 1
            self.in_doubt = offset if self.in_doubt is None else min(offset, self.in_doubt)

    def truncated(self, end: int) -> None:
        """It was done, and the log ends there now."""
        assert self.in_doubt is None or end >= min(self.in_doubt, self.end)
        self.current = {offset: value for offset, value in self.current.items() if offset < end}
        self.end = end
        self.start = min(self.start, end)
        self.flushed = min(self.flushed, end)
        self.in_doubt = None

    def starting_at(self, offset: int) -> None:
        """Everything before this is to be deleted."""
        self.highest_start = max(self.highest_start, offset)

    def noted_flushed(self, offset: int) -> None:
        """The log says that everything before `offset` is on the disk."""
        if self.in_doubt is None and offset > self.flushed:
            self.flushed = min(offset, self.end)
            for done in range(self.flushed):
                if done in self.current:
                    self.allowed[done] = {self.current[done]}

    def crash(self, power: bool) -> None:
        """The node died; with `power`, what was not flushed may be lost."""
        self.crashed = "power" if power or self.crashed == "power" else "kill"

    # What is found

    def check(self, start: int, end: int, found: dict[int, bytes]) -> None:
        """Compare what was read with what was promised; then that is what is promised."""
        if self.crashed or self.in_doubt is not None:
            self._check_after_crash(start, end, found)
        else:
            assert end == self.end, f"the log ends at {end}, it ended at {self.end}"
            assert self.start <= start, f"the log starts at {start}, it started at {self.start}"
            for offset, value in found.items():
                assert value == self.current[offset], _differs(offset, value, self.current[offset])
        assert start <= max(self.start, self.highest_start), f"the log starts at {start}, nobody asked for that"
        assert set(found) == set(range(start, end)), f"holes between {start} and {end}: {sorted(found)}"
        self.start = start
        self.ever = True

    def _check_after_crash(self, start: int, end: int, found: dict[int, bytes]) -> None:
        need = self.flushed if self.crashed == "power" else self.end
        if self.in_doubt is not None:
            need = min(need, self.in_doubt)
        assert end >= need, f"the log ends at {end}, records up to {need} were promised (after a {self.crashed})"
        for offset, value in found.items():
            known = self.current.get(offset)
            if offset < need and known is not None:
                assert value == known, _differs(offset, value, known)
            else:
                may = self.allowed.get(offset, set())
                assert value in may, f"offset {offset} holds {value!r}, which was never appended there ({may})"
        self.current = {**{o: v for o, v in self.current.items() if o < start and o < end}, **found}
        self.end = end
        if self.crashed == "power":
            # What is there after a loss of power is what the disk has; what had been there is gone for good.
            self.flushed = end
            self.allowed = {offset: {value} for offset, value in self.current.items()}
        else:
            self.flushed = min(self.flushed, end)
        self.start = start
        self.crashed = ""
        self.in_doubt = None


def _differs(offset: int, found: bytes, known: bytes) -> str:
    return f"offset {offset} holds {found!r}, it held {known!r}"
