"""Produce (key 0), versions 3 to 13: by topic name, from version 13 on by topic id.

The hot path: appends run in the pool of the directory that holds the log, in the order of the connection, after a look
through their records. With acks=all the response then waits, without a thread, until all in-sync replicas have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import is_valid_topic
from storage_node.errors import ErrorCode, RequestRefused, StorageError
from storage_node.log.admission import AT_ONCE, Produced, TakesLong, inspect, inspect_at_once, takes_long
from storage_node.log.config import LogConfig
from storage_node.log_hold import Hold, LogHeld
from storage_node.printable import printable
from storage_node.protocol.codec import MalformedRequest, TooManyElements
from storage_node.protocol.framing import Answer, Connection
from storage_node.protocol.inspectors import Inspection, Inspectors
from storage_node.protocol.leaders import leader_of
from storage_node.protocol.off_loop import ELEMENTS, off_loop
from storage_node.protocol.produce_call import Item, ProduceCall, Rejection, encode, parse
from storage_node.protocol.receiving import CloseConnection
from storage_node.protocol.replicated import Acknowledgements, fail
from storage_node.protocol.request import Request
from storage_node.protocol.topic_ids import same_topic, topic_named
from storage_node.small_first import SLICE_APPENDS, SMALL, SMALL_FIRST
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition

log = logging.getLogger(__name__)

Work = list[tuple[Item, "Partition"]]

#: Look through batches that may unpack to very much, or have very many records or headers. As few as there are
#: processors: more would only take turns. What takes them long goes to threads of its own, so that the compressed
#: batches of other connections wait for milliseconds.
_INSPECTORS = Inspectors(max(2, os.cpu_count() or 2))
_LONG_INSPECTORS = Inspectors(max(2, os.cpu_count() or 2))

#: Seconds of processor time that a directory's thread spends on the appends of one connection before those of others
#: have their turn; and while small produces are under way.
TURN, SHORT_TURN = 0.05, 0.002

#: A directory that hangs must not keep a connection for ever, whatever the client asks for.
LONGEST_WAIT = 60.0


def begin(
    node: Node, requests: Sequence[Request], connection: Connection, behind: CloseConnection | None = None
) -> None:
    """Append what these requests of one connection hold, in order, and answer them.

    They share the way to the disk and back: handing work to another thread costs more than a small append. Those before
    a malformed one are answered before it ends the connection; raises MalformedRequest where it is the first. `behind`:
    why the request that follows these ends the connection.
    """
    calls: list[ProduceCall] = []
    try:
        for request in requests:
            calls.append(parse(request, ELEMENTS - sum(call.elements for call in calls)))
    except TooManyElements:
        task = asyncio.get_running_loop().create_task(_begin_many(node, requests, connection, behind), name="produce")
        _MANY.add(task)
        task.add_done_callback(_MANY.discard)
        return
    except MalformedRequest as error:
        if not calls:
            raise
        requests, behind = requests[: len(calls)], CloseConnection(str(error))
    done = partial(connection.answered_before, error=behind) if behind is not None else None
    jobs: dict[str, Work] = {}
    for call in calls:
        _prepare(node, call, jobs)
    Round(node, requests, calls, connection, done).start(jobs)


#: Requests of many partitions that are being prepared; they are carried out whatever becomes of their connections.
_MANY: set[asyncio.Task[None]] = set()


async def _begin_many(
    node: Node, requests: Sequence[Request], connection: Connection, behind: CloseConnection | None
) -> None:
    """The same for requests that have many partitions: one after the other, parsed and encoded by a thread."""
    answers: list[Answer] = []
    try:
        for place, request in enumerate(requests):
            call, jobs = await off_loop(partial(_read, node, request))
            done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
            last = place == len(requests) - 1
            many = call.elements > ELEMENTS
            Round(node, [request], [call], connection, done.set_result, many=many, last=last).start(jobs)
            del call, jobs, request
            answers += await done
    except MalformedRequest as error:
        connection.answered_before(answers, CloseConnection(str(error)))
    except Exception as error:
        connection.failed(error)
    else:
        if behind is not None:
            connection.answered_before(answers, behind)
        else:
            connection.answered(answers)


def _read(node: Node, request: Request) -> tuple[ProduceCall, dict[str, Work]]:
    """Any thread."""
    call = parse(request)
    jobs: dict[str, Work] = {}
    _prepare(node, call, jobs)
    return call, jobs


def _prepare(node: Node, call: ProduceCall, jobs: dict[str, Work]) -> None:
    """Put what can be appended to its directory's work, and errors to the rest. Any thread."""
    if call.transactional_id is not None:
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        _refuse_all(call, error, "transactions are not offered by this cluster")
    elif call.acks not in (-1, 0, 1):
        _refuse_all(call, ErrorCode.INVALID_REQUIRED_ACKS, f"acks={call.acks}")
    else:
        _sort(node, call, jobs)


