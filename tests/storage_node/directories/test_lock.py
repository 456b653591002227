"""One process per log directory, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import DirectoryInUse
from storage_node.directories.lock import DirectoryLock
from storage_node.errors import MetadataIOError

PROGRAM = """
import sys
from storage_node.directories.lock import DirectoryLock
lock = DirectoryLock(sys.argv[1])
lock.acquire()
print("locked", flush=True)
sys.stdin.readline()
lock.release()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.conformance(82)
def test_second_process_gets_an_error_with_directory_and_pid(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(DirectoryInUse) as refused:
        DirectoryLock(tmp_path).acquire()
    assert str(tmp_path) in str(refused.value) and f"process {other.pid}" in str(refused.value)
    assert refused.value.pid == other.pid


def test_lock_ends_with_a_kill(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    os.kill(other.pid, signal.SIGKILL)
    other.wait(60)
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    lock.release()


@pytest.mark.conformance(82)
def test_clean_end_removes_the_file(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.communicate("\n", timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_release_keeps_the_lock_of_another_process(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    (tmp_path / ".lock").unlink()  # an operator removed it
    second.acquire()
    first.release()
    with pytest.raises(DirectoryInUse):
        DirectoryLock(tmp_path).acquire()
    second.release()
    second.release()


def test_lock_file_without_a_pid(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    (tmp_path / ".lock").write_text("?")
    with pytest.raises(DirectoryInUse, match="another process"):
        DirectoryLock(tmp_path).acquire()
    lock.release()


def test_io_error_is_not_a_second_process(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(MetadataIOError) as failed:
        LogDirectory(tmp_path, "id").lock()
    assert failed.value.directory == str(tmp_path)
