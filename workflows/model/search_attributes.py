"""The search attributes of plans and lanes: what `temporal workflow list --query` finds them by.

A list is cut to the server's limit for one value (limit.searchAttributesSizeOfValue, 2 KiB), and says so with `MORE`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum

#: The last entry of a list that was cut. No topic has this name.
MORE = "*"
#: Bytes of a list as JSON; the server takes 2,048.
LARGEST_LIST = 2_000
#: Characters of a keyword.
LONGEST_KEYWORD = 255


class ValueType(StrEnum):
    """The types of search attributes in use, by the server's names."""

    KEYWORD = "Keyword"
    KEYWORD_LIST = "KeywordList"
    DATETIME = "Datetime"


CLUSTER = "RehomeCluster"
TOPICS = "RehomeTopics"
NODES = "RehomeNodes"
PHASE = "RehomePhase"
OUTCOME = "RehomeOutcome"
DEADLINE = "RehomeDeadline"

TYPES = {
    CLUSTER: ValueType.KEYWORD,
    TOPICS: ValueType.KEYWORD_LIST,
    NODES: ValueType.KEYWORD_LIST,
    PHASE: ValueType.KEYWORD,
    OUTCOME: ValueType.KEYWORD,
    DEADLINE: ValueType.DATETIME,
}


def capped(values: Iterable[str]) -> list[str]:
    """Return the values in order, each once, as far as a list holds them; `MORE` stands for those left out."""
    found: list[str] = []
    size = len(json.dumps([MORE]))
    for value in dict.fromkeys(values):
        # An ASCII text of JSON is never shorter than UTF-8, which the server counts.
        size += len(json.dumps(value)) + 2
        if size > LARGEST_LIST:
            return [*found, MORE]
        found.append(value)
    return found
