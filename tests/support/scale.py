"""How much of a large set a run takes, and what it counted.

`make test-all` takes a set that fits its time; `make torture` (REHOME_FULL=1) takes all of it. Tests of such sets say
how many of what they did with `tally`; the end of the run prints these as a table (see tests/conftest.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# (By its own name: the simulations put a clock of theirs in the place of `time.monotonic`.)
from time import monotonic

FULL = os.environ.get("REHOME_FULL", "") not in ("", "0")

#: One JSON object per line: {"what": ..., "count": ..., "seconds": ...}; the run's summary is made of it.
TALLIES = Path(__file__).resolve().parents[2] / "build" / "tallies.jsonl"


def scaled(small: int, full: int) -> int:
    """`full` in a full run, else `small`."""
    return full if FULL else small


@dataclass
class Tally:
    """What a block counts: add to `count`."""

    count: int = 0


@contextmanager
def tally(what: str) -> Iterator[Tally]:
    """Count something while the block runs, for the table at the end; nothing is noted when the block fails."""
    counted, began = Tally(), monotonic()
    yield counted
    line = {"what": what, "count": counted.count, "seconds": round(monotonic() - began, 2)}
    TALLIES.parent.mkdir(exist_ok=True)
    with TALLIES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_tallies() -> list[tuple[str, int, float]]:
    """What was counted since the file was last removed, added up by name, in order of appearance."""
    found: dict[str, tuple[int, float]] = {}
    if TALLIES.exists():
        for text in TALLIES.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            count, seconds = found.get(line["what"], (0, 0.0))
            found[line["what"]] = (count + line["count"], seconds + line["seconds"])
    return [(what, count, seconds) for what, (count, seconds) in found.items()]
