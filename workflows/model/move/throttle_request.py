"""The strict reader of ThrottleLease's parameter. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_node.model import fields
from workflows.model import throttles
from workflows.model.calls import Replica

#: The maximum seconds that a lease waits for the signal `requested`.
LONGEST_PATIENCE = 86_400


@dataclass(frozen=True, slots=True)
class ThrottleRequest:
    """ThrottleLease's parameter: `throttles` as `workflows.model.throttles.parse` returns them; the `replicas` to move,
    by node; `patience` is how many seconds to wait for the signal `requested`.
    """

    throttles: Mapping[str, Any]
    replicas: Mapping[int, list[Replica]]
    patience: float

    @property
    def nodes(self) -> list[int]:
        """Return the nodes whose values are leased."""
        return sorted(int(node) for node in self.throttles["nodes"])


def parse(parameter: Any) -> ThrottleRequest:
    """Read {"throttles": {"nodes": {node: {config: value}}}, "replicas": [[node, topic, partition]], "patience"?}.

    Raises BadField.
    """
    row = fields.an_object(parameter, "$", ("throttles", "replicas", "patience"))
    held = throttles.parse(fields.need(row, "throttles", "$"))
    patience = fields.a_number(row.get("patience", 0), "$.patience", 0, LONGEST_PATIENCE)
    return ThrottleRequest(held, read_replicas({"replicas": fields.need(row, "replicas", "$")}), float(patience))


def read_replicas(payload: Any) -> dict[int, list[Replica]]:
    """Read {"replicas": [[node, topic, partition]]}, by node. Raises BadField."""
    rows = fields.a_list(fields.need(fields.an_object(payload, "$"), "replicas", "$"), "$.replicas")
    found: dict[int, list[Replica]] = {}
    for place, row in enumerate(rows):
        path = f"$.replicas[{place}]"
        each: Sequence[Any] = fields.a_list(row, path)
        if len(each) != 3:
            raise fields.BadField(path, "must have a node, a topic and a partition")
        node = fields.a_number(each[0], f"{path}[0]", 0, (1 << 31) - 1)
        replica = fields.a_string(each[1], f"{path}[1]"), fields.a_number(each[2], f"{path}[2]", 0, (1 << 31) - 1)
        found.setdefault(node, []).append(replica)
    return found
