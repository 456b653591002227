"""The log of a copy: every change waits for `writing`, and nothing else does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.log.blocks import Walked
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.move.future import FutureLog

TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=300)


def filled(path: Path) -> Log:
    log = Log.open(path, TP, CONFIG, directory=str(path.parent))
    for number in range(8):
        log.append_as_leader(build_batch([b"%d" % number * 100]), 0)
    return log


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[FutureLog]:
    with_records = filled(tmp_path / "t-0.move")
    with_records.close()
    made = FutureLog.open(tmp_path / "t-0.move", TP, CONFIG, directory=str(tmp_path))
    yield made
    made.close(clean=False)


def ends_while_held(copy: FutureLog, call: Callable[[FutureLog], object], seconds: float) -> bool:
    """Return whether the call ends within so many seconds, while another thread holds `writing`."""
    thread = threading.Thread(target=call, args=(copy,), daemon=True)
    with copy.writing:
        thread.start()
        thread.join(seconds)
        ended = not thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()
    return ended


CHANGES: dict[str, Callable[[FutureLog], object]] = {
    "begin": lambda copy: copy.begin(None, 8),
    "write": lambda copy: copy.write(memoryview(b"a part of a batch"), Walked()),
    "cut": lambda copy: copy.cut(),
    "truncate": lambda copy: copy.truncate_to(5),
    "truncate fully": lambda copy: copy.truncate_fully(0),
    "advance the start": lambda copy: copy.advance_log_start(2),
    "follow the start": lambda copy: copy.follow_start(2),
    "close": lambda copy: copy.close(clean=False),
}

OTHERS: dict[str, Callable[[FutureLog], object]] = {
    "read": lambda copy: copy.read(0, 1),
    "ends": lambda copy: (copy.log_start_offset, copy.log_end_offset, copy.size),
    "flush": lambda copy: copy.flush(),
    "defer a truncation": lambda copy: copy.defer_truncation(3),
    "defer a restart": lambda copy: copy.defer_restart(3),
    "defer a start": lambda copy: copy.defer_start(3),
}


@pytest.mark.parametrize("what", CHANGES)
def test_change_waits_for_writing(copy: FutureLog, what: str) -> None:
    assert not ends_while_held(copy, CHANGES[what], 0.05)


def test_applying_what_was_deferred_and_carrying_history_wait_for_writing(copy: FutureLog, tmp_path: Path) -> None:
    source = filled(tmp_path / "t-0")
    assert not ends_while_held(copy, lambda copy: copy.carry_history(source), 0.05)
    copy.defer_truncation(4)
    assert not ends_while_held(copy, lambda copy: copy.apply_deferred(), 0.05)
    assert not copy.deferred and copy.log_end_offset == 4
    source.close(clean=False)


@pytest.mark.parametrize("what", OTHERS)
def test_replicas_threads_and_readers_do_not_wait_for_writing(copy: FutureLog, what: str) -> None:
    assert ends_while_held(copy, OTHERS[what], 10)


@pytest.mark.parametrize("offset", [7, 8])
def test_bytes_of_a_partial_batch_are_cut_off_before_the_copy_is_truncated(
    copy: FutureLog, tmp_path: Path, offset: int
) -> None:
    """Also where nothing is left to truncate: the rest of that batch was read before the truncation."""
    source = filled(tmp_path / "t-0")
    copy.write(memoryview(b"a part of a batch" * 100), Walked())
    assert copy.log_end_offset == 8
    copy.truncate_to(offset)
    source.truncate_to(offset)
    ours, theirs = ({file.name: file.read_bytes() for file in log.path.glob("*.log")} for log in (copy, source))
    assert ours == theirs
    source.close(clean=False)
