"""What is noted of a copy's truncations is what doing them at once would have made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.model.ids import TopicPartition
from storage_node.move.future import FutureLog

TP = TopicPartition("t", 0)
STEPS = st.lists(st.tuples(st.sampled_from(["truncate", "restart", "start"]), st.integers(0, 12)), max_size=6)


def copy(path: Path, count: int) -> FutureLog:
    made = FutureLog.open(path, TP, LogConfig(segment_bytes=300), directory=str(path.parent))
    for _ in range(count):
        made.log.append_as_leader(build_batch([b"x" * 50]), 0)
    return made


def ends(log: FutureLog) -> tuple[int, int]:
    return log.log_start_offset, log.log_end_offset


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 10), steps=STEPS)
def test_deferred_steps_end_where_the_steps_themselves_do(count: int, steps: Sequence[tuple[str, int]]) -> None:
    with TemporaryDirectory() as root:
        at_once, later = copy(Path(root) / "a", count), copy(Path(root) / "b", count)
        version = later.version
        for what, offset in steps:
            match what:
                case "truncate":
                    at_once.truncate_to(offset)
                    later.defer_truncation(offset)
                case "restart":
                    at_once.truncate_fully(offset)
                    later.defer_restart(offset)
                case _:
                    at_once.follow_start(offset)
                    later.defer_start(offset)
        assert ends(later) == ends(at_once), "they count at once"
        cuts = any(what != "start" for what, _ in steps)
        assert (later.version > version) == cuts
        later.apply_deferred()
        assert not later.deferred and ends(later) == ends(at_once)
        assert later.log.append_as_leader(build_batch([b"y"]), 0).base_offset == ends(at_once)[1]
        at_once.close()
        later.close()
