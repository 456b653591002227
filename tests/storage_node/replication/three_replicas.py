"""Three replicas, the controller's model, and all messages in flight between them, in one thread, at random.

Requests, responses and images are delayed, reordered or lost; a request that its sender gave up may still arrive. Nodes
lose their leases, stop and restart, and lose records while they are not in sync. The replicas run the nodes' own code
from the fetch request on: divergence, truncation, appending, the leader's state, the high watermark, and the
controller's decisions.

Checked after each step: logs that share a record of one offset and leader epoch are equal up to it, records once below
a high watermark are the same in all replicas below theirs, and every member of the controller's ISR has them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.errors import RequestRefused
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.commands import IsrChange
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.offset_lookup import EARLIEST, LATEST
from storage_node.partitions import partition as partition_module
from storage_node.partitions.partition import Partition
from storage_node.ports import ChangeResult
from storage_node.protocol.fetch import handler
from storage_node.protocol.fetch.call import FetchCall, Item
from storage_node.replication import following, leading
from storage_node.replication.fetch_request import FetchRow
from storage_node.replication.following import Followed, Kind, Place
from storage_node.replication.leading import LeaderState
from tests.support.nodes.model_partition import NODES, TOPIC_ID, ModelPartition
from tests.support.nodes.replicated import content

TP = TopicPartition("t", 0)
RAW = bytes(16)
LAG = 2.5
#: The leader epoch before the first record of a log.
UNKNOWN = -1
#: Factors that make events rarer or more frequent per schedule: one gets few images, another few responses.
FACTORS = (0.2, 1.0, 1.0, 2.0)
PACES = (0.03, 0.3, 1.0)
#: Offset -> (leader epoch, the batch without offset and epoch).
Records = dict[int, tuple[int, bytes]]

STEPS = {
    "append": 12, "fetch": 40, "send": 10, "serve": 14, "deliver": 14, "give_up_fetch": 1, "learn": 30, "learn_late": 2,
    "change": 16, "request": 10, "decide": 12, "respond": 8, "give_up_change": 3, "later": 1, "fence": 2, "register": 8,
    "stop": 0.5, "start": 6, "restart": 1.5, "elect": 2, "fail": 1, "repair": 6, "delete": 0.5, "checkpoint": 1,
}  # fmt: skip


class Clock:
    """Replaces `time` in the modules under test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Host:
    """The `LeaderHost` of a node: the schedule sends requests and calls `look` itself."""

    lag: float = LAG
    brokers: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NODES, 1))

    def wants_change(self, state: LeaderState) -> None:
        """Do nothing: a step sends the request."""

    def watch(self, state: LeaderState, due: float) -> None:
        """Do nothing: a step calls `look`."""


@dataclass(eq=False)
class Fetch:
    """A follower's request, and the response once the leader has built it."""

    number: int
    followed: Followed
    leader: int
    broker_epoch: int
    offset: int
    last_epoch: int
    start: int
    row: FetchRow | None = None
    latest: int = -1
    """The leader's log end and log start offset, for a fetch offset out of its range."""
    earliest: int = -1
    given_up: bool = False
    """Whether the connection broke: no response arrives, but the request may."""


@dataclass(eq=False)
class Change:
    """A leader's AlterPartition request, and the response once the controller has built it."""

    number: int
    state: LeaderState
    change: IsrChange
    result: ChangeResult | None = None


