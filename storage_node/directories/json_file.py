"""Small JSON files of a log directory for what is worth keeping over a restart, and no reason not to start without."""

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
    """What `parse` makes of a file; with a warning, an `empty` one where it cannot. None where there is no file.

    `parse` may raise ValueError, TypeError and KeyError. An I/O error is a warning, None, and the directory's own: it
    may be offline then.
    """
    path = directory.path / name
    try:
        with atomic.io_errors(directory.name, f"reading {name}"):
            data = atomic.read_bytes(path, _LIMIT)
        return parse(json.loads(data))
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            directory.fail_on(error)
            _log.warning("%s is ignored: %s", path, error)
        return None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        _log.warning("%s is ignored: %s", path, error)
        return empty()


def write(directory: LogDirectory, name: str, value: Any) -> None:
    """Replace a file durably; raises StorageError."""
    with atomic.io_errors(directory.name, f"writing {name}"):
        atomic.write_atomic(directory.path / name, json.dumps(value, separators=(",", ":")).encode())
