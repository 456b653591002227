"""Copies a replica into its `.move` while both are in use: whole batches, checked, under the limits, flushed as it
goes.

Nothing but the copy itself says how far it is: a copier that comes back recovers what is valid on disk, cuts it to
what it has in common with the source, and goes on from there.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from storage_node import failpoints
from storage_node.errors import CorruptRecord, LogDirectoryOffline, OffsetOutOfRange
from storage_node.failpoints import failpoint
from storage_node.log.batch import headers, verify
from storage_node.move import probe
from storage_node.move.blocks import Buffers
from storage_node.move.flusher import PacedFlush
from storage_node.move.future import segment_files
from storage_node.move.moving import Move
from storage_node.move.pace import Paces
from storage_node.move.pauses import LARGE, Pauses
from storage_node.move.reconcile import fit_to_source
from storage_node.move.stall import Doing
from storage_node.move.stream import Block, Stream, open_stream
from storage_node.move.throttle import LIMITED_CHUNK, RateLimiter, chunk_size

AFTER_CHUNK = failpoints.register("copy.after_chunk")
AFTER_FLUSH = failpoints.register("copy.after_flush")
CAUGHT_UP = failpoints.register("copy.caught_up")

SMALL = 2 << 20
"""Bytes of a copy that only its swap flushes: swaps flush many beside each other, copiers one after the other."""
NOTE_INTERVAL = 256 << 20
"""Bytes after which it is noted how much of a copy is on the disk, so that a start need not check all of it again."""


class Halted(Exception):
    """The copier was told to leave; the `.move` is whole up to the last chunk."""


class CorruptSource(Exception):
    """A batch of the source fails its checks; the message names the file and the offset."""


class Copier:
    """Copies one move at a time; one object serves all movers of a node."""

    def __init__(
        self,
        node_limiter: RateLimiter,
        flushes: Executor,
        check_claim: Callable[[Move], None],
        reads: Executor | None = None,
        paces: Paces | None = None,
        pauses: Pauses | None = None,
        most: int | None = None,
    ) -> None:
        """`flushes` flush beside the copying, `reads` read ahead of it; without `reads` nothing is read ahead.

        With `pauses` large copies give way to swaps. No chunk is larger than `most` bytes.
        """
        self.limiter = node_limiter
        self._flushes = flushes
        self._check_claim = check_claim
        self._reads = reads
        self._paces = paces or Paces()
        self._buffers = Buffers()
        self._pauses = pauses
        self._most = most
        self._probe = probe.wanted()

    def run(self, move: Move) -> None:
        """Copy until the copy has reached the source and is flushed, or is `SMALL`.

        Raises `Halted`, `CorruptSource`, StaleClaim, or a StorageError naming the directory.
        """
        move.begin_copying()
        try:
            self.check(move)
            future = move.future
            assert future is not None
            fit_to_source(move)
            flush = PacedFlush(
                self._flushes, move.target.name, move.path, partial(self._wrote, move), self._giving_way(move)
            )
            try:
                self._copy_all(move, flush)
            finally:
                try:
                    self.leave(move)
                finally:
                    flush.close()
            self._flush_rest(move, flush)
            failpoint(CAUGHT_UP)
        finally:
            move.end_copying()

    def _wrote(self, move: Move, count: int, seconds: float) -> None:
        self._paces.note(move.target.name, False, count, seconds)

    def _flush_rest(self, move: Move, flush: PacedFlush) -> None:
        """Flush what came after the last paced flush, unless that is little enough for the swap."""
        assert move.future is not None
        if move.future.size <= SMALL:
            return
        count, seconds = flush.unflushed
        began = time.monotonic()
        with move.watch.doing(Doing.FLUSH):
            move.future.flush()
        self._wrote(move, count, seconds + time.monotonic() - began)

    def _copy_all(self, move: Move, flush: PacedFlush) -> None:
        future = move.future
        assert future is not None
        unnoted = 0
        while True:
            first, before = future.log_end_offset, move.watch.waited(Doing.WRITE)
            count = self.step(move)
            if not count:
                break
            unnoted += count
            if unnoted >= NOTE_INTERVAL:
                unnoted = 0
                future.note_flushed()
            writing = move.watch.waited(Doing.WRITE) - before
            with move.watch.doing(Doing.FLUSH):
                stalled = flush.wrote(segment_files(future, first), count, writing)
            if stalled:
                move.seconds_stalled += stalled
                failpoint(AFTER_FLUSH)
        with move.watch.doing(Doing.FLUSH):
            stalled = flush.drain()
        move.seconds_stalled += stalled
        failpoint(AFTER_FLUSH)

    def check(self, move: Move) -> None:
        """May the copier go on? Raises `Halted`, StaleClaim or LogDirectoryOffline."""
        if move.stop:
            raise Halted(move.stop)
        self._check_claim(move)
        for directory in (move.source, move.target):
            if not directory.online:
                raise LogDirectoryOffline(directory.name, f"moving {move.tp}")

    def step(self, move: Move, *, limited: bool = True, until: float = math.inf) -> int:
        """Copy one chunk; answers its bytes, 0 when the copy has reached the source. Call `leave` after the last one.

        The final copy, while the swap holds the log, is not `limited`: writers never wait for a throttle. A chunk that
        the limits do not let pass before `until` (`time.monotonic`) is not copied.
        """
        self.check(move)
        source, future = move.partition.log, move.future
        assert future is not None
        future.apply_deferred()
        at = future.log_end_offset
        if at >= source.log_end_offset:
            self._take_log_start(move)
            return 0
        if at < source.log_start_offset:
            # Retention or DeleteRecords took what was to be copied next.
            self.leave(move)
            fit_to_source(move)
            return 1 if future.log_end_offset < source.log_end_offset else 0
        rates = self.limiter.rate, move.limiter.rate
        chunk = chunk_size(*rates, most=self._most) if limited else min(LIMITED_CHUNK, self._most or LIMITED_CHUNK)
        if self._pauses is not None and source.size - future.size > LARGE:
            self._pauses.give_way()
        stream = move.stream
        try:
            if stream is None or stream.version != future.version:
                self.leave(move)
                # What is one chunk has nothing behind it that could be read meanwhile.
                reads = self._reads if source.size - future.size > chunk else None
                stream = move.stream = open_stream(source, future, self._buffers, reads)
            block = self._next(move, stream, chunk) if stream is not None else None
        except CorruptRecord as error:
            doubted = stream.expected if stream is not None else at
            self.leave(move)
            self._doubt(move, at, doubted, error)
            return 1
        if stream is None or block is None:
            self.leave(move)  # the next segment, or a truncation came between
            return 1
        if limited and not self._throttle(move, len(block.data), until):
            self.leave(move)
            return 1
        if not self._write(move, stream, block):
            self.leave(move)
            return 1
        self._take_log_start(move)
        move.sample()
        failpoint(AFTER_CHUNK)
        return len(block.data)

    def leave(self, move: Move) -> None:
        """Nothing is copied for now: let go of what was read ahead, and cut off a batch that is not whole.

        Raises LogAppendError.
        """
        stream, move.stream = move.stream, None
        if stream is not None:
            self._paces.note(move.source.name, True, *stream.measured)
            stream.close()
        if move.future is not None and move.target.online:
            move.future.cut()

    def _next(self, move: Move, stream: Stream, chunk: int) -> Block | None:
        """The next block of the source."""
        with move.watch.doing(Doing.READ):
            block = stream.next(chunk)
        if block is not None:
            move.watch.read(len(block.data))
        return block

    def _write(self, move: Move, stream: Stream, block: Block) -> bool:
        """False if the copy was truncated since this was read."""
        future = move.future
        assert future is not None
        with future.writing:
            if future.deferred or future.version != stream.version:
                return False
            began = time.monotonic()
            with move.watch.doing(Doing.WRITE), self._working(move):
                future.write(block.data, block.walked)
            move.watch.wrote(len(block.data))
        if self._probe is not None:
            self._probe(len(block.data))
        for limiter in (move.limiter, self.limiter):
            limiter.wrote(len(block.data), began)
        return True

    def _giving_way(self, move: Move) -> Pauses | None:
        """What a copy that is large gives way to. Nobody waits for a small one: of these there are always some."""
        return self._pauses if move.partition.log.size > LARGE else None

    def _working(self, move: Move) -> contextlib.AbstractContextManager[None]:
        pauses = self._giving_way(move)
        return pauses.working() if pauses is not None else contextlib.nullcontext()

    def _doubt(self, move: Move, at: int, upto: int, error: CorruptRecord) -> None:
        """What was read is no batch. Raises `CorruptSource` unless it was only truncated while it was read."""
        source, future = move.partition.log, move.future
        assert future is not None
        with move.partition.lock:
            doubted = move.doubted == (at, future.version)
            move.doubted = (at, future.version)
            try:
                while at <= upto and at < source.log_end_offset:
                    data = source.read(at, LIMITED_CHUNK)
                    try:
                        for position, header in headers(data.data):
                            at = max(at, header.base_offset)
                            verify(data.data, position, header)
                    except CorruptRecord as found:
                        error, doubted = found, True
                        break
                    if data.next_offset <= at:
                        break
                    at = data.next_offset
            except OffsetOutOfRange:
                return  # retention was faster
            except CorruptRecord as found:
                error, doubted = found, True
            if doubted:
                raise CorruptSource(f"{move.tp} cannot be moved: {_where(move, at)}: {error.message}") from error

    def _throttle(self, move: Move, count: int, until: float) -> bool:
        """Wait until `count` bytes may be written; False when that is not before `until`."""

        def told() -> bool:
            return bool(move.stop) or time.monotonic() >= until

        with move.watch.doing(Doing.RUN_LIMIT):
            slept = move.limiter.acquire(count, told)
        with move.watch.doing(Doing.NODE_LIMIT):
            slept += self.limiter.acquire(count, told)
        move.throttled(slept)
        # Also if nothing was slept: told to stop, the limiter lets go uncharged.
        self.check(move)
        return not told()

    def _take_log_start(self, move: Move) -> None:
        """What DeleteRecords and retention took from the source is not kept in the copy (KIP-113)."""
        source, future = move.partition.log, move.future
        assert future is not None
        start = source.log_start_offset
        if future.log_start_offset < start <= future.log_end_offset:
            with future.writing:
                future.advance_log_start(start)


def _where(move: Move, offset: int) -> str:
    source = move.partition.log
    bases = [segment.base_offset for segment in source.segments if segment.base_offset <= offset]
    name = f"{max(bases):020d}.log" if bases else "a segment"
    return f"corrupt batch in {source.path / name} at offset {offset}"