class Replica:
    """A node with its replica; `up` or stopped."""

    def __init__(self, number: int, root: Path) -> None:
        self.number = number
        self.path = root / str(number) / "t-0"
        self.path.parent.mkdir()
        self.directory = LogDirectory(self.path.parent, "A")
        self.host = Host()
        self.broker_epoch = 1
        self.mark = 0
        """The high watermark in the checkpoint."""
        self.first = self.known = 0
        """The indexes of the controller's rows that it may learn, and of the one that it learned last."""
        self.up = False
        self.fetch: Fetch | None = None
        self.change: Change | None = None
        self.records: Records = {}
        self.open(None)

    def open(self, row: PartitionImage | None, keeps: int | None = None) -> None:
        """Start with only the records before `keeps`."""
        log = Log.open(self.path, TP, LogConfig(), directory=str(self.path.parent), log_start_offset=self.start)
        if keeps is not None:
            log.truncate_to(max(keeps, log.log_start_offset))
        epoch = row.leader_epoch if row is not None else 0
        mark = min(self.mark, log.log_end_offset)
        self.partition = Partition(
            TP, TOPIC_ID, log, self.directory, leader_epoch=epoch, is_leader=False, high_watermark=mark
        )
        self.partition.host = self.host
        self.followed: Followed | None = None
        self.fetch = self.change = None
        self.up = True

    @property
    def start(self) -> int:
        """Return the log start offset, also of a stopped node."""
        return self.partition.log.log_start_offset if hasattr(self, "partition") else 0

    def close(self) -> None:
        """Stop without flushing."""
        self.partition.log.close(clean=False)
        if (state := self.partition.leading) is not None:
            state.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.fetch = self.change = None
        self.up = False

    def follow(self, row: PartitionImage) -> None:
        """Follow the row's leader, as the node's fetchers decide it."""
        led = row.leader in (-1, self.number) or self.partition.leader_epoch != row.leader_epoch
        place = None if led else Place(row.leader, "localhost", 9, "d", Kind.IN_SYNC, 0)
        if (before := self.followed) is not None:
            if place is not None and before.epoch == row.leader_epoch:
                before.place = place
                return
            before.place = self.followed = self.fetch = None
        if place is not None:
            offset_files = SimpleNamespace(truncate=Partition.truncate_to, restart_at=Partition.restart_at)
            config = SimpleNamespace(fetch=SimpleNamespace(backoff_ms=100))
            node: Any = SimpleNamespace(offset_files=offset_files, config=config)
            self.followed = Followed(node, self.partition, RAW, row.leader_epoch, place)

    def read(self) -> None:
        """Record the log's present content."""
        self.records = {}
        data, at = content(self.partition.log), 0
        while at < len(data):
            offset, length, epoch = struct.unpack_from(">qii", data, at)
            self.records[offset] = epoch, data[at + 16 : at + 12 + length]
            at += 12 + length


