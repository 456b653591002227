"""The rules for SLAs of moves that come without one, as those of Kafka's tools do, and the SLOs beside them. Plain
values, and a strict reader of the rules.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.analytics.errors import AnalyticsError
from ops.analytics.gold.slos import Slo
from ops.analytics.gold.slos import digest as digest_of
from ops.analytics.schema.words import KINDS
from storage_node.model import fields
from storage_node.model.fields import BadField


@dataclass(frozen=True, slots=True)
class Rule:
    """A move must be in place `seconds` + `seconds_per_gb` x its size after its run's start.

    It applies to moves of this `kind` (disk, node, both), whose topic the regular expression matches, to this `node`;
    "" and None are any. The first rule that applies counts.
    """

    name: str
    seconds: float
    seconds_per_gb: float = 0.0
    kind: str = ""
    topic: str = ""
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in their order, and the SLOs that moves are measured by; without any no budgets are computed."""

    rules: tuple[Rule, ...] = ()
    slos: tuple[Slo, ...] = ()

    @property
    def definitions(self) -> str:
        """Return a digest of the SLOs and of the rules, since these decide which moves have deadlines."""
        return f"{digest_of(self.slos)}{f'-{self.digest}' if self.digest else ''}"

    @property
    def digest(self) -> str:
        """Return a digest of the rules, which changes with them; "" without any."""
        if not self.rules:
            return ""
        return hashlib.sha256(json.dumps([asdict(rule) for rule in self.rules]).encode()).hexdigest()[:12]


def read_rules(path: Path | None) -> Rules:
    """Read a JSON file, a list of rules. Raises AnalyticsError with the path of a bad field."""
    if path is None:
        return Rules()
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
        return Rules(tuple(_rule(each, f"$[{place}]") for place, each in enumerate(fields.a_list(found, "$"))))
    except OSError as error:
        raise AnalyticsError(f"cannot read the rules for SLAs in {path} ({error.strerror or error})") from error
    except (ValueError, BadField) as error:
        raise AnalyticsError(
            f"{path} is not a list of rules for SLAs ({error}): an example is "
            '[{"name": "disks", "kind": "disk", "seconds": 60, "seconds_per_gb": 20}]'
        ) from error


def _rule(value: Any, path: str) -> Rule:
    names = ("name", "seconds", "seconds_per_gb", "kind", "topic", "node")
    row: Mapping[str, Any] = fields.an_object(value, path, names)
    kind = fields.a_string(row.get("kind", ""), f"{path}.kind", empty=True)
    if kind and kind not in KINDS:
        raise BadField(f"{path}.kind", f"is {fields.shown(kind)!r}, but must be one of {', '.join(KINDS)}")
    topic = fields.a_string(row.get("topic", ""), f"{path}.topic", empty=True)
    try:
        re.compile(topic)
    except re.error as error:
        raise BadField(f"{path}.topic", f"is not a regular expression ({error})") from error
    return Rule(
        name=fields.a_string(fields.need(row, "name", path), f"{path}.name"),
        seconds=fields.a_measure(fields.need(row, "seconds", path), f"{path}.seconds"),
        seconds_per_gb=fields.a_measure(row.get("seconds_per_gb", 0.0), f"{path}.seconds_per_gb"),
        kind=kind,
        topic=topic,
        node=None if row.get("node") is None else fields.a_number(row["node"], f"{path}.node", high=(1 << 31) - 1),
    )
