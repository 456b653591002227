"""Produce (key 0), versions 3 to 13: by topic name, from version 13 on by topic id.

The hot path: the pool of the log's directory appends the batches in the connection's order, after the validation of
their records. With acks=all the response then waits, without blocking a thread, until all in-sync replicas have them.
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
from typing import TYPE_CHECKING, Any, Protocol

from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import is_valid_topic
from storage_node.errors import RequestRefused, StorageError, UnknownProducer
from storage_node.log.admission import AT_ONCE, Produced, TakesLong, inspect, inspect_at_once, takes_long
from storage_node.log.config import LogConfig
from storage_node.log.rejected_first_batches import RejectedFirstBatches
from storage_node.log_hold import Hold, LogHeld
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.printable import printable
from storage_node.protocol.host import ReplicaHost
from storage_node.protocol.leaders import leader_of
from storage_node.protocol.network.framing import Answer, Connection
from storage_node.protocol.network.off_loop import ELEMENTS, off_loop
from storage_node.protocol.network.receiving import CloseConnection
from storage_node.protocol.produce.acknowledgements import Acknowledgements, fail
from storage_node.protocol.produce.call import Item, ProduceCall, Rejection, encode, parse
from storage_node.protocol.produce.inspectors import Inspection, Inspectors
from storage_node.protocol.request import Request
from storage_node.protocol.topic_ids import same_topic, topic_named
from storage_node.small_first import SLICE_APPENDS, SMALL, SMALL_FIRST
from storage_node.wire.codec import MalformedRequest, TooManyElements

if TYPE_CHECKING:
    from storage_node.partitions.partition import Partition

log = logging.getLogger(__name__)

Work = list[tuple[Item, "Partition"]]

#: Threads that validate batches which may decompress to very many bytes, or have very many records or headers; as many
#: as processors, since more would only share these. Batches that prove expensive move to the second pool, so that the
#: compressed batches of other connections wait for milliseconds.
_INSPECTORS = Inspectors(max(2, os.cpu_count() or 2))
_LONG_INSPECTORS = Inspectors(max(2, os.cpu_count() or 2))

#: Seconds of processor time that a directory's thread spends on the appends of a connection before it yields to
#: others; and the same while small produces are under way.
TURN, SHORT_TURN = 0.05, 0.002

#: Seconds. A hung directory must not block a connection for ever, whatever the request's timeout.
LONGEST_WAIT = 60.0


class ProduceHost(ReplicaHost, Protocol):
    """The node, as the produce requests see it."""

    @property
    def rejected_first_batches(self) -> RejectedFirstBatches: ...


def begin(
    node: ProduceHost, requests: Sequence[Request], connection: Connection, behind: CloseConnection | None = None
) -> None:
    """Append the records of these requests of one connection, in order, and send their responses.

    The requests share the hand-over to the directories' threads, which costs more than a small append. If a request is
    malformed, the node sends the responses of those before it and closes the connection; raises MalformedRequest if it
    is the first. `behind`: why the request that follows these closes the connection.
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


#: The tasks of requests with many partitions, which finish even if their connections close.
_MANY: set[asyncio.Task[None]] = set()


async def _begin_many(
    node: ProduceHost, requests: Sequence[Request], connection: Connection, behind: CloseConnection | None
) -> None:
    """Do the same for requests with many partitions: one after the other, decoded and encoded by a thread."""
    responses: list[Answer] = []
    try:
        for place, request in enumerate(requests):
            call, jobs = await off_loop(partial(_read, node, request))
            done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
            last = place == len(requests) - 1
            many = call.elements > ELEMENTS
            Round(node, [request], [call], connection, done.set_result, many=many, last=last).start(jobs)
            del call, jobs, request
            responses += await done
    except MalformedRequest as error:
        connection.answered_before(responses, CloseConnection(str(error)))
    except Exception as error:
        connection.failed(error)
    else:
        if behind is not None:
            connection.answered_before(responses, behind)
        else:
            connection.answered(responses)


def _read(node: ProduceHost, request: Request) -> tuple[ProduceCall, dict[str, Work]]:
    """Decode and prepare a request; any thread may call it."""
    call = parse(request)
    jobs: dict[str, Work] = {}
    _prepare(node, call, jobs)
    return call, jobs


def _prepare(node: ProduceHost, call: ProduceCall, jobs: dict[str, Work]) -> None:
    """Add the items that can be appended to their directories' work, and set the errors of the others.

    Any thread may call it.
    """
    if call.transactional_id is not None:
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        _refuse_all(call, error, "This cluster does not support transactions.")
    elif call.acks not in (-1, 0, 1):
        _refuse_all(call, ErrorCode.INVALID_REQUIRED_ACKS, f"acks={call.acks}")
    else:
        _add_work(node, call, jobs)


def _refuse_all(call: ProduceCall, error: ErrorCode, message: str) -> None:
    for item in call.items:
        item.error, item.message = error, message


