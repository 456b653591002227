"""Plans as people's files have them: what Kafka's own tool takes is taken, with a note on what is not used.

The readers of `workflows.model.plans.document` stay strict: a run's parameter has only what this leaves.
"""

from __future__ import annotations

import difflib
import functools
from collections import Counter
from collections.abc import Collection
from typing import Any

from workflows.model.move import parameter
from workflows.model.plans.document import FIELDS, ROW_FIELDS, VERSION
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.problems import Decoded

__all__ = ["tolerant"]

#: How alike two names are of which one may be meant by the other (1: equal).
_ALIKE = 0.8
#: An option that stands beside "options" must not be ignored either.
_OPTIONS = tuple(PlanOptions().as_json())


def tolerant(text: str) -> tuple[Any, tuple[str, ...]]:
    """Return the decoded text for a strict reader, and a clause for each thing in it that is not used or assumed.

    A `version` that is missing is 1, as for Kafka's tool; fields with names of their own are left out. A field that may
    be a known one with a typing mistake stays, and the strict reader refuses it: a misspelled log directory or throttle
    must not be ignored. Raises BadField for text that is not JSON.
    """
    found = parameter.loads(text, Decoded)
    if not isinstance(found, Decoded):
        return found, ()
    notes: list[str] = []
    if "version" not in found:
        found["version"] = VERSION
        notes.append(f'has no "version", which is taken as {VERSION}')
    unused = Counter(f"$.{name}" for name in _drop(found, FIELDS, _OPTIONS))
    rows = found.get("partitions")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Decoded):
            unused.update(f"$.partitions[*].{name}" for name in _drop(row, ROW_FIELDS))
    if unused:
        listed = ", ".join(f"{name} ({times} times)" if times > 1 else name for name, times in sorted(unused.items()))
        notes.append(f"has fields that are not used: {listed}")
    return found, tuple(notes)


def _drop(row: dict[str, Any], known: Collection[str], kept: Collection[str] = ()) -> list[str]:
    """Remove the fields that are neither known nor like one that is; return their names."""
    names = [name for name in row if name not in known and not _meant(name, tuple((*known, *kept)))]
    for name in names:
        del row[name]
    return names


@functools.lru_cache(maxsize=1_000)  # a plan of a tool has the same fields in each of its rows
def _meant(name: str, known: tuple[str, ...]) -> bool:
    return bool(difflib.get_close_matches(name.lower(), known, 1, _ALIKE))
