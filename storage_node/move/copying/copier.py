"""Copy a replica into its `.move` while clients use the replica: whole batches, validated, throttled, and flushed as
they are written.

Only the copy itself records its progress: a copier that resumes recovers what is valid on disk, truncates it to the
prefix that it shares with the source, and continues from there.
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
from storage_node.log.batches.batch import headers, verify
from storage_node.move.copying import probe
from storage_node.move.copying.blocks import Buffers
from storage_node.move.copying.flusher import PacedFlush
from storage_node.move.copying.pace import Paces
from storage_node.move.copying.pauses import LARGE, Pauses
from storage_node.move.copying.reconcile import fit_to_source
from storage_node.move.copying.stream import Block, Stream, open_stream
from storage_node.move.future import segment_files
from storage_node.move.moving import Move, OpenMove
from storage_node.move.stall import Doing
from storage_node.move.throttle import LIMITED_CHUNK, RateLimiter, chunk_size

AFTER_CHUNK = failpoints.register("copy.after_chunk")
AFTER_FLUSH = failpoints.register("copy.after_flush")
CAUGHT_UP = failpoints.register("copy.caught_up")

SMALL = 2 << 20
"""Bytes of a copy that only its swap flushes: swaps flush in parallel, copiers one after the other."""
NOTE_INTERVAL = 256 << 20
"""Bytes after which the copy's recovery point is written, so that a start need not validate all of the copy again."""


class Halted(Exception):
    """The copier was requested to stop; the `.move` is whole up to the last chunk."""


class CorruptSource(Exception):
    """A batch of the source fails its checks; the message names the file and the offset."""


