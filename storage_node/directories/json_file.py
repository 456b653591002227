"""Small JSON files of a log directory, for state that outlives a restart but that a start can do without."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError

__all__ = ["read", "write"]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_LIMIT: Final = 64 << 20


def read(directory: LogDirectory, name: str, parse: Callable[[Any], _T], empty: type[_T]) -> _T | None:
    """Return `parse` of a file's content; None if the file does not exist; an `empty` one if it is invalid.

    `parse` may raise ValueError, TypeError, KeyError and ArithmeticError; they are logged. An I/O error is logged, may
    take the directory offline, and returns None.
    """
    path = directory.path / name
    try:
        with atomic.io_errors(directory.name, f"reading {name}"):
            data = atomic.read_bytes(path, _LIMIT)
        return parse(json.loads(data))
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            directory.fail_on(error)
            _log.warning("ignoring %s: %s", path, error)
        return None
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        _log.warning("ignoring %s: %s", path, error)
        return empty()


def write(directory: LogDirectory, name: str, value: Any) -> None:
    """Replace a file durably; raises StorageError."""
    with atomic.io_errors(directory.name, f"writing {name}"):
        atomic.write_atomic(directory.path / name, json.dumps(value, separators=(",", ":")).encode())
