"""Watch leader epochs during a run: each node's metadata, and the batches written in each epoch."""

from __future__ import annotations

import contextlib
import logging
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ops.stack.errors import OpsError
from ops.torture import ask, disk
from ops.torture.checks.facts import ClashFact, LeaderFact, Place
from ops.torture.history import now
from ops.torture.observers.watching import Observers
from ops.torture.roles import Roles
from ops.torture.topics import IDLE, USED
from storage_node.directories import partition_metadata
from storage_node.errors import StorageError
from storage_node.log.batches import batch as batches

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.4
#: The number of clashes kept: one is enough, and a diverged log has thousands.
KEPT = 50
#: One of this many Metadata requests includes the idle topics: a response with thousands of partitions costs the nodes
#: and this process more than all moves meanwhile.
ALL_EVERY = 12

_Life = tuple[str, str, int]
"""Topic, topic id, partition."""


class LeaderWatch(Observers):
    """Poll every node's metadata for the leaders, of the topics in use more often than of idle ones."""

    def __init__(self, roles: Roles) -> None:
        self._looks = dict.fromkeys(roles.nodes, 0)
        super().__init__({f"leaders by node {node}": partial(self._look, node) for node in roles.nodes}, LOOK_SECONDS)
        self._roles = roles
        self._guard = threading.Lock()
        self._seen: dict[tuple[_Life, int, int], LeaderFact] = {}

    @property
    def leaders(self) -> list[LeaderFact]:
        """The first report of each partition's leader in each epoch; a second leader in an epoch is a violation."""
        with self._guard:
            return list(self._seen.values())

    def _look(self, node: int) -> None:
        self._looks[node] += 1
        topics = None if self._looks[node] % ALL_EVERY == 0 else USED
        with contextlib.suppress(OpsError):
            self.take(f"node {node}", ask.metadata(*self._roles.address(node), topics=topics))

    def take(self, who: str, rows: list[ask.Led]) -> None:
        """Record the leaders in one node's Metadata response."""
        at = now()
        with self._guard:
            for row in rows:
                key = ((row.topic, row.topic_id, row.partition), row.epoch, row.leader)
                if row.leader >= 0 and key not in self._seen:
                    place = (row.topic, row.partition)
                    self._seen[key] = LeaderFact(place, row.topic_id, row.epoch, row.leader, who, at)


@dataclass(slots=True)
class _Read:
    """How far a segment file has been read: start, digest and end of its last batch."""

    last: int = 0
    digest: int = 0
    end: int = 0


class WriteWatch(Observers):
    """Read the batches appended to every replica in use: in one leader epoch, all replicas have the same batch at an
    offset.

    The watch usually also reads the batches that a deposed leader truncates later.
    """

    def __init__(self, roles: Roles) -> None:
        super().__init__({"write watch": self.look}, LOOK_SECONDS)
        self._roles = roles
        self._read: dict[Path, _Read] = {}
        self._written: dict[_Life, dict[tuple[int, int], tuple[int, int, int]]] = {}
        self.clashes: list[ClashFact] = []

    @property
    def batches(self) -> int:
        """The number of batches distinguished by offset and leader epoch."""
        return sum(len(each) for each in self._written.values())

    def stop(self) -> None:
        """Stop after a last round."""
        super().stop()
        self.look()

    def look(self) -> None:
        """Read the new batches of every replica; no client produces to idle ones."""
        for node in self._roles.nodes:
            for directory in self._roles.log_dirs(node):
                here = self._roles.disk(node, directory)
                for folder in disk.folders(here):
                    if (place := disk.place_of(folder)) is not None and not place[0].startswith(IDLE):
                        try:
                            self._replica(node, place, here / folder)
                        except (OSError, StorageError) as error:  # the node renamed or removed it meanwhile
                            log.debug("cannot read %s: %s", folder, error)

    def _replica(self, node: int, place: Place, folder: Path) -> None:
        topic_id = partition_metadata.read(folder, directory=str(folder.parent))
        if topic_id is None:
            return
        life = (place[0], topic_id, place[1])
        for file in disk.segments(folder):
            for offset, epoch, digest in self._news(file):
                self._note(node, place, life, offset, epoch, digest)

    def _note(self, node: int, place: Place, life: _Life, offset: int, epoch: int, digest: int) -> None:
        mine = (node, digest, now())
        first = self._written.setdefault(life, {}).setdefault((epoch, offset), mine)
        if first[1] != digest and len(self.clashes) < KEPT:
            self.clashes.append(ClashFact(place, life[1], epoch, offset, first, mine))

    def _news(self, file: Path) -> Iterator[tuple[int, int, int]]:
        """Yield (offset, leader epoch, digest) of every complete batch since the last round.

        If the last batch read has changed, the file was truncated, and is read from its beginning.
        """
        read = self._read.setdefault(file, _Read())
        if file.stat().st_size == read.end:
            return
        with file.open("rb") as opened:
            opened.seek(read.last)
            data = opened.read()
            if read.end and zlib.crc32(data[: read.end - read.last]) != read.digest:
                opened.seek(0)
                data = opened.read()
                read.last = read.end = read.digest = 0
        base, position = read.last, read.end - read.last
        while position + batches.HEADER_SIZE <= len(data):
            header = batches.parse(data, position)
            if batches.problem(header) is not None or position + header.length > len(data):
                return
            read.digest = zlib.crc32(data[position : position + header.length])
            read.last, read.end = base + position, base + position + header.length
            position += header.length
            yield header.base_offset, header.leader_epoch, read.digest
