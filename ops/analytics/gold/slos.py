"""SLOs: which moves should go well, how often, and within which window. Plain values, and a strict reader of TOML."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ops.analytics.errors import AnalyticsError
from storage_node.model import fields
from storage_node.model.fields import BadField

#: The SLOs of a report without a file.
DEFAULT_FILE = Path(__file__).with_name("slos.toml")
#: Limits of a file: each SLO costs a row per day and per minute with events.
MOST_SLOS, LONGEST_NAME, LONGEST_DAYS = 50, 60, 366
#: The longest window of a burn rate is three days: no budget has a shorter one.
SHORTEST_DAYS = 3


class Event(StrEnum):
    """What an SLO counts, and when an event of it is good."""

    PLACED = "placed"  # a move with a deadline: in place before it, the time in queues apart
    SWAP = "swap"  # a replica was swapped: it held its log for at most `seconds`
    RATE = "rate"  # a copy under a limit has ended: its mean rate was at most the limit and a `tolerance`
    UNATTENDED = "unattended"  # a move has ended: in place, and not stopped, paused, cancelled or ended by a person
    CANCELLED = "cancelled"  # a cancel was requested: the move had ended `seconds` later


class Weight(StrEnum):
    """What an event weighs: each the same, or the size of its replica."""

    MOVES = "moves"
    BYTES = "bytes"


#: The keys that only some events have, with what they are without the key.
_OWN: Mapping[Event, Mapping[str, float]] = {
    Event.SWAP: {"seconds": 0.05},
    Event.RATE: {"tolerance": 0.01},
    Event.CANCELLED: {"seconds": 60.0},
}
_SHARED = ("name", "event", "objective", "window_days", "weight")
_EXAMPLE = """[[slo]] with name = "disks", event = "placed", objective = 0.99, window_days = 30, weight = "moves\""""


@dataclass(frozen=True, slots=True)
class Slo:
    """Of the events within the last `window_days` days, the share `objective` (by `weight`) should be good.

    `seconds` is the limit of a swap or a cancel, `tolerance` the share by which a rate may exceed its limit.
    """

    name: str
    event: Event
    objective: float
    window_days: int = 30
    weight: Weight = Weight.MOVES
    seconds: float = 0.0
    tolerance: float = 0.0


def digest(slos: Iterable[Slo]) -> str:
    """Return a digest of the SLOs, which changes with them."""
    return hashlib.sha256(json.dumps([asdict(slo) for slo in slos]).encode()).hexdigest()[:12]


def read_slos(path: Path | None = None) -> tuple[Slo, ...]:
    """Read a TOML file, by default the package's own. Raises AnalyticsError with the line, or the key, that is bad."""
    path = DEFAULT_FILE if path is None else path
    try:
        # Python's reader of TOML takes no byte order mark, which some editors put first.
        return _slos(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise AnalyticsError(f"cannot read the SLOs in {path} ({error.strerror or error})") from error
    except (ValueError, BadField) as error:  # what TOML rejects says its line, what is no text its byte
        raise AnalyticsError(f"{path} has no valid SLOs: {error}; an example is {_EXAMPLE}") from error


def _slos(document: Mapping[str, Any]) -> tuple[Slo, ...]:
    fields.an_object(document, "the file", ("slo",))
    rows = fields.a_list(fields.need(document, "slo", "the file"), "slo")
    if not 1 <= len(rows) <= MOST_SLOS:
        raise BadField("slo", f"has {len(rows)} entries, but must have 1 to {MOST_SLOS}")
    found: dict[str, Slo] = {}
    for place, row in enumerate(rows):
        slo = _slo(row, f"slo[{place}]")
        if slo.name in found:
            raise BadField(f"slo[{place}].name", f"is {fields.shown(slo.name)!r}, which an earlier SLO has already")
        found[slo.name] = slo
    return tuple(found.values())


def _slo(value: Any, path: str) -> Slo:
    row = fields.an_object(value, path)
    event = Event(_one_of(fields.need(row, "event", path), f"{path}.event", Event))
    own = _OWN.get(event, {})
    for name in row:
        if name not in (*_SHARED, *own):
            known = ", ".join((*_SHARED, *own))
            raise BadField(f"{path}.{name}", f"is not a key of the event {event}; allowed are {known}")
    name = fields.a_string(fields.need(row, "name", path), f"{path}.name")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise BadField(f"{path}.name", f"must be at most {LONGEST_NAME} printable characters")
    objective = fields.a_measure(fields.need(row, "objective", path), f"{path}.objective")
    if not 0 < objective < 1:
        raise BadField(f"{path}.objective", f"is {objective}, but must be between 0 and 1, without both: 0.99 is 99 %")
    days = fields.a_number(row.get("window_days", 30), f"{path}.window_days", SHORTEST_DAYS, LONGEST_DAYS)
    weight = Weight(_one_of(row.get("weight", Weight.MOVES), f"{path}.weight", Weight))
    measures = {key: float(fields.a_measure(row.get(key, usual), f"{path}.{key}")) for key, usual in own.items()}
    return Slo(name, event, float(objective), days, weight, **measures)


def _one_of(value: Any, path: str, allowed: type[StrEnum]) -> str:
    text = fields.a_string(value, path)
    if text not in list(allowed):
        raise BadField(path, f"is {fields.shown(text)!r}, but must be one of {', '.join(allowed)}")
    return text
