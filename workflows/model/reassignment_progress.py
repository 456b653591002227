"""How far a run of reassignments is, as its query tells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workflows.model import moves
from workflows.model.absence import Absence, sentence
from workflows.model.phases import ENDED
from workflows.model.reassignment_runs import CATCHING_UP, Part, merge, of_live


@dataclass(slots=True)
class Voices:
    """Which nodes are asked for something, and when they were last heard of (epoch s)."""

    asked: dict[int, float] = field(default_factory=dict)
    heard: dict[int, float] = field(default_factory=dict)
    promised: dict[int, float] = field(default_factory=dict)

    def note(self, node: int, now: float, next_in: float) -> None:
        """Note that a node has reported, and in how many seconds it will again."""
        self.heard[node], self.promised[node] = now, next_in

    def silent(self, now: float) -> list[int]:
        """The nodes that should have been heard of by now."""
        return [
            node
            for node, since in sorted(self.asked.items())
            if now - max(since, self.heard.get(node, 0.0)) > self.promised.get(node, moves.NEXT_REPORT) + moves.SILENCE
        ]


def eta(state: str, total: int, copied: int, rate: float) -> float | None:
    """Return the seconds until a replica that catches up is in sync; None when it cannot be predicted.

    A replica that is not in sync yet has something left to copy, also before its leader has reported how much.
    """
    return moves.eta(total, copied, rate) if state == "in_sync" or copied < total else None


def of_part(part: Part, phase: str, now: float, silent: Mapping[int, Absence]) -> dict[str, Any]:
    """Return what `progress` shows of one partition: bytes of all added replicas, and a row for each node heard of.

    A node that is `silent` has the reason in the place of its state, as far as the controller knows it.
    """
    nodes: list[dict[str, Any]] = []
    for node in part.followed_at:
        row = merge(part.nodes.get(node), of_live(part, node))
        live = part.live.get(node, {})
        absence = silent.get(node) if part.open else None
        rate = float(live.get("rate", 0.0)) if part.open and absence is None else 0.0
        state = str(absence or live.get("state", row.outcome)) or "waiting"
        nodes.append(
            {
                "node": node,
                "state": state,
                "directory": row.directory,
                "bytes_total": row.bytes_total,
                "bytes_copied": row.bytes_copied,
                "rate": rate,
                "eta_seconds": eta(state, row.bytes_total, row.bytes_copied, rate) if part.open else None,
                "message": sentence(absence, f"node {node}") if absence else str(live.get("message", row.message)),
                "report_age": round(max(0.0, now - part.heard[node]), 3) if node in part.heard else None,
            }
        )
    added = [each for each in nodes if each["node"] in part.adding]
    etas = [each["eta_seconds"] for each in added if each["state"] != "in_sync"]
    return {
        "topic": part.topic,
        "partition": part.partition,
        "phase": phase if not part.outcome or phase not in (CATCHING_UP, ENDED) else part.outcome,
        "outcome": part.outcome,
        "by": part.by,
        "from": list(part.original),
        "to": list(part.target),
        "adding": list(part.adding),
        "removing": [node for node in part.touched if node not in part.target],
        "bytes_total": sum(each["bytes_total"] for each in added),
        "bytes_copied": sum(each["bytes_copied"] for each in added),
        "rate": sum(each["rate"] for each in added),
        "eta_seconds": None if not etas or None in etas else max(etas),
        "error": part.error,
        "message": part.message or next((each["message"] for each in nodes if each["message"]), ""),
        "nodes": nodes,
    }


def of_run(
    parts: Sequence[Part],
    phase: str,
    waiting: Sequence[str],
    now: float,
    silent: Mapping[int, Absence],
) -> dict[str, Any]:
    """What `progress` tells of a run: sums over its partitions, whom it waits for, and a row for each partition."""
    rows = [of_part(part, phase, now, silent) for part in parts]
    etas = [row["eta_seconds"] for row in rows if not row["outcome"]]
    return {
        "phase": phase,
        "waiting_for": ", ".join(waiting),
        "bytes_total": sum(row["bytes_total"] for row in rows),
        "bytes_copied": sum(row["bytes_copied"] for row in rows),
        "rate": sum(row["rate"] for row in rows),
        "eta_seconds": None if None in etas else max(etas, default=0.0),
        "partitions": rows,
    }