class Copier:
    """A copier of one move at a time; all movers of a node share the object."""

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
        """Create a copier; `flushes` runs flushes beside the copying, `reads` reads ahead (None: no read-ahead).

        With `pauses` large copies pause during swaps. No chunk is larger than `most` bytes.
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

    def run(self, opened: OpenMove) -> None:
        """Copy until the copy has reached the source and is flushed, or is no larger than `SMALL`.

        Raises `Halted`, `CorruptSource`, StaleClaim, or a StorageError that names the directory.
        """
        move = opened.move
        move.begin_copying()
        try:
            self.check(move)
            fit_to_source(opened)
            flush = PacedFlush(
                self._flushes, move.target.name, move.path, partial(self._wrote, move), self._giving_way(move)
            )
            try:
                self._copy_all(opened, flush)
            finally:
                try:
                    self.leave(opened)
                finally:
                    flush.close()
            self._flush_rest(opened, flush)
            failpoint(CAUGHT_UP)
        finally:
            move.end_copying()

    def _wrote(self, move: Move, count: int, seconds: float) -> None:
        self._paces.note(move.target.name, False, count, seconds)

    def _flush_rest(self, opened: OpenMove, flush: PacedFlush) -> None:
        """Flush what follows the last paced flush, unless the swap can flush it."""
        move, future = opened.move, opened.future
        if future.size <= SMALL:
            return
        count, seconds = flush.unflushed
        began = time.monotonic()
        with move.meter.doing(Doing.FLUSH):
            future.flush()
        self._wrote(move, count, seconds + time.monotonic() - began)

    def _copy_all(self, opened: OpenMove, flush: PacedFlush) -> None:
        move, future = opened.move, opened.future
        unnoted = 0
        while True:
            first, before = future.log_end_offset, move.meter.waited(Doing.WRITE)
            count = self.step(opened)
            if not count:
                break
            unnoted += count
            if unnoted >= NOTE_INTERVAL:
                unnoted = 0
                future.note_flushed()
            writing = move.meter.waited(Doing.WRITE) - before
            with move.meter.doing(Doing.FLUSH):
                stalled = flush.wrote(segment_files(future, first), count, writing)
            if stalled:
                move.seconds_stalled += stalled
                failpoint(AFTER_FLUSH)
        with move.meter.doing(Doing.FLUSH):
            stalled = flush.drain()
        move.seconds_stalled += stalled
        failpoint(AFTER_FLUSH)

    def check(self, move: Move) -> None:
        """Raise `Halted`, StaleClaim or LogDirectoryOffline unless the copier may continue."""
        if move.stop:
            raise Halted(move.stop)
        self._check_claim(move)
        for directory in (move.source, move.target):
            if not directory.online:
                raise LogDirectoryOffline(directory.name, f"moving {move.tp}")

    def step(self, opened: OpenMove, *, limited: bool = True, until: float = math.inf) -> int:
        """Copy one chunk and return its bytes, or 0 when the copy has reached the source. Call `leave` after the last
        one.

        `limited` is false for the final copy, while the swap holds the log: writers never wait for a throttle. A chunk
        that the limits do not admit before `until` (`time.monotonic`) is not copied.
        """
        move, future = opened.move, opened.future
        self.check(move)
        source = move.partition.log
        future.apply_deferred()
        at = future.log_end_offset
        if at >= source.log_end_offset:
            self._take_log_start(opened)
            return 0
        if at < source.log_start_offset:
            # Retention or DeleteRecords removed what the copier would copy next.
            self.leave(opened)
            fit_to_source(opened)
            return 1 if future.log_end_offset < source.log_end_offset else 0
        rates = self.limiter.rate, move.limiter.rate
        chunk = chunk_size(*rates, most=self._most) if limited else min(LIMITED_CHUNK, self._most or LIMITED_CHUNK)
        if self._pauses is not None and source.size - future.size > LARGE:
            self._pauses.give_way()
        stream = opened.stream
        try:
            if stream is None or stream.version != future.version:
                self.leave(opened)
                # A single chunk has nothing behind it to read ahead.
                reads = self._reads if source.size - future.size > chunk else None
                stream = opened.stream = open_stream(source, future, self._buffers, reads)
            block = self._next(move, stream, chunk) if stream is not None else None
        except CorruptRecord as error:
            doubted = stream.expected if stream is not None else at
            self.leave(opened)
            self._doubt(opened, at, doubted, error)
            return 1
        if stream is None or block is None:
            self.leave(opened)  # the segment has ended, or the copy was truncated meanwhile
            return 1
        if limited and not self._throttle(move, len(block.data), until):
            self.leave(opened)
            return 1
        if not self._write(opened, stream, block):
            self.leave(opened)
            return 1
        self._take_log_start(opened)
        move.sample()
        failpoint(AFTER_CHUNK)
        return len(block.data)

    def leave(self, opened: OpenMove) -> None:
        """Release what was read ahead, and cut off a partial batch, because copying pauses.

        Raises LogAppendError.
        """
        move = opened.move
        stream, opened.stream = opened.stream, None
        if stream is not None:
            self._paces.note(move.source.name, True, *stream.measured)
            stream.close()
        if move.target.online:
            opened.future.cut()

    def _next(self, move: Move, stream: Stream, chunk: int) -> Block | None:
        """Return the next block of the source."""
        with move.meter.doing(Doing.READ):
            block = stream.next(chunk)
        if block is not None:
            move.meter.read(len(block.data))
        return block

    def _write(self, opened: OpenMove, stream: Stream, block: Block) -> bool:
        """Write the block; return False if the copy was truncated since the block was read."""
        move, future = opened.move, opened.future
        with future.writing:
            if future.deferred or future.version != stream.version:
                return False
            began = time.monotonic()
            with move.meter.doing(Doing.WRITE), self._working(move):
                future.write(block.data, block.walked)
            move.meter.wrote(len(block.data))
        if self._probe is not None:
            self._probe(len(block.data))
        for limiter in (move.limiter, self.limiter):
            limiter.wrote(len(block.data), began)
        return True

    def _giving_way(self, move: Move) -> Pauses | None:
        """Return what a large copy pauses for; None for a small one, of which there are always some and which delays no
        swap.
        """
        return self._pauses if move.partition.log.size > LARGE else None

    def _working(self, move: Move) -> contextlib.AbstractContextManager[None]:
        pauses = self._giving_way(move)
        return pauses.working() if pauses is not None else contextlib.nullcontext()

    def _doubt(self, opened: OpenMove, at: int, upto: int, error: CorruptRecord) -> None:
        """Validate again what looked corrupt. Raises `CorruptSource` unless the source was only truncated during the
        read.
        """
        move, future = opened.move, opened.future
        source = move.partition.log
        with move.partition.lock:
            doubted = opened.doubted == (at, future.version)
            opened.doubted = (at, future.version)
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
                return  # retention has removed the offset meanwhile
            except CorruptRecord as found:
                error, doubted = found, True
            if doubted:
                raise CorruptSource(f"{move.tp} cannot be moved: {_where(move, at)}: {error.message}") from error

    def _throttle(self, move: Move, count: int, until: float) -> bool:
        """Wait until `count` bytes may be written; return False when that is not before `until`."""

        def should_stop() -> bool:
            return bool(move.stop) or time.monotonic() >= until

        with move.meter.doing(Doing.RUN_LIMIT):
            slept = move.limiter.acquire(count, should_stop)
        with move.meter.doing(Doing.NODE_LIMIT):
            slept += self.limiter.acquire(count, should_stop)
        move.throttled(slept)
        # Also after no wait: when the copier is requested to stop, the limiter returns without a charge.
        self.check(move)
        return not should_stop()

    def _take_log_start(self, opened: OpenMove) -> None:
        """Raise the copy's log start offset to the source's, which DeleteRecords or retention raised (KIP-113)."""
        future = opened.future
        start = opened.move.partition.log.log_start_offset
        if future.log_start_offset < start <= future.log_end_offset:
            with future.writing:
                future.advance_log_start(start)


def _where(move: Move, offset: int) -> str:
    source = move.partition.log
    bases = [segment.base_offset for segment in source.segments if segment.base_offset <= offset]
    name = f"{max(bases):020d}.log" if bases else "a segment"
    return f"corrupt batch in {source.path / name} at offset {offset}"
