"""Read what formatting and `info` need of a server.properties: the directories, the node, the cluster.

No other key is read, so that a file that was written for Apache Kafka can be used as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage_node.config.node_config import ConfigError, read_properties, with_metadata
from storage_node.directories.layout import normalise

__all__ = ["Mode", "StorageSettings"]

#: The purpose of a file: one of Apache Kafka in KRaft mode, one from before KRaft, or one of a storage node ("").
Mode = Literal["kraft", "legacy", ""]


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The directories, node and cluster that a file names.

    `log_dirs` has no duplicates, the metadata directory first; `metadata_beside` is a metadata.log.dir that is not
    among them ("" without one); `node_id` is None and `cluster_id` "" where the file does not have them.
    """

    node_id: int | None
    log_dirs: tuple[str, ...]
    metadata_beside: str
    cluster_id: str
    mode: Mode

    @classmethod
    def load(cls, path: str | Path) -> StorageSettings:
        """Read a server.properties file; raises ConfigError, also when the file cannot be read."""
        return cls.parse(read_properties(path))

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> StorageSettings:
        """Return the settings of the file's keys and values; raises ConfigError."""
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