def _add_work(node: ProduceHost, call: ProduceCall, jobs: dict[str, Work]) -> None:
    """Add the items that can be appended to their directories' work."""
    early = node.rejected_first_batches
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
            _record_rejected(node, item)
        else:
            if early and (note := early.take(item.topic_id or item.topic, item.partition, item.records)) is not None:
                partition.rejections.refused_early(note)
            item.heavy = item.records is not None and takes_long(item.records)
            jobs.setdefault(partition.directory.name, []).append((item, partition))


def _record_rejected(node: ProduceHost, item: Item) -> None:
    """Record an acks=all item that was rejected before its log: the producer's next batches must not overtake it.

    Nothing is recorded for an invalid topic name, since such a topic never exists.
    """
    if item.for_all and (item.topic_id or is_valid_topic(item.topic)):
        node.rejected_first_batches.refused(item.topic_id or item.topic, item.partition, item.records)


class Round:
    """Requests that are appended together, from the hand-over to the directories' pools to the responses."""

    def __init__(
        self,
        node: ProduceHost,
        requests: Sequence[Request],
        calls: Sequence[ProduceCall],
        connection: Connection,
        done: Callable[[list[Answer]], None] | None = None,
        *,
        many: bool = False,
        last: bool = True,
    ) -> None:
        """`done` is called with the responses, by default the connection's `answered`. `many`: the loop must not
        iterate over the partitions. `last`: the connection has begun no further request after these.
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
        """The validations that precede the work, by the work's directory."""
        self._holds: dict[str, tuple[Hold, Callable[[], None]]] = {}
        """The swaps that work waits for, with the callbacks at their ends, by the work's directory."""
        self._pauses: dict[str, asyncio.TimerHandle] = {}
        """The pauses between the slices of work, by the work's directory."""
        self._counted = False
        """Whether this round is counted as a small produce under way."""
        self._timer: asyncio.TimerHandle | None = None
        self._acknowledgements: Acknowledgements | None = None
        self._responded = False

    def start(self, jobs: dict[str, Work]) -> None:
        """Hand the work over to the directories; without work, respond in the loop's next iteration."""
        self._waiting = dict(jobs)
        for name, work in jobs.items():
            if len(work) > SMALL and (seconds := SMALL_FIRST.reserve(min(1.0, len(work) / SLICE_APPENDS))):
                self._pauses[name] = self._loop.call_later(seconds, self._resume, name)
            elif not self._hand_over(name, work):
                del self._waiting[name]
        if not self._waiting:
            # Scheduled, since the connection begins its next request in the callback: the stack would grow with each.
            self._loop.call_soon(self._respond)
            return
        if sum(len(call.items) for call in self._calls) <= SMALL:
            self._counted = True
            SMALL_FIRST.under_way += 1
        seconds = min(call.timeout_ms for call in self._calls) / 1000
        self._timer = self._loop.call_later(min(max(seconds, 0.1), LONGEST_WAIT), self._late)

    def _append(self, name: str, directory: LogDirectory, work: Work) -> None:
        """Append a directory's work. Runs in the directory's pool."""
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
        """Hand the rest of the work over again once the swap that holds a log has ended, or after a pause."""
        if name not in self._waiting:
            return  # the response has been sent
        self._waiting[name] = left

        def released() -> None:
            with contextlib.suppress(RuntimeError):  # the listener has stopped
                self._loop.call_soon_threadsafe(self._resume, name)

        if hold is None:
            self._pauses[name] = self._loop.call_later(SMALL_FIRST.reserve(), self._resume, name)
            return
        self._holds[name] = hold, released
        hold.when_released(released)

    def _resume(self, name: str) -> None:
        self._holds.pop(name, None)
        self._pauses.pop(name, None)
        self._inspections.pop(name, None)
        if (work := self._waiting.get(name)) is not None and not self._hand_over(name, work):
            self._done(name)

    def _hand_over(self, name: str, work: Work) -> bool:
        """Submit the work to the current directory of its first partition; returns False if that fails."""
        directory = work[0][1].directory
        try:
            if heavy := [each for each in work if each[0].heavy]:
                # The whole work waits: the batches of a connection are appended in its order.
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
                _record_rejected(self._node, item)
            return False
        return True

    def _inspected(self, name: str) -> None:
        """Resume the work after its validation. Runs in a thread for expensive batches."""
        with contextlib.suppress(RuntimeError):  # the listener has stopped
            self._loop.call_soon_threadsafe(self._resume, name)

    def _done(self, name: str) -> None:
        if self._waiting.pop(name, None) is not None and not self._waiting:
            self._replicate()

    def _replicate(self) -> None:
        """Wait until the followers have replicated the appended records, if acks=all requires it."""
        self._appended()
        items = [item for call in self._calls for item in call.items if item.state is not None]
        if not items:
            self._respond()
            return
        self._acknowledgements = Acknowledgements(items, self._respond)
        if self._many:
            self._later(self._acknowledgements.begin_in_turns())
        else:
            self._acknowledgements.begin()
        if not self._responded and self._last:
            # Requests that wait for slow followers must not fill the memory for requests.
            self._requests = [request._replace(frame=b"") for request in self._requests]
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
        """Respond with REQUEST_TIMED_OUT: a directory hangs, or followers have not replicated the records in time.

        The records that a directory has begun to append may or may not be in the log. It does not append the others,
        nor keep them in memory.
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
        self._respond()

    async def _give_up_many(self, late: dict[str, Work]) -> None:
        if self._acknowledgements is not None:
            await self._acknowledgements.give_up_in_turns()
        await off_loop(partial(self._give_up, late))
        self._respond()

    def _give_up(self, late: dict[str, Work]) -> None:
        """Set the errors of the unfinished items; any thread may call it."""
        if self._acknowledgements is None:
            for item in (item for call in self._calls for item in call.items if item.state is not None):
                if not item.error and item.state is not None and item.state.high_watermark < item.next_offset:
                    fail(item, ErrorCode.REQUEST_TIMED_OUT)
        for name, work in late.items():
            for place, (item, partition) in enumerate(work):
                work[place] = (replace(item, records=None, inspected=None), partition)
                item.error, item.message = ErrorCode.REQUEST_TIMED_OUT, "the log directory did not respond in time"
                _record_rejected(self._node, item)
                if name in self._inspections:
                    # The thread that validates the records has its own copy of them, but refers to this item.
                    item.records = item.inspected = None

    def _respond(self) -> None:
        if self._responded:
            return
        self._responded = True
        if self._timer is not None:
            self._timer.cancel()
        for hold, released in self._holds.values():
            hold.forget(released)
        for pause in self._pauses.values():
            pause.cancel()
        self._appended()
        if self._many:
            self._later(self._respond_many())
        else:
            self._send(*self._encoded())

    async def _respond_many(self) -> None:
        self._send(*await off_loop(self._encoded))

    def _encoded(self) -> tuple[list[Answer], list[Item]]:
        """Return the responses, and the acks=0 failures that close the connection; any thread may call it."""
        if self._acknowledgements is not None:
            self._name_leaders()
        responses: list[Answer] = []
        failures: list[Item] = []
        for request, call in zip(self._requests, self._calls, strict=True):
            if call.acks != 0:
                responses.append([request.head(), encode(request.version, call.items)])
                continue
            failed = next((item for item in call.items if item.error), None)
            if failed is not None:
                failures.append(failed)
        # A late directory still refers to this round, which must not keep the requests in memory. This thread frees
        # them, not the loop, since they may have many partitions.
        self._requests, self._calls, self._acknowledgements = (), (), None
        return responses, failures

    def _send(self, responses: list[Answer], failures: list[Item]) -> None:
        for failed in failures:
            self._end_connection(failed)
        self._take(responses)

    def _end_connection(self, failed: Item) -> None:
        """Close the connection after a failed acks=0 produce, once the pending responses are sent.

        As with Apache Kafka, this is how a producer with acks=0 learns that it must refresh its metadata.
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
    """Validate an item's records. Runs in a thread for expensive batches."""
    if item.records is None:
        return
    found: Produced | Rejection
    try:
        # A copy, if its size is valid: the validation may outlast the response and must not keep the request in memory.
        records = bytes(item.records) if len(item.records) <= config.max_message_bytes else item.records
        found = inspect(records, config, None if item.long else AT_ONCE)
    except TakesLong:
        item.long = True
        return
    except RequestRefused as error:
        found = Rejection(error.code, error.message)
    except Exception as error:
        log.exception("the validation of records for %s-%d failed", item.topic, item.partition)
        found = Rejection(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    item.heavy = False
    if (whole := item.records) is not None:
        item.inspected = found._replace(records=whole) if isinstance(found, Produced) else found


def _inspected(item: Item, records: memoryview, partition: Partition) -> Produced:
    """Return the validated records of an item; raises RequestRefused, TakesLong."""
    match item.inspected:
        case None:
            return inspect_at_once(records, partition.log.config)
        case Rejection(code, message):
            raise RequestRefused(message, code)
        case found:
            return found


def _append(node: ProduceHost, directory: LogDirectory, work: Work) -> tuple[Work, Hold | None]:
    """Append a directory's work; returns the items that remain, in order, and the swap that they wait for, if any.

    Runs in the directory's pool. The items that remain are those of a held log (a partition that a swap has moved is
    appended in the pool of its new directory), and before them those from the first expensive batch on (marked as
    `heavy`), or those after the end of the thread's time slice.
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
            if isinstance(error, UnknownProducer):
                # Without it the Java client only retries, and does not begin a new producer epoch.
                item.log_start = partition.log.log_start_offset
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
    """Return the untried items before those that wait for a swap; each partition's items keep their order."""
    free = [each for each in rest if each[1] not in held]
    left = left + [each for each in rest if each[1] in held]
    return free + left, None if free or not left else held[left[0][1]]
