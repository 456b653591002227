"""Sending answers that hold much of a log: a reader that takes its time holds next to no memory.

The bytes read for a response are sent at once, as much as the peer takes; the others are read when those are sent. What
the peer has not taken within a moment (at once, if the responses to all peers hold too much already) is dropped, and
read again from the log, piece by piece, when the peer goes on reading: what is below the high watermark never changes,
and a segment stays open for as long as it is sent, whatever becomes of its name. What is above it changes when another
node is elected leader: a follower's answer ends there with its connection. (The kernel's way from file to socket was
measured as well: on the loopback it takes longer than the two copies.)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from storage_node.directories.directory import LogDirectory
from storage_node.errors import CorruptRecord, LogReadError
from storage_node.log.files import Region
from storage_node.types import TopicPartition

Buffer = bytes | bytearray | memoryview

#: How long what was read is kept for a peer that does not take it.
HOLD_SECONDS = 1.0
#: Read at once for a peer that takes what it is sent, and for a slow one.
PIECE, SMALL_PIECE = 2 * 1024 * 1024, 256 * 1024
#: Sent in one go, before others have their turn on the loop.
TURN = 4 * 1024 * 1024
#: Given to the kernel in one call, which takes no more than 1,024.
MOST_BUFFERS = 512
LONGEST_PAUSE = 0.05
#: How long the other directories' data is held back for one that does not read.
PATIENCE = 5.0


class FilePart:
    """A part of a log in a response: its bytes, or their place in the log while they are not read, or dropped."""

    __slots__ = ("_check", "_data", "_directory", "_piece", "_region", "_sent", "_tp")

    def __init__(
        self,
        data: bytes,
        region: Region,
        tp: TopicPartition,
        directory: LogDirectory,
        check: Callable[[], None] | None = None,
    ) -> None:
        """`data`: the first bytes of the region, or all. `check` is called after each further read; it raises where the
        file may hold other bytes by now.
        """
        self._check = check
        self._data: memoryview | None = memoryview(data)
        self._region = region
        self._directory = directory
        self._tp = tp
        self._piece = PIECE
        self._sent = 0

    def __len__(self) -> int:
        return len(self._region)

    @property
    def left(self) -> int:
        """Bytes that are still to be sent."""
        return len(self._region) - self._sent

    @property
    def ready(self) -> memoryview:
        """The next bytes to be sent, as far as they are in memory."""
        return self._data if self._data is not None else memoryview(b"")

    def sent(self, count: int) -> None:
        """So many of the bytes that were ready have gone."""
        self._sent += count
        self._data = self.ready[count:] or None

    def give_up(self) -> None:
        """Keep no bytes in memory; `read_on` reads them again."""
        self._data = None
        self._piece = SMALL_PIECE

    def read_on(self) -> Future[bytes]:
        """Read the next piece, in the directory's pool; raises StorageError when it is offline, or RuntimeError."""
        return self._directory.submit(self._read)

    def late(self) -> TimeoutError:
        """The error of a piece that is not read within `PATIENCE`."""
        return TimeoutError(f"log directory {self._directory.name} does not read on within {PATIENCE:g} s")

    def _read(self) -> bytes:
        try:
            data = self._region.read(self._sent, self._piece)
        except OSError as error:
            raise LogReadError(self._directory.name, f"reading the log of {self._tp} for a fetch response") from error
        if not data:
            raise CorruptRecord("a segment became shorter while it was sent")
        if self._check is not None:
            self._check()
        return data

    def go_on(self, data: bytes) -> None:
        """What `read_on` has read."""
        self._data = memoryview(data)


