"""Which leader epoch began at which offset: the file `leader-epoch-checkpoint` and the questions asked of it."""

from __future__ import annotations

from dataclasses import dataclass

UNDEFINED = -1
FILE_NAME = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """An immutable history of (epoch, start offset), both rising; every change answers a new one."""

    entries: tuple[tuple[int, int], ...] = ()

    @property
    def latest(self) -> int:
        """The newest epoch; -1 without one."""
        return self.entries[-1][0] if self.entries else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> LeaderEpochs:
        """Note that `epoch` begins at `start_offset`; entries that contradict it go, a known epoch stays as it is."""
        if epoch < 0 or (self.entries and epoch == self.latest and start_offset >= self.entries[-1][1]):
            return self
        kept = tuple(e for e in self.entries if e[0] < epoch and e[1] < start_offset)
        return LeaderEpochs((*kept, (epoch, start_offset)))

    def truncated_from_end(self, end_offset: int) -> LeaderEpochs:
        """Without the epochs that begin at or after `end_offset`."""
        return LeaderEpochs(tuple(e for e in self.entries if e[1] < end_offset))

    def truncated_from_start(self, start_offset: int) -> LeaderEpochs:
        """With nothing before `start_offset`: the epoch that covers it begins there."""
        before = [e for e in self.entries if e[1] <= start_offset]
        after = [e for e in self.entries if e[1] > start_offset]
        head = [(before[-1][0], start_offset)] if before else []
        return LeaderEpochs((*head, *after))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch not above `epoch`, and where it ends; (-1, -1) if that cannot be said.

        This is what OffsetForLeaderEpoch answers: for an epoch older than all known ones, that epoch itself and where
        the oldest known one begins.
        """
        if epoch == UNDEFINED or not self.entries:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = next((e for e in self.entries if e[0] > epoch), None)
        if higher is None:
            return UNDEFINED, UNDEFINED
        floor = [e for e in self.entries if e[0] <= epoch]
        return (floor[-1][0] if floor else epoch), higher[1]

    def epoch_for(self, offset: int) -> int:
        """The epoch that `offset` belongs to; -1 if it is before all known ones."""
        covering = [e for e in self.entries if e[1] <= offset]
        return covering[-1][0] if covering else UNDEFINED

    def encode(self) -> bytes:
        """The file: version 0, the number of entries, then a line per entry."""
        lines = ["0", str(len(self.entries)), *(f"{epoch} {start}" for epoch, start in self.entries)]
        return ("\n".join(lines) + "\n").encode()

    @staticmethod
    def decode(data: bytes) -> LeaderEpochs:
        """Read the file; an empty one has no entries. Raises ValueError for anything else that is not one."""
        lines = data.decode("ascii").splitlines()
        if not lines:
            return LeaderEpochs()
        if lines[0].strip() != "0":
            raise ValueError(f"unknown version {lines[0]!r} of {FILE_NAME}")
        if len(lines) < 2 or len(lines) - 2 != int(lines[1]):
            raise ValueError(f"{FILE_NAME} does not have as many entries as it says")
        entries: list[tuple[int, int]] = []
        for line in lines[2:]:
            epoch, start = line.split()
            entries.append((int(epoch), int(start)))
        return LeaderEpochs(tuple(entries))
