"""Watches leader epochs from beside a run: who is said to lead, and what is written under each epoch."""

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
from ops.torture.facts import ClashFact, LeaderFact, Place
from ops.torture.history import now
from ops.torture.roles import Roles
from ops.torture.topics import IDLE, USED
from ops.torture.watching import Watch
from storage_node.directories import partition_metadata
from storage_node.errors import StorageError
from storage_node.log import batch as batches

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.4
#: Clashes that are kept: one is enough, and a log that has gone its own way has thousands.
KEPT = 50
#: Of so many looks at who leads, one asks for idle topics too: the answer for thousands of partitions costs the nodes,
#: and whoever reads it, more than all that is moved meanwhile.
ALL_EVERY = 12

_Life = tuple[str, str, int]
"""Topic, topic id, partition."""


class LeaderWatch(Watch):
    """Asks every node again and again who leads what, of the topics in use more often than of idle ones."""

    def __init__(self, roles: Roles) -> None:
        self._looks = dict.fromkeys(roles.nodes, 0)
        super().__init__({f"leaders by node {node}": partial(self._look, node) for node in roles.nodes}, LOOK_SECONDS)
        self._roles = roles
        self._guard = threading.Lock()
        self._seen: dict[tuple[_Life, int, int], LeaderFact] = {}

    @property
    def leaders(self) -> list[LeaderFact]:
        """Who was first said to lead each partition under each epoch; several only where that is wrong."""
        with self._guard:
            return list(self._seen.values())

    def _look(self, node: int) -> None:
        self._looks[node] += 1
        topics = None if self._looks[node] % ALL_EVERY == 0 else USED
        with contextlib.suppress(OpsError):
            self.take(f"node {node}", ask.metadata(*self._roles.address(node), topics=topics))

    def take(self, who: str, rows: list[ask.Led]) -> None:
        """What one node has said."""
        at = now()
        with self._guard:
            for row in rows:
                key = ((row.topic, row.topic_id, row.partition), row.epoch, row.leader)
                if row.leader >= 0 and key not in self._seen:
                    place = (row.topic, row.partition)
                    self._seen[key] = LeaderFact(place, row.topic_id, row.epoch, row.leader, who, at)


@dataclass(slots=True)
class _Read:
    """How far a segment file has been read: where its last batch begins and ends, and that batch's digest."""

    last: int = 0
    digest: int = 0
    end: int = 0


class WriteWatch(Watch):
    """Reads what is appended to every replica in use: under one leader epoch an offset has one batch, whoever holds it.

    What a leader wrote that was deposed, and truncates later, is seen as well if it stood for a moment.
    """

    def __init__(self, roles: Roles) -> None:
        super().__init__({"write watch": self.look}, LOOK_SECONDS)
        self._roles = roles
        self._read: dict[Path, _Read] = {}
        self._written: dict[_Life, dict[tuple[int, int], tuple[int, int, int]]] = {}
        self.clashes: list[ClashFact] = []

    @property
    def batches(self) -> int:
        """How many batches were told apart by offset and leader epoch."""
        return sum(len(each) for each in self._written.values())

    def stop(self) -> None:
        """End it, after a last look."""
        super().stop()
        self.look()

    def look(self) -> None:
        """Read what is new in every replica; nobody writes to an idle one."""
        for node in self._roles.nodes:
            for directory in self._roles.log_dirs(node):
                here = self._roles.disk(node, directory)
                for folder in disk.folders(here):
                    if (place := disk.place_of(folder)) is not None and not place[0].startswith(IDLE):
                        try:
                            self._replica(node, place, here / folder)
                        except (OSError, StorageError) as error:  # renamed or removed under our eyes
                            log.debug("a look at %s: %s", folder, error)

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
        """(offset, leader epoch, digest) of every whole batch since the last look at this file.

        A file whose last batch is another now was truncated, and is read from its beginning.
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