def _refuse_all(call: ProduceCall, error: ErrorCode, message: str) -> None:
    for item in call.items:
        item.error, item.message = error, message


def _sort(node: Node, call: ProduceCall, jobs: dict[str, Work]) -> None:
    """Put each item that can be appended to its directory's work."""
    early = node.refused_early
    for item in call.items:
        item.for_all = call.acks == -1
        if item.error:
            continue
        try:
            if item.topic_id:
                item.topic = topic_named(node, item.topic_id)
            partition = node.leader(TopicPartition(item.topic, item.partition))
            if item.topic_id:
                same_topic(partition, item.topic_id)
        except (RequestRefused, StorageError) as error:
            item.error, item.message = error.code, str(error)
            if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                item.leader = leader_of(node, TopicPartition(item.topic, item.partition))
            _note(node, item)
        else:
            if early and (note := early.take(item.topic_id or item.topic, item.partition, item.records)) is not None:
                partition.overtaking.refused_early(note)
            item.heavy = item.records is not None and takes_long(item.records)
            jobs.setdefault(partition.directory.name, []).append((item, partition))


def _note(node: Node, item: Item) -> None:
    """No log was asked about this item: what its producer has sent behind it must not come before it.

    A topic of an invalid name never exists, so that nothing is kept under whatever a client sends as one.
    """
    if item.for_all and (item.topic_id or is_valid_topic(item.topic)):
        node.refused_early.refused(item.topic_id or item.topic, item.partition, item.records)


