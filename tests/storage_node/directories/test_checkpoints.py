"""Kafka's offset checkpoint files."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node import failpoints
from storage_node.directories import atomic, checkpoints
from storage_node.directories.checkpoints import OffsetCheckpoint
from storage_node.directories.errors import MalformedCheckpoint
from storage_node.errors import CheckpointIOError
from storage_node.model.ids import TopicPartition

GOLDEN = Path(__file__).parents[2] / "golden" / "directories" / "offset-checkpoint"
OFFSETS = {TopicPartition("orders", 0): 1234567890123, TopicPartition("a.b-c_d", 0): 0, TopicPartition("orders", 12): 7}

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def checkpoint(tmp_path: Path) -> OffsetCheckpoint:
    return OffsetCheckpoint(tmp_path, checkpoints.RECOVERY_POINTS)


def test_bytes_are_kafkas() -> None:
    assert checkpoints.encode(OFFSETS) == GOLDEN.read_bytes()
    assert checkpoints.decode(GOLDEN.read_bytes()) == OFFSETS


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.text("ab.-_9", min_size=1, max_size=9), st.integers(0, 2**31 - 1)),
        st.integers(0, 2**63 - 1),
    )
)
def test_what_is_written_is_read(offsets: dict[TopicPartition, int]) -> None:
    assert checkpoints.decode(checkpoints.encode(offsets)) == offsets


def test_no_file_and_an_empty_file_have_no_entries(checkpoint: OffsetCheckpoint) -> None:
    assert checkpoint.read() == {}
    checkpoint.path.touch()
    assert checkpoint.read() == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0\n", "unknown version"),
        ("0\n", "not a number of entries"),
        ("0\nx\n", "not a number of entries"),
        ("0\n2\nt 0 5\n", "declares 2 entries, but the file has 1"),
        ("0\n1\nt 0 5\nt 1 5\n", "declares 1 entries, but the file has 2"),
        ("0\n1\nt 0\n", "line 3"),
        ("0\n1\nt zero 5\n", "line 3"),
        ("0\n1\nt 0 -5\n", "line 3"),
        ("0\n1\nt 0 5 6\n", "line 3"),
        ("\x000\n", "unknown version"),
        ("0\n1\nä 0 5\n", "not an ASCII text file"),
    ],
)
def test_malformed_file_is_reported_and_counts_as_empty_if_safe(
    checkpoint: OffsetCheckpoint, text: str, message: str
) -> None:
    checkpoint.path.write_text(text, encoding="utf-8")
    with pytest.raises(MalformedCheckpoint, match=message):
        checkpoint.read()
    offsets, problem = checkpoint.read_lenient()
    assert offsets == {} and problem is not None and str(checkpoint.path) in problem


def test_update_keeps_the_other_entries(checkpoint: OffsetCheckpoint) -> None:
    checkpoint.write({T0: 1, T1: 2})
    checkpoint.update({T0: 9}, drop=[T1])
    assert checkpoint.read() == {T0: 9}
    checkpoint.update({}, drop=[T1])
    assert checkpoint.read() == {T0: 9}


def test_updates_from_several_threads_are_not_lost(checkpoint: OffsetCheckpoint) -> None:
    def work(partition: int) -> None:
        for offset in range(5):
            checkpoint.update({TopicPartition("t", partition): offset})

    threads = [threading.Thread(target=work, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert checkpoint.read() == {TopicPartition("t", partition): 4 for partition in range(4)}


def test_update_repairs_a_malformed_file(checkpoint: OffsetCheckpoint) -> None:
    checkpoint.path.write_text("garbage\n")
    checkpoint.update({})
    assert checkpoint.read() == {}


def test_io_errors_name_the_directory(checkpoint: OffsetCheckpoint) -> None:
    with failpoints.active({"checkpoint.written": "raise"}), pytest.raises(CheckpointIOError) as failed:
        checkpoint.write({T0: 1})
    assert failed.value.directory == checkpoint.directory
    checkpoint.path.mkdir()
    with pytest.raises(CheckpointIOError):
        checkpoint.read()


def test_lower_changes_only_higher_entries(checkpoint: OffsetCheckpoint) -> None:
    checkpoint.write({T0: 7, T1: 3})
    with failpoints.active({"checkpoint.start": "raise:EIO"}):
        checkpoint.lower({T0: 7, T1: 5})
    checkpoint.lower({T0: 6, T1: 5, TopicPartition("other", 0): 0})
    assert checkpoint.read() == {T0: 6, T1: 3}


def test_lowering_without_room_drops_the_file(checkpoint: OffsetCheckpoint) -> None:
    checkpoint.write({T0: 7})
    with failpoints.active({"checkpoint.written": "raise:ENOSPC"}):
        checkpoint.lower({T0: 6})
    assert not checkpoint.path.exists()
    checkpoint.write({T0: 7})
    with failpoints.active({"checkpoint.written": "raise:EIO"}), pytest.raises(CheckpointIOError):
        checkpoint.lower({T0: 6})


def test_files_written_together_share_one_flush_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    genuine = atomic.fsync_dir
    monkeypatch.setattr(atomic, "fsync_dir", lambda path: (flushed.append(Path(path)), genuine(path)))
    one, two = (
        OffsetCheckpoint(tmp_path, checkpoints.RECOVERY_POINTS),
        OffsetCheckpoint(tmp_path, checkpoints.HIGH_WATERMARKS),
    )
    checkpoints.write_together(tmp_path, ((one, {T0: 1}), (two, {T0: 2})))
    assert flushed == [tmp_path] and one.read() == {T0: 1} and two.read() == {T0: 2}
    before = two.path.stat().st_ino
    checkpoints.write_together(tmp_path, ((one, {T0: 3}), (two, {T0: 2})))
    assert len(flushed) == 2 and one.read() == {T0: 3}
    assert two.path.stat().st_ino == before, "what has not changed is left alone"
    checkpoints.write_together(tmp_path, ((one, {T0: 3}), (two, {T0: 2})))
    assert len(flushed) == 2


def test_checkpoint_with_unknown_content_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = OffsetCheckpoint(tmp_path, checkpoints.RECOVERY_POINTS)
    one.write({T0: 1})

    def broken(path: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "fsync_dir", broken)
        with pytest.raises(CheckpointIOError):
            checkpoints.write_together(tmp_path, ((one, {T0: 2}),))
    written: list[Path] = []
    genuine = atomic.write_atomic

    def write(path: Path, *given: Any, **named: Any) -> None:
        written.append(path)
        genuine(path, *given, **named)

    monkeypatch.setattr(atomic, "write_atomic", write)
    one.write({T0: 1})
    assert len(written) == 1 and one.read() == {T0: 1}, "although this was the last that is known to be there"
    one.write({T0: 1})
    assert len(written) == 1
    with monkeypatch.context() as patched:
        patched.setattr(atomic, "fsync_dir", broken)
        with pytest.raises(CheckpointIOError):
            one.write({T0: 5})
    one.write({T0: 5})
    assert len(written) == 3 and one.read() == {T0: 5}
