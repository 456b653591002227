"""Sending of responses with many records, such that a slow client holds nearly no memory.

The bytes read for a response are sent at once, as many as the client reads; the rest is read once those are sent. The
bytes that the client has not read within HOLD_SECONDS (at once, if the responses of all connections hold too much) are
dropped, and read again from the log, piece by piece, when the client continues to read. That is safe below the high
watermark, where records never change; a segment stays open while it is sent, even if its file is renamed or deleted.
Above the high watermark records change when another node is elected leader: then the node closes the connection of a
follower in the middle of its response. (sendfile was measured too: on the loopback it is slower than the two copies.)
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
from storage_node.model.ids import TopicPartition

Buffer = bytes | bytearray | memoryview

#: How long the read bytes are kept for a client that does not read them.
HOLD_SECONDS = 1.0
#: The bytes of one read for a client that keeps up, and for a slow one.
PIECE, SMALL_PIECE = 2 * 1024 * 1024, 256 * 1024
#: The bytes that are sent before the loop runs other callbacks.
TURN = 4 * 1024 * 1024
#: The buffers of one sendmsg call, which accepts at most 1,024 (IOV_MAX).
MOST_BUFFERS = 512
LONGEST_PAUSE = 0.05
#: Seconds that a response waits for a directory's read, which delays the records of other directories.
PATIENCE = 5.0


class FilePart:
    """A part of a log in a response: its bytes, or their position in the log while they are not read or dropped."""

    __slots__ = ("_check", "_data", "_directory", "_piece", "_region", "_sent", "_tp")

    def __init__(
        self,
        data: bytes,
        region: Region,
        tp: TopicPartition,
        directory: LogDirectory,
        check: Callable[[], None] | None = None,
    ) -> None:
        """`data`: the first bytes of the region, or all. `check` is called after each further read; it raises if the
        file's bytes may have changed.
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
        """The number of bytes that are not sent yet."""
        return len(self._region) - self._sent

    @property
    def ready(self) -> memoryview:
        """The next bytes to send that are in memory."""
        return self._data if self._data is not None else memoryview(b"")

    def sent(self, count: int) -> None:
        """Record that `count` bytes of `ready` are sent."""
        self._sent += count
        self._data = self.ready[count:] or None

    def give_up(self) -> None:
        """Drop the bytes in memory; `read_on` reads them again."""
        self._data = None
        self._piece = SMALL_PIECE

    def read_on(self) -> Future[bytes]:
        """Submit the read of the next piece to the directory's pool; raises StorageError (offline) or RuntimeError."""
        return self._directory.submit(self._read)

    def late(self) -> TimeoutError:
        """Return the error of a piece that is not read within PATIENCE."""
        return TimeoutError(f"log directory {self._directory.name} did not complete a read within {PATIENCE:g} s")

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
        """Set the bytes that `read_on` has read."""
        self._data = memoryview(data)


class Sending:
    """A response that is being sent. Used on the loop only; the connection writes nothing else to the transport."""

    def __init__(
        self,
        transport: asyncio.Transport,
        buffers: Sequence[Buffer | FilePart],
        done: Callable[[BaseException | None], None],
        blocked: Callable[[int], bool] = lambda size: False,
    ) -> None:
        """`blocked` is called with the bytes held in memory for a client that does not read; it returns whether all
        connections hold too much.
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
        """The read that the response waits for."""
        self._late: asyncio.TimerHandle | None = None
        """Ends the response if that read takes too long."""
        self._pause = 0.0005

    @property
    def left(self) -> int:
        """The number of bytes that are not sent yet."""
        return sum(part.left if isinstance(part, FilePart) else len(part) for part in self._parts)

    def start(self) -> None:
        """Send as much as the client reads now, and the rest when it reads more; then call `done(None or error)`."""
        if self._transport.get_write_buffer_size():
            # The transport still has earlier responses to send, and no callback for when it has sent them.
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._loop.call_later(self._pause, self._retry_start)
            return
        # A duplicate, since the loop watches the transport's own descriptor.
        try:
            self._socket = self._transport.get_extra_info("socket").dup()
        except OSError as error:
            self._end(error)
            return
        self._send_parts()

    def _retry_start(self) -> None:
        if self._done is not None:
            self.start()

    def stop(self) -> None:
        """Stop, since the connection is lost; `done` is not called."""
        self._done = None
        self._release()

    def _release(self) -> None:
        sock, self._socket = self._socket, None
        self._parts.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._job is not None:
            # A hung disk must not accumulate the reads of responses that have ended.
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

    def _send_parts(self) -> None:
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
            self._loop.call_soon(self._send_parts)
        else:
            self._end(None)

    def _send(self, sock: socket.socket) -> int:
        """Send the bytes in memory of the next parts, in one call; returns the number of bytes sent."""
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
            self._send_parts()

    def _give_up(self) -> None:
        """Drop the bytes in memory: a slow client gets the rest in small pieces."""
        self._timer = None
        for part in self._parts:
            if isinstance(part, FilePart):
                part.give_up()
        self._blocked(self._in_memory())

    def _in_memory(self) -> int:
        return sum(len(part.ready) if isinstance(part, FilePart) else len(part) for part in self._parts)

    def _read_on(self, part: FilePart) -> None:
        """Continue when the directory's pool has read the next piece; raises what `FilePart.read_on` raises.

        The response's length has been sent, so that the records of a hung disk cannot be left out any more: the
        connection is closed, and the response to the client's next fetch lacks them.
        """

        def has_read(job: Future[bytes]) -> None:
            with contextlib.suppress(RuntimeError):  # the listener has stopped
                self._loop.call_soon_threadsafe(self._continue, part, job)

        self._job = part.read_on()
        self._late = self._loop.call_later(PATIENCE, lambda: self._end(part.late()))
        self._job.add_done_callback(has_read)

    def _has_read(self) -> None:
        self._job = None
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _continue(self, part: FilePart, job: Future[bytes]) -> None:
        if self._done is None:
            return
        self._has_read()
        try:
            part.go_on(job.result())
        except BaseException as error:
            self._end(error)
        else:
            self._send_parts()