class Round:
    """Requests that are appended together, from the hand-over to the directories' pools to the answer."""

    def __init__(
        self,
        node: Node,
        requests: Sequence[Request],
        calls: Sequence[ProduceCall],
        connection: Connection,
        done: Callable[[list[Answer]], None] | None = None,
        *,
        many: bool = False,
        last: bool = True,
    ) -> None:
        """`done` takes the answers, by default the connection. `many`: the loop does not go through the partitions.
        `last`: no more of what the connection has begun is behind these requests.
        """
        self._node = node
        self._requests = requests
        self._calls = calls
        self._connection = connection
        self._take = done if done is not None else connection.answered
        self._many = many
        self._last = last
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, Work] = {}
        self._inspections: dict[str, tuple[Inspectors, Inspection]] = {}
        """What is looked through before the work, by the work's directory."""
        self._holds: dict[str, tuple[Hold, Callable[[], None]]] = {}
        """The swaps that work waits for, by the work's directory, and who is called at their ends."""
        self._pauses: dict[str, asyncio.TimerHandle] = {}
        """The pauses between the turns of work, by the work's directory."""
        self._counted = False
        """Whether this is a small produce that is under way."""
        self._timer: asyncio.TimerHandle | None = None
        self._acknowledgements: Acknowledgements | None = None
        self._answered = False

    def start(self, jobs: dict[str, Work]) -> None:
        """Hand the work over; answers at once when there is none."""
        self._waiting = dict(jobs)
        for name, work in jobs.items():
            if len(work) > SMALL and (seconds := SMALL_FIRST.reserve(min(1.0, len(work) / SLICE_APPENDS))):
                self._pauses[name] = self._loop.call_later(seconds, self._go_on, name)
            elif not self._hand_over(name, work):
                del self._waiting[name]
        if not self._waiting:
            # Not at once: the connection would go on from here, one level deeper for every request that waits.
            self._loop.call_soon(self._answer)
            return
        if sum(len(call.items) for call in self._calls) <= SMALL:
            self._counted = True
            SMALL_FIRST.under_way += 1
        seconds = min(call.timeout_ms for call in self._calls) / 1000
        self._timer = self._loop.call_later(min(max(seconds, 0.1), LONGEST_WAIT), self._late)

    def _append(self, name: str, directory: LogDirectory, work: Work) -> None:
        """Runs in the directory's pool."""
        left: Work = []
        hold: Hold | None = None
        try:
            left, hold = _append(self._node, directory, work)
        finally:
            with contextlib.suppress(RuntimeError):  # the listener has stopped
                if left:
                    self._loop.call_soon_threadsafe(self._put_aside, name, left, hold)
                else:
                    self._loop.call_soon_threadsafe(self._done, name)

    def _put_aside(self, name: str, left: Work, hold: Hold | None) -> None:
        """A swap holds a log: no thread waits for that, the rest of the work is handed over again afterwards."""
        if name not in self._waiting:
            return  # answered already
        self._waiting[name] = left

        def released() -> None:
            with contextlib.suppress(RuntimeError):  # the listener has stopped
                self._loop.call_soon_threadsafe(self._go_on, name)

        if hold is None:
            self._pauses[name] = self._loop.call_later(SMALL_FIRST.reserve(), self._go_on, name)
            return
        self._holds[name] = hold, released
        hold.when_released(released)

    def _go_on(self, name: str) -> None:
        self._holds.pop(name, None)
        self._pauses.pop(name, None)
        self._inspections.pop(name, None)
        if (work := self._waiting.get(name)) is not None and not self._hand_over(name, work):
            self._done(name)

    def _hand_over(self, name: str, work: Work) -> bool:
        """Let the directory that has the first partition now append; False where it cannot."""
        directory = work[0][1].directory
        try:
            if heavy := [each for each in work if each[0].heavy]:
                # The whole work waits: what one connection sends is appended in its order.
                unknown = [each for each in heavy if not each[0].long]
                inspectors = _INSPECTORS if unknown else _LONG_INSPECTORS
                batches = [partial(_inspect, item, partition.log.config) for item, partition in unknown or heavy]
                inspection = Inspection(self._connection, batches, partial(self._inspected, name))
                inspectors.submit(inspection)
                self._inspections[name] = inspectors, inspection
            else:
                directory.submit(self._append, name, directory, work)
        except (StorageError, RuntimeError) as error:
            for item, _ in work:
                item.error, item.message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
                _note(self._node, item)
            return False
        return True

    def _inspected(self, name: str) -> None:
        """Runs in a thread for batches that take long."""
        with contextlib.suppress(RuntimeError):  # the listener has stopped
            self._loop.call_soon_threadsafe(self._go_on, name)

    def _done(self, name: str) -> None:
        if self._waiting.pop(name, None) is not None and not self._waiting:
            self._replicate()

    def _replicate(self) -> None:
        """Everything is appended: wait for the followers, where there are any."""
        self._appended()
        items = [item for call in self._calls for item in call.items if item.state is not None]
        if not items:
            self._answer()
            return
        self._acknowledgements = Acknowledgements(items, self._answer)
        if self._many:
            self._later(self._acknowledgements.begin_in_turns())
        else:
            self._acknowledgements.begin()
        if not self._answered and self._last:
            # Followers that are slow must not fill the memory for requests, theirs among them.
            self._requests = [replace(request, frame=b"") for request in self._requests]
            for item in (item for call in self._calls for item in call.items):
                item.records = item.inspected = None
            self._connection.appended()

    def _appended(self) -> None:
        if self._counted:
            self._counted = False
            SMALL_FIRST.under_way -= 1

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name="produce")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _late(self) -> None:
        """A directory hangs: what it was given may or may not be appended, as the error says.

        What it has not begun with it will not append; nor does it keep these records in memory any longer. Or followers
        are late with what is appended.
        """
        late, self._waiting = self._waiting, {}
        for inspectors, inspection in self._inspections.values():
            inspectors.drop(inspection)
        if self._many:
            self._later(self._give_up_many(late))
            return
        if self._acknowledgements is not None:
            self._acknowledgements.give_up()
        self._give_up(late)
        self._answer()

    async def _give_up_many(self, late: dict[str, Work]) -> None:
        if self._acknowledgements is not None:
            await self._acknowledgements.give_up_in_turns()
        await off_loop(partial(self._give_up, late))
        self._answer()

    def _give_up(self, late: dict[str, Work]) -> None:
        """Any thread."""
        if self._acknowledgements is None:
            for item in (item for call in self._calls for item in call.items if item.state is not None):
                if not item.error and item.state is not None and item.state.high_watermark < item.next_offset:
                    fail(item, ErrorCode.REQUEST_TIMED_OUT)
        for name, work in late.items():
            for place, (item, partition) in enumerate(work):
                work[place] = (replace(item, records=None, inspected=None), partition)
                item.error, item.message = ErrorCode.REQUEST_TIMED_OUT, "the log directory did not answer in time"
                _note(self._node, item)
                if name in self._inspections:
                    # The thread that looks through its copy of the records holds the item itself.
                    item.records = item.inspected = None

    def _answer(self) -> None:
        if self._answered:
            return
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        for hold, released in self._holds.values():
            hold.forget(released)
        for pause in self._pauses.values():
            pause.cancel()
        self._appended()
        if self._many:
            self._later(self._answer_many())
        else:
            self._give(*self._encoded())

    async def _answer_many(self) -> None:
        self._give(*await off_loop(self._encoded))

    def _encoded(self) -> tuple[list[Answer], list[Item]]:
        """The answers, and the failures that end the connection. Any thread."""
        if self._acknowledgements is not None:
            self._name_leaders()
        answers: list[Answer] = []
        failures: list[Item] = []
        for request, call in zip(self._requests, self._calls, strict=True):
            if call.acks != 0:
                answers.append([request.head(), encode(request.version, call.items)])
                continue
            failed = next((item for item in call.items if item.error), None)
            if failed is not None:
                failures.append(failed)
        # Directories that are late hold this round, but no requests; and where there are many partitions it is this
        # thread that frees them.
        self._requests, self._calls, self._acknowledgements = (), (), None
        return answers, failures

    def _give(self, answers: list[Answer], failures: list[Item]) -> None:
        for failed in failures:
            self._end_connection(failed)
        self._take(answers)

    def _end_connection(self, failed: Item) -> None:
        """A producer that waits for no answers learns in no other way, as with Apache Kafka, that it is to look for
        the leaders anew: what else is answered together with this goes out first.
        """
        log.info(
            "connection from %s closed: produce with acks=0 to %s-%d failed: %s",
            self._connection.peer,
            printable(failed.topic),
            failed.partition,
            printable(failed.message or ErrorCode(failed.error).name),
        )
        self._connection.finish()

    def _name_leaders(self) -> None:
        for item in (item for call in self._calls for item in call.items):
            if item.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and item.leader is None:
                item.leader = leader_of(self._node, TopicPartition(item.topic, item.partition))


