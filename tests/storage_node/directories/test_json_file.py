"""Small JSON files of a log directory: valid, missing, and invalid ones."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from storage_node.directories import atomic, json_file
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError

NAME = "things"


def parse(value: Any) -> dict[str, int]:
    return {str(name): int(number) for name, number in value["things"]}


def told(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return the levels of what this module logged; threads of earlier tests may still log."""
    return [record.levelno for record in caplog.records if record.name == json_file.__name__]


def test_what_is_written_is_read_and_no_file_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = LogDirectory(tmp_path, "id")
    assert json_file.read(directory, NAME, parse, dict) is None
    json_file.write(directory, NAME, {"things": [["a", 1], ["ü", 2]]})
    assert json_file.read(directory, NAME, parse, dict) == {"a": 1, "ü": 2}
    assert [path.name for path in tmp_path.iterdir()] == [NAME], "nothing of the writing is left"
    assert not told(caplog)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"things": 7}',
        b'{"things": [["a"]]}',
        b'{"things": [["a", "x"]]}',
        b"[" * 100_000,
    ],
)
def test_invalid_file_is_empty_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    directory = LogDirectory(tmp_path, "id")
    (tmp_path / NAME).write_bytes(content)
    assert json_file.read(directory, NAME, parse, dict) == {}
    assert told(caplog) == [logging.WARNING]
    assert str(tmp_path / NAME) in caplog.text and directory.online


def test_error_of_the_disk_is_none_and_the_directorys_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    directory = LogDirectory(tmp_path, "id")
    json_file.write(directory, NAME, {"things": []})
    with monkeypatch.context() as patched:
        patched.setattr(atomic, "read_bytes", broken)
        assert json_file.read(directory, NAME, parse, dict) is None
    assert f"ignoring {tmp_path / NAME}" in caplog.text
    assert not directory.online
    monkeypatch.setattr(atomic, "write_atomic", broken)
    with pytest.raises(StorageError) as caught:
        json_file.write(directory, NAME, {})
    assert caught.value.directory == directory.name
