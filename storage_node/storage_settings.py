"""What formatting and `info` need of a server.properties: which directories, of which node, of which cluster.

Nothing else of the file is looked at, so that one that was written for Apache Kafka can be used as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import javaproperties

from storage_node.config import ConfigError, with_metadata
from storage_node.directories.layout import normalise

__all__ = ["Mode", "StorageSettings"]

#: What a file is for: one of Apache Kafka in KRaft mode, one from before KRaft, or one of a storage node ("").
Mode = Literal["kraft", "legacy", ""]


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """`log_dirs` without repetitions, the metadata directory first; `metadata_beside`: a metadata.log.dir that is none
    of them ("" without one); `node_id` is None and `cluster_id` "" where the file does not say.
    """

    node_id: int | None
    log_dirs: tuple[str, ...]
    metadata_beside: str
    cluster_id: str
    mode: Mode

    @classmethod
    def load(cls, path: str | Path) -> StorageSettings:
        """Read a server.properties file; raises ConfigError, also when the file cannot be read."""
        try:
            with Path(path).open("rb") as file:
                values: Mapping[str, str] = javaproperties.load(file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        return cls.parse(values)

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> StorageSettings:
        """Of the file's keys and values; raises ConfigError."""
        given = {key: value.strip() for key, value in values.items()}
        key = "log.dirs" if given.get("log.dirs") else "log.dir"
        paths = [part.strip() for part in given.get(key, "").split(",") if part.strip()]
        dirs = tuple(dict.fromkeys(normalise(path) for path in paths))
        dirs, beside = with_metadata(dirs, given.get("metadata.log.dir", ""))
        return cls(
            _node_id(given), dirs, normalise(beside) if beside else "", given.get("cluster.id", ""), _mode(given)
        )

    @property
    def directories(self) -> tuple[str, ...]:
        """All directories, sorted: log.dirs and metadata.log.dir, as Apache Kafka lists them."""
        return tuple(sorted({*self.log_dirs, *([self.metadata_beside] if self.metadata_beside else [])}))

    @property
    def metadata_directory(self) -> str:
        """metadata.log.dir, or else the first of log.dirs; "" without any."""
        return self.metadata_beside or next(iter(self.log_dirs), "")


def _node_id(given: Mapping[str, str]) -> int | None:
    key = "node.id" if "node.id" in given else "broker.id"
    if key not in given:
        return None
    text = given[key]
    if not text.isdecimal() or int(text) >= 2**31:
        raise ConfigError(f"{key}={text}: must be between 0 and {2**31 - 1}")
    return int(text)


def _mode(given: Mapping[str, str]) -> Mode:
    if given.get("process.roles"):
        return "kraft"
    return "legacy" if "broker.id" in given and "node.id" not in given else ""
