"""Starts the node on what a crash left, and says what is wrong with it. Runs in a process of its own.

The node has to come up by itself, with every record that was promised, one replica of each partition, nothing partial
served; moves go on to their end; a second start finds the same.
"""

from __future__ import annotations

import faulthandler
import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_node.directories.names import replica_name
from storage_node.log.batches.batch import headers, verify
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.partitions.partition import Partition
from tests.crash import ledger
from tests.crash.driver import PARTITIONS, PROCESSES, die_with_parent
from tests.crash.ledger import Key
from tests.crash.subject import TOPIC, Subject
from tests.support.nodes.node_harness import until

VERDICT, STACKS = "verdict", "stacks"


@dataclass(slots=True)
class Seen:
    """All that a started node has: batches by offset (their crc), ends, and where each replica is."""

    batches: dict[Key, dict[int, int]] = field(default_factory=dict)
    ends: dict[Key, int] = field(default_factory=dict)
    places: dict[str, Any] = field(default_factory=dict)


def judge(paths: Sequence[str], folder: Path, power: bool = False, seconds: float = 120.0) -> None:
    """Raise AssertionError for whatever is wrong; afterwards the ledger holds what was found.

    `power`: only what was flushed had to survive.
    """
    (folder / VERDICT).unlink(missing_ok=True)
    process = PROCESSES.Process(target=_main, args=(list(paths), folder, power, seconds - 5))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"the node that was started to be judged hangs:\n{(folder / STACKS).read_text()}")
    problem = (folder / VERDICT).read_text() if (folder / VERDICT).exists() else f"exit code {process.exitcode}"
    assert not problem, problem


def _main(paths: list[str], folder: Path, power: bool, seconds: float) -> None:
    die_with_parent()
    logging.disable(logging.CRITICAL)
    problem = ""
    with (folder / STACKS).open("w") as stacks:
        faulthandler.dump_traceback_later(seconds, file=stacks)
        try:
            _judge(paths, folder, power)
        except BaseException:
            problem = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
    (folder / VERDICT).write_text(problem)


def _judge(paths: list[str], folder: Path, power: bool) -> None:
    promised = ledger.read(folder)
    first = _look(paths, folder)
    check(promised, first, power)
    again = _look(paths, folder)
    assert again == first, f"a second start finds something else:\n{first.places}\n{again.places}"
    last = _finish(paths, folder)
    for key, batches in first.batches.items():
        # What was deleted may have come back with a power cut, and goes for good with the copy, which knew of it.
        start = promised.starts.get(key, 0)
        lost = [at for at, crc in batches.items() if at >= start and last.batches[key].get(at) != crc]
        assert not lost, f"{key}: {lost} were lost after the start"
    once_more = _look(paths, folder)
    assert once_more == last, f"a start after all moves ended changes something:\n{last.places}\n{once_more.places}"
    # What the first start found it had from its disks, which makes that as good as flushed; what came after it did not.
    ledger.begin_again(folder, last.batches, first.ends, promised.gone)


def check(promised: ledger.Promises, seen: Seen, power: bool) -> None:
    """What was promised against what is there."""
    for key, batches in promised.acknowledged.items():
        if key[0] in promised.gone:
            continue
        found = seen.batches.get(key, {})
        upto = promised.flushed.get(key, 0) if power else max(batches) + 1
        start = promised.starts.get(key, 0)
        for offset, crc in batches.items():
            if start <= offset < upto:
                assert found.get(offset) == crc, f"{key}: the record at {offset} (all below {upto} is promised) is lost"


def _look(paths: list[str], folder: Path) -> Seen:
    """Start, wait until node and controller agree, note everything, and end without a clean stop."""
    subject = Subject(paths, folder)
    subject.controller.hold_moves = True
    subject.start()
    try:
        return _seen(subject)
    finally:
        subject.stop(clean=False)
        subject.controller.close()


def _finish(paths: list[str], folder: Path) -> Seen:
    """Start, bring the moves to their end, append, and look."""
    subject = Subject(paths, folder)
    subject.start()
    try:
        _settle(subject)
        subject.finish()
        subject.clear()
        if TOPIC not in subject.controller.image.topics:
            subject.create_topic(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            end = subject.replica(partition)
            assert end is not None
            at = end.log.log_end_offset
            assert subject.append(partition, b"after the crash"), "a replica takes no records any more"
            assert end.log.log_end_offset == at + 1
        subject.settle()
        return _seen(subject)
    finally:
        subject.stop(clean=False)
        subject.controller.close()


def _settle(subject: Subject) -> None:
    node = subject.node
    offline = [(d.name, d.failure) for d in node.dirs.directories if not d.online]
    assert not offline, f"directories are offline: {offline}"
    subject.settle()
    assert not node.replicas.offline, f"replicas are offline: {node.replicas.offline}"


def _seen(subject: Subject) -> Seen:
    _settle(subject)
    node, image = subject.node, subject.controller.image
    wanted = {TopicPartition(t.name, p.index) for t in image.topics.values() for p in t.partitions}
    until(lambda: set(node.replicas.served) == wanted, 60, f"served: {sorted(node.replicas.served)}, wanted: {wanted}")
    seen = Seen()
    for tp, partition in sorted(node.replicas.served.items()):
        assert partition.topic_id == image.topics[tp.topic].id
        _places(subject, tp, partition, seen)
        key = (partition.topic_id, tp.partition)
        seen.batches[key] = read(partition.log)
        seen.ends[key] = partition.log.log_end_offset
    return seen


def _places(subject: Subject, tp: TopicPartition, partition: Partition, seen: Seen) -> None:
    """Exactly one directory has it, the one that the node serves."""
    current = [path for path in subject.paths if (Path(path) / replica_name(tp)).is_dir()]
    assert current == [partition.directory.name], f"{tp} is served from {partition.directory.name}, stands in {current}"
    assert partition.log.path == partition.directory.path / replica_name(tp)
    log = partition.log
    seen.places[str(tp)] = [partition.directory.name, partition.generation, log.log_start_offset, log.log_end_offset]


def read(log: Log) -> dict[int, int]:
    """All batches by their offset, each checked, without a gap."""
    found: dict[int, int] = {}
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = log.read(at, 1 << 20)
        assert data.data, f"{log.tp}: nothing at {at}, although it ends at {log.log_end_offset} only"
        for position, header in headers(data.data):
            verify(data.data, position, header)
            # The log may start in the middle of its first batch.
            first = at == log.log_start_offset and header.base_offset < at < header.next_offset
            assert first or header.base_offset == at, f"{log.tp}: {header.base_offset} comes where {at} should be"
            found[at] = header.crc
            at = header.next_offset
    return found
