"""What a node was seen to promise, written down outside its directories while it lives: judged when it is dead.

Lines of the file `promises`, in the order in which things became known:

* `A <topic id> <partition> <offset> <crc>`: a batch was acknowledged; the crc is the one in its header;
* `F <topic id> <partition> <offset>`: the node said that all below this offset is flushed;
* `S <topic id> <partition> <offset>`: the deletion of all records below this offset was asked for;
* `G <topic id>`: the deletion of a topic was asked for.

A line is one `write` to a file opened for appending: it survives kill -9 of the writer, and what crashes here is never
the disk that the ledger is on, so it needs no flush.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

PROMISES = "promises"
IMAGE = "image"

Key = tuple[str, int]
"""Topic id and partition: a topic that is made again under its name is another one."""


@dataclass(slots=True)
class Promises:
    """All that is held against a node."""

    acknowledged: dict[Key, dict[int, int]] = field(default_factory=dict)
    flushed: dict[Key, int] = field(default_factory=dict)
    starts: dict[Key, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


class Ledger:
    """Writes promises; thread-safe."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(folder / PROMISES, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._flushed: dict[Key, int] = {}
        self._lock = threading.Lock()

    def acknowledged(self, key: Key, offset: int, crc: int) -> None:
        self._line(f"A {key[0]} {key[1]} {offset} {crc}")

    def flushed(self, key: Key, offset: int) -> None:
        """Noted when it is news."""
        with self._lock:
            if self._flushed.get(key, 0) >= offset:
                return
            self._flushed[key] = offset
        self._line(f"F {key[0]} {key[1]} {offset}")

    def shortened(self, key: Key, offset: int) -> None:
        """To be noted before it is asked for."""
        self._line(f"S {key[0]} {key[1]} {offset}")

    def gone(self, topic_id: str) -> None:
        self._line(f"G {topic_id}")

    def _line(self, text: str) -> None:
        os.write(self._fd, text.encode() + b"\n")


def read(folder: Path) -> Promises:
    """All promises so far; an unfinished last line was never one."""
    found = Promises()
    path = folder / PROMISES
    if not path.exists():
        return found
    for line in path.read_bytes().split(b"\n")[:-1]:
        kind, topic_id, *rest = line.decode().split(" ")
        if kind == "A":
            found.acknowledged.setdefault((topic_id, int(rest[0])), {})[int(rest[1])] = int(rest[2])
        elif kind == "F":
            found.flushed[topic_id, int(rest[0])] = int(rest[1])
        elif kind == "S":
            found.starts[topic_id, int(rest[0])] = int(rest[1])
        else:
            found.gone.add(topic_id)
    return found


def begin_again(folder: Path, found: dict[Key, dict[int, int]], ends: dict[Key, int], gone: set[str]) -> None:
    """From now on `found` (batches by offset) is what the node has, that below `ends` on its disks."""
    lines = [f"G {topic_id}" for topic_id in sorted(gone)]
    for (topic_id, partition), batches in found.items():
        lines += [f"A {topic_id} {partition} {offset} {crc}" for offset, crc in batches.items()]
        lines.append(f"F {topic_id} {partition} {ends.get((topic_id, partition), 0)}")
    fresh = folder / f"{PROMISES}.new"
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.rename(folder / PROMISES)