class Schedule:
    """Random events at the three replicas."""

    def __init__(self, root: Path, seed: int, clock: Clock) -> None:
        self.dice = random.Random(seed)
        self.weights = [weight * self.dice.choice(FACTORS) for weight in STEPS.values()]
        self.pace = {number: self.dice.choice(PACES) for number in NODES}
        """The probability that a node learns a row: a node that is cut off for long leads on in an old epoch."""
        self.clock = clock
        self.controller = ModelPartition()
        self.rows = [(self.controller.row, self.controller.brokers)]
        """All rows of the controller's images, in order."""
        self.replicas = {number: Replica(number, root) for number in NODES}
        self.fetches: list[Fetch] = []
        self.changes: list[Change] = []
        self.sent = 0
        self.committed: Records = {}
        """Records that were ever below a high watermark."""
        self.acknowledged: list[int] = []
        self.before: dict[tuple[int, int], int] = {}
        """The leader epoch of the record before each record that a leader has appended, by offset and epoch."""
        self.log: list[str] = []
        for number in NODES:
            self.learn_row(number, 0)

    # Events

    def step(self) -> None:
        """Perform one of STEPS at one of the nodes."""
        what = self.dice.choices(list(STEPS), self.weights)[0]
        number = self.dice.choice(self.able(what) or NODES)
        self.log.append(f"{what} {number}")
        getattr(self, what)(number)
        self.pass_time(0.1)
        self.check()

    def able(self, what: str) -> list[int]:
        """Return the nodes at which a step has an effect."""
        if what in ("append", "change", "request", "give_up_change", "delete"):
            return [each.number for each in self.up() if each.partition.is_leader]
        if what in ("fetch", "send", "give_up_fetch"):
            return [each.number for each in self.up() if each.followed is not None]
        if what == "learn":
            return [each.number for each in self.up() if each.known < len(self.rows) - 1]
        if what == "register":
            return [each.number for each in self.up() if each.number not in self.controller.brokers]
        if what == "repair":
            return [each.node for each in self.controller.held.offline]
        return [each.number for each in self.replicas.values() if not each.up] if what == "start" else []

    def append(self, number: int) -> None:
        """Produce with acks=all to a node that leads, or believes so."""
        replica = self.replicas[number]
        if replica.up and replica.partition.is_leader:
            for _ in range(self.dice.randint(1, 2)):
                self.append_one(replica)
            replica.read()

    def append_one(self, replica: Replica) -> None:
        partition = replica.partition
        self.sent += 1
        appended, state = partition.append_for_all(build_batch([b"%d" % self.sent], timestamp=1000), 1000)
        offset, epoch = appended.base_offset, partition.leader_epoch
        assert (offset, epoch) not in self.before, "two records of one offset and leader epoch"
        known = offset > partition.log.log_start_offset
        self.before[offset, epoch] = partition.log.leader_epochs.epoch_for(offset - 1) if known else UNKNOWN

        def done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.acknowledged.append(offset)

        assert state is not None
        state.when_replicated(offset + 1, done)

    def fetch(self, number: int) -> None:
        """Perform a whole fetch, with no other event in between."""
        if (request := self.send(number)) is not None:
            self.serve_one(request)
            self.deliver_one(request)

    def send(self, number: int) -> Fetch | None:
        replica = self.replicas[number]
        followed = replica.followed
        if not replica.up or followed is None or followed.place is None or replica.fetch is not None:
            return None
        if not followed.due(self.clock.now):
            return None
        log = replica.partition.log
        replica.fetch = Fetch(
            number, followed, followed.place.leader, replica.broker_epoch,
            log.log_end_offset, log.latest_epoch, log.log_start_offset,
        )  # fmt: skip
        self.fetches.append(replica.fetch)
        return replica.fetch

    def serve(self, number: int) -> None:
        waiting = [each for each in self.fetches if each.row is None]
        if waiting:
            self.serve_one(self.dice.choice(waiting))

    def serve_one(self, request: Fetch) -> None:
        """Build the leader's response as its listener does."""
        replica = self.replicas[request.leader]
        if not replica.up:
            self.drop(request)
            return
        partition = replica.partition
        item = Item("t", 0, request.followed.epoch, request.offset, 200, RAW, request.last_epoch, request.start)
        call = FetchCall(0, 1, 1000, 0, 0, -1, [item], request.number, request.broker_epoch)
        node: Any = SimpleNamespace(alter_partition_manager=replica.host)
        data = b""
        try:
            partition.check_usable(item.leader_epoch)
            handler._compare(node, call, item, partition, self.clock.now, vouches=False)
            if not item.settled:
                size = self.dice.choice([1, 200, 2000])
                data = partition.fetch(item.offset, size, leader_epoch=item.leader_epoch, to_end=True).data
                item.high_watermark, item.log_start = partition.high_watermark, partition.log.log_start_offset
            if item.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                request.latest = partition.find_offset(LATEST, item.leader_epoch, to_end=True).offset
                request.earliest = partition.find_offset(EARLIEST, item.leader_epoch, to_end=True).offset
        except RequestRefused as error:
            item.error = error.code
        found = memoryview(data), item.diverging
        request.row = FetchRow(RAW, 0, item.error, item.high_watermark, item.log_start, *found)

    def deliver(self, number: int) -> None:
        waiting = [each for each in self.fetches if each.row is not None]
        if waiting:
            self.deliver_one(self.dice.choice(waiting))

    def deliver_one(self, request: Fetch) -> None:
        """Apply the response at the follower, even if it has just been assigned another leader."""
        replica, row = self.replicas[request.number], request.row
        if row is None:
            return
        self.drop(request)
        if replica.up and request.followed.partition is replica.partition and not request.given_up:
            if not request.followed.apply(row, request.offset):
                request.followed.out_of_range(request.latest, request.earliest)
            replica.read()

    def drop(self, request: Fetch) -> None:
        if request in self.fetches:
            self.fetches.remove(request)
        if self.replicas[request.number].fetch is request:
            self.replicas[request.number].fetch = None

    def give_up_fetch(self, number: int) -> None:
        if (request := self.replicas[number].fetch) is not None:
            request.given_up = True
            self.replicas[number].fetch = None

    def learn(self, number: int) -> None:
        """Deliver the next row or the newest, unless the node is cut off."""
        if self.dice.random() > self.pace[number]:
            return
        replica, newest = self.replicas[number], len(self.rows) - 1
        self.learn_row(number, self.dice.choice([newest, *[min(replica.known + 1, newest)] * 3]))

    def learn_late(self, number: int) -> None:
        """Deliver a row that the node may have learned before."""
        self.learn_row(number, self.dice.randint(self.replicas[number].first, len(self.rows) - 1))

    def learn_row(self, number: int, index: int) -> None:
        replica = self.replicas[number]
        if not replica.up:
            return
        row, brokers = self.rows[index]
        if index >= replica.known:
            replica.known = index
            replica.host.brokers.clear()
            replica.host.brokers.update(brokers)
        if replica.partition.assign(row, TOPIC_ID, number, replica.host.brokers):
            replica.follow(row)

    def change(self, number: int) -> None:
        """Perform a whole AlterPartition, with no other event in between."""
        if (request := self.request(number)) is not None:
            self.decide_one(request)
            self.respond_one(request)

    def request(self, number: int) -> Change | None:
        replica = self.replicas[number]
        state = replica.partition.leading if replica.up else None
        if state is None or replica.change is not None or (change := state.change(self.clock.now)) is None:
            return None
        replica.change = Change(number, state, change)
        self.changes.append(replica.change)
        return replica.change

    def decide(self, number: int) -> None:
        waiting = [each for each in self.changes if each.result is None]
        if waiting:
            self.decide_one(self.dice.choice(waiting))

    def decide_one(self, request: Change) -> None:
        request.result = self.controller.alter(request.number, request.change)
        self.publish()

    def respond(self, number: int) -> None:
        waiting = [each for each in self.changes if each.result is not None]
        if waiting:
            self.respond_one(self.dice.choice(waiting))

    def respond_one(self, request: Change) -> None:
        self.changes.remove(request)
        replica = self.replicas[request.number]
        if replica.change is request and request.result is not None:
            replica.change = None
            request.state.answered(request.change, request.result)

    def give_up_change(self, number: int) -> None:
        """Give up waiting for the response; the controller may still receive the request."""
        self.replicas[number].change = None

    def later(self, number: int) -> None:
        self.pass_time(self.dice.choice([1.5, 6.0, 11.0]))

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        for replica in self.up():
            state = replica.partition.leading
            if state is not None and state.due <= self.clock.now:
                state.look(self.clock.now)

    def fence(self, number: int) -> None:
        leader = self.controller.held.leader
        self.controller.fence(leader if leader in NODES and self.dice.random() < 0.5 else number)
        self.publish()

    def register(self, number: int) -> None:
        """Register the node again, in its present state."""
        replica = self.replicas[number]
        if replica.up:
            replica.broker_epoch = self.controller.register(number)
            self.publish()

    def stop(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.up:
            replica.close()
            self.fetches = [each for each in self.fetches if each.row is None or each.number != number]

    def start(self, number: int, *, loses: bool = True) -> None:
        """Restart and register the node; a replica out of sync may have lost records."""
        replica = self.replicas[number]
        if replica.up:
            return
        replica.broker_epoch = self.controller.register(number, restarted=True)
        self.publish()
        keeps = None
        if loses and number not in self.controller.held.isr:
            keeps = self.dice.randint(replica.start, max(replica.records, default=replica.start))
        replica.open(self.rows[replica.known][0], keeps)
        replica.read()
        replica.first = replica.known = len(self.rows) - 1
        self.learn_row(number, replica.first)

    def restart(self, number: int) -> None:
        self.stop(number)
        self.start(number)

    def elect(self, number: int) -> None:
        self.controller.elect()
        self.publish()

    def fail(self, number: int) -> None:
        """Report a replica as unusable to the controller, for a while."""
        if self.controller.held.leader != number:
            self.controller.report(number, "failed")
            self.publish()

    def repair(self, number: int) -> None:
        self.controller.report(number, "")
        self.publish()

    def delete(self, number: int) -> None:
        """Perform a DeleteRecords."""
        partition = self.replicas[number].partition
        if self.replicas[number].up and partition.is_leader:
            upto = self.dice.randint(partition.log.log_start_offset, partition.high_watermark)
            partition.delete_records(upto)
            self.replicas[number].read()

    def checkpoint(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.up:
            replica.mark = replica.partition.high_watermark

    def publish(self) -> None:
        found = self.controller.row, self.controller.brokers
        if found != self.rows[-1]:
            self.rows.append(found)

    def up(self) -> Iterator[Replica]:
        return (replica for replica in self.replicas.values() if replica.up)

    # Invariants

    def check(self) -> None:
        """Check the invariants that hold at any time."""
        for replica in self.up():
            self.check_history(replica)
            mark = replica.partition.high_watermark
            for offset, record in replica.records.items():
                if offset < mark:
                    known = self.committed.setdefault(offset, record)
                    assert known == record, (f"{offset} of {replica.number} was committed as another", self.log)
        for number in self.controller.held.isr:
            replica = self.replicas[number]
            missing = [
                offset
                for offset, record in self.committed.items()
                if offset >= replica.start and replica.records.get(offset) != record
            ]
            assert not missing, (f"{number}, in sync, lacks {missing}", self.log)
        for offset in self.acknowledged:
            assert offset in self.committed, (f"{offset} was acknowledged", self.log)

    def check_history(self, replica: Replica) -> None:
        """Check that records of one offset and leader epoch are equal everywhere, with all records before them."""
        log = replica.partition.log
        assert list(replica.records) == list(range(log.log_start_offset, log.log_end_offset)), self.log
        for offset, (epoch, _) in replica.records.items():
            if offset - 1 in replica.records:
                last = replica.records[offset - 1][0]
                assert self.before[offset, epoch] in (last, UNKNOWN), (f"{offset} of {replica.number}", self.log)

    def finish(self) -> None:
        """Deliver everything and restart all nodes: all replicas are then in sync and equal, and know it."""
        for request in self.fetches.copy():
            self.serve_one(request)
            self.deliver_one(request)
        for change in self.changes.copy():
            self.decide_one(change)
            self.respond_one(change)
        for number in NODES:
            self.give_up_change(number)
            self.start(number, loses=False)
            self.register(number)
            self.repair(number)
        for turn in range(100):
            self.pass_time(0.6)
            for number in NODES:
                self.learn_row(number, len(self.rows) - 1)
                if turn == 0:
                    self.append(number)
                self.fetch(number)
                self.change(number)
            self.check()
            logs = [replica.partition for replica in self.up()]
            ends = {end for each in logs for end in (each.log.log_end_offset, each.high_watermark)}
            if len(ends) == 1 and set(self.controller.held.isr) == set(NODES):
                break
        else:
            raise AssertionError(("they do not come together", self.controller.held, self.log))
        first, *rest = (replica.records for replica in self.up())
        for each in rest:
            assert all(each.get(offset, record) == record for offset, record in first.items())

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.close()
            replica.directory.pool.shutdown()


@contextmanager
def schedule(root: Path, seed: int) -> Iterator[Schedule]:
    """Return three new replicas with their own clock."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (leading, following, partition_module):
            patch.setattr(module, "time", clock)
        patch.setattr(handler, "leader_of", lambda *_: None)
        made = Schedule(root, seed, clock)
        try:
            yield made
        finally:
            made.close()
