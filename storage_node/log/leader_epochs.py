"""Leader epochs and their start offsets: Kafka's LeaderEpochFileCache and its file `leader-epoch-checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass

from storage_node.directories.atomic import NoRoom
from storage_node.errors import MetadataIOError
from storage_node.log.context import LogContext

UNDEFINED = -1
FILE_NAME = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """An immutable history of (epoch, start offset), both rising; every change returns a new instance."""

    entries: tuple[tuple[int, int], ...] = ()

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self.entries[-1][0] if self.entries else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> LeaderEpochs:
        """Add that `epoch` begins at `start_offset`, drop entries that contradict it; a known epoch keeps its start."""
        if epoch < 0 or (self.entries and epoch == self.latest and start_offset >= self.entries[-1][1]):
            return self
        kept = tuple(e for e in self.entries if e[0] < epoch and e[1] < start_offset)
        return LeaderEpochs((*kept, (epoch, start_offset)))

    def truncated_from_end(self, end_offset: int) -> LeaderEpochs:
        """Return the history without the epochs that begin at or after `end_offset`."""
        return LeaderEpochs(tuple(e for e in self.entries if e[1] < end_offset))

    def truncated_from_start(self, start_offset: int) -> LeaderEpochs:
        """Return the history from `start_offset` on: the epoch that holds this offset begins there."""
        before = [e for e in self.entries if e[1] <= start_offset]
        after = [e for e in self.entries if e[1] > start_offset]
        head = [(before[-1][0], start_offset)] if before else []
        return LeaderEpochs((*head, *after))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch at or below `epoch` and its end offset; (-1, -1) if it is undefined.

        This is the response to OffsetForLeaderEpoch. For an epoch older than all known ones it is that epoch itself,
        which ends where the oldest known epoch begins.
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
        """Return the epoch of `offset`; -1 if it precedes all known epochs."""
        covering = [e for e in self.entries if e[1] <= offset]
        return covering[-1][0] if covering else UNDEFINED

    def encode(self) -> bytes:
        """Return the file's content: version 0, the number of entries, then a line per entry."""
        lines = ["0", str(len(self.entries)), *(f"{epoch} {start}" for epoch, start in self.entries)]
        return ("\n".join(lines) + "\n").encode()

    @staticmethod
    def decode(data: bytes) -> LeaderEpochs:
        """Parse the file's content; an empty file has no entries. Raises ValueError if it is invalid."""
        lines = data.decode("ascii").splitlines()
        if not lines:
            return LeaderEpochs()
        if lines[0].strip() != "0":
            raise ValueError(f"unknown version {lines[0]!r} of {FILE_NAME}")
        if len(lines) < 2 or len(lines) - 2 != int(lines[1]):
            raise ValueError(f"{FILE_NAME} does not have as many entries as its second line states")
        entries: list[tuple[int, int]] = []
        for line in lines[2:]:
            epoch, start = line.split()
            entries.append((int(epoch), int(start)))
        return LeaderEpochs(tuple(entries))


class LeaderEpochFileCache:
    """The history of one log's leader epochs, in memory and in its file. Only the log's writer changes it."""

    __slots__ = ("_context", "epochs", "stale")

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self.epochs = LeaderEpochs()
        self.stale = False
        """Whether the file has epochs that were truncated in memory."""

    def change(self, epochs: LeaderEpochs) -> None:
        """Replace the history. Raises `LogClosed`, `MetadataIOError`."""
        self._context.refuse_closed()
        try:
            self.store(epochs)
        except OSError as exc:
            raise self._context.wrapped(MetadataIOError, exc, f"writing {FILE_NAME} of") from exc

    def store(self, epochs: LeaderEpochs, *, always: bool = False) -> None:
        """Replace the history; the file is written if that changes it, or `always`.

        Raises OSError, and the history stays as it was.
        """
        if always or epochs != self.epochs:
            self._context.home.write(FILE_NAME, epochs.encode(), sync=bool(epochs.entries))
            self._context.names_dirty = True
        self.epochs = epochs

    def forget_before(self, offset: int) -> None:
        """Drop the epochs before the log start offset; a full disk must not prevent deletions. Raises OSError."""
        epochs = self.epochs.truncated_from_start(offset)
        try:
            self.store(epochs)
        except NoRoom:
            # The file then holds superfluous epochs, which the next start drops.
            self.epochs = epochs

    def cut_back(self, end: int) -> None:
        """Drop the epochs beyond the log end offset after a failed append; a full disk must not prevent that.

        Raises OSError.
        """
        epochs = self.epochs.truncated_from_end(end + 1)
        try:
            self.store(epochs)
        except NoRoom:
            # Opening the log drops epochs that begin beyond the log end; the next append writes the file first.
            self.epochs, self.stale = epochs, True