def _inspect(item: Item, config: LogConfig) -> None:
    """Look through an item's records. Runs in a thread for batches that take long."""
    if item.records is None:
        return
    found: Produced | Rejection
    try:
        # A copy, as far as it has a bound: the request is not held by what goes on after its response.
        records = bytes(item.records) if len(item.records) <= config.max_message_bytes else item.records
        found = inspect(records, config, None if item.long else AT_ONCE)
    except TakesLong:
        item.long = True
        return
    except RequestRefused as error:
        found = Rejection(error.code, error.message)
    except Exception as error:
        log.exception("the records for %s-%d could not be looked through", item.topic, item.partition)
        found = Rejection(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    item.heavy = False
    if (whole := item.records) is not None:
        item.inspected = found._replace(records=whole) if isinstance(found, Produced) else found


def _inspected(item: Item, records: memoryview, partition: Partition) -> Produced:
    """What is in an item's records; raises RequestRefused, TakesLong."""
    match item.inspected:
        case None:
            return inspect_at_once(records, partition.log.config)
        case Rejection(code, message):
            raise RequestRefused(message, code)
        case found:
            return found


def _append(node: Node, directory: LogDirectory, work: Work) -> tuple[Work, Hold | None]:
    """Runs in the directory's pool; answers what cannot be appended now, in its order, and which swap is in the way.

    A partition that was moved goes to the pool of its new directory. What takes long to look through comes back as
    heavy, and what is left after a turn comes back as well: both before what waits for a swap.
    """
    left: Work = []
    held: dict[Partition, Hold | None] = {}
    begun = time.thread_time() if len(work) > 1 else 0.0
    for place, (item, partition) in enumerate(work):
        records = item.records
        if not records:
            item.error, item.message = ErrorCode.INVALID_RECORD, "no record batch"
            continue
        if partition in held:
            left.append((item, partition))
            continue
        inspected = partial(_inspected, item, records, partition)
        try:
            if item.for_all:
                appended, item.state = partition.append_for_all(records, within=directory, inspected=inspected)
            else:
                appended = partition.append(records, within=directory, inspected=inspected)
        except TakesLong:
            item.heavy = item.long = True
            return _rest(work[place:], held, left)
        except LogHeld as error:
            held[partition] = error.hold
            left.append((item, partition))
            continue
        except StorageError as error:
            node.storage_failed(error, partition.tp)
            item.error, item.message = error.code, str(error)
        except RequestRefused as error:
            item.error, item.message = error.code, error.message
        except Exception as error:
            log.exception("append to %s-%d failed", item.topic, item.partition)
            item.error, item.message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
        else:
            item.base_offset, item.next_offset = appended.base_offset, appended.last_offset + 1
            item.append_time = appended.log_append_time
            item.log_start = partition.log.log_start_offset
        if not begun or place + 1 == len(work):
            continue
        if time.thread_time() - begun > (SHORT_TURN if SMALL_FIRST.under_way else TURN):
            return _rest(work[place + 1 :], held, left)
    return left, held[left[0][1]] if left else None


def _rest(rest: Work, held: dict[Partition, Hold | None], left: Work) -> tuple[Work, Hold | None]:
    """What was not tried yet, before what waits for a swap; each partition's items keep their order."""
    free = [each for each in rest if each[1] not in held]
    left = left + [each for each in rest if each[1] in held]
    return free + left, None if free or not left else held[left[0][1]]