class Sending:
    """One answer on its way; everything is called on the loop. Nobody else writes to the transport meanwhile."""

    def __init__(
        self,
        transport: asyncio.Transport,
        buffers: Sequence[Buffer | FilePart],
        done: Callable[[BaseException | None], None],
        blocked: Callable[[int], bool] = lambda size: False,
    ) -> None:
        """`blocked` is told how many bytes are held in memory for a peer that does not take them now, and answers
        whether that is too much.
        """
        self._transport = transport
        self._blocked = blocked
        self._parts: deque[memoryview | FilePart] = deque(
            buffer if isinstance(buffer, FilePart) else memoryview(buffer) for buffer in buffers if len(buffer)
        )
        self._done: Callable[[BaseException | None], None] | None = done
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._waiting = False
        self._timer: asyncio.TimerHandle | None = None
        self._job: Future[bytes] | None = None
        """The read that the answer waits for."""
        self._late: asyncio.TimerHandle | None = None
        """Ends the answer where that read takes too long."""
        self._pause = 0.0005

    @property
    def left(self) -> int:
        """Bytes that the peer has still to take."""
        return sum(part.left if isinstance(part, FilePart) else len(part) for part in self._parts)

    def start(self) -> None:
        """Send as much as the peer takes now, and the rest as it takes more; then `done(None)` or `done(error)`."""
        if self._transport.get_write_buffer_size():
            # Earlier answers are still on their way through the transport, which tells nobody when they are gone.
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._loop.call_later(self._pause, self._start_again)
            return
        # A descriptor of its own: the transport's is watched by the transport.
        try:
            self._socket = self._transport.get_extra_info("socket").dup()
        except OSError as error:
            self._end(error)
            return
        self._go()

    def _start_again(self) -> None:
        if self._done is not None:
            self.start()

    def stop(self) -> None:
        """The connection is gone; `done` is not called."""
        self._done = None
        self._release()

    def _release(self) -> None:
        sock, self._socket = self._socket, None
        self._parts.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._job is not None:
            # A disk that hangs must not collect the reads of answers that have ended.
            self._job.cancel()
        self._has_read()
        if sock is not None:
            if self._waiting:
                self._loop.remove_writer(sock.fileno())
            sock.close()

    def _end(self, error: BaseException | None) -> None:
        done, self._done = self._done, None
        self._release()
        if done is not None:
            done(error)

    def _go(self) -> None:
        sock = self._socket
        if sock is None:
            return
        turn = TURN
        try:
            while self._parts and turn > 0:
                part = self._parts[0]
                if isinstance(part, FilePart) and not part.ready:
                    self._read_on(part)
                    return
                turn -= self._send(sock)
        except BlockingIOError:
            self._wait(sock)
            return
        except Exception as error:
            self._end(error)
            return
        if self._parts:
            self._loop.call_soon(self._go)
        else:
            self._end(None)

    def _send(self, sock: socket.socket) -> int:
        """Send what is in memory of the next parts, in one call; answers how many bytes went."""
        buffers: list[memoryview] = []
        for part in self._parts:
            buffers.append(part.ready if isinstance(part, FilePart) else part)
            if len(buffers) == MOST_BUFFERS or (isinstance(part, FilePart) and len(buffers[-1]) < part.left):
                break
        sent = left = sock.sendmsg(buffers)
        for buffer in buffers:
            gone = min(left, len(buffer))
            left -= gone
            part = self._parts[0]
            if isinstance(part, FilePart):
                part.sent(gone)
                whole = not part.left
            else:
                self._parts[0] = buffer[gone:]
                whole = gone == len(buffer)
            if not whole:
                break
            self._parts.popleft()
        return sent

    def _wait(self, sock: socket.socket) -> None:
        if self._timer is None:
            if self._blocked(self._in_memory()):
                self._give_up()
            else:
                self._timer = self._loop.call_later(HOLD_SECONDS, self._give_up)
        self._waiting = True
        self._loop.add_writer(sock.fileno(), self._writable)

    def _writable(self) -> None:
        sock = self._socket
        if sock is not None:
            self._waiting = False
            self._loop.remove_writer(sock.fileno())
            self._go()

    def _give_up(self) -> None:
        """The peer takes its time: from here on it is given piece by piece."""
        self._timer = None
        for part in self._parts:
            if isinstance(part, FilePart):
                part.give_up()
        self._blocked(self._in_memory())

    def _in_memory(self) -> int:
        return sum(len(part.ready) if isinstance(part, FilePart) else len(part) for part in self._parts)

    def _read_on(self, part: FilePart) -> None:
        """Go on when the directory's pool has read the next piece; raises what `FilePart.read_on` raises.

        The head of the answer has gone, so that of a disk that hangs nothing can be left out any more: the connection
        is closed, and the client's next fetch is answered without it.
        """

        def has_read(job: Future[bytes]) -> None:
            with contextlib.suppress(RuntimeError):  # the listener has stopped
                self._loop.call_soon_threadsafe(self._go_on, part, job)

        self._job = part.read_on()
        self._late = self._loop.call_later(PATIENCE, lambda: self._end(part.late()))
        self._job.add_done_callback(has_read)

    def _has_read(self) -> None:
        self._job = None
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _go_on(self, part: FilePart, job: Future[bytes]) -> None:
        if self._done is None:
            return
        self._has_read()
        try:
            part.go_on(job.result())
        except BaseException as error:
            self._end(error)
        else:
            self._go()
