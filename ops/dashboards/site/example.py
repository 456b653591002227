"""A seeded example of a site: the moves of a fleet of nine nodes over eight weeks. The same seed gives the same files.

Nights have plans with a shared limit, node 4 has a disk that becomes slow, and one disk dies.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from ops.dashboards.site.budgets import Happened, Objective, budgets
from ops.dashboards.site.pack import millionths, pack
from ops.dashboards.site.tables import DAYS as DAY_COLUMNS
from ops.dashboards.site.tables import (
    FAILURES,
    FIGURES,
    FRACTIONS,
    INGESTS,
    MOVES,
    PLANS,
    PROGRESS,
    QUARANTINE,
    RATES,
    RETRIES,
    SLOS,
    STALLS,
    TRANSITIONS,
    Site,
    short_id,
)
from storage_node.model.sla import SlaVerdict, judge

SEED = 20_261_120
AS_OF = datetime(2026, 11, 20, 12, tzinfo=UTC)
NODES, DISKS, DAYS = 9, ("disk-a", "disk-b", "disk-c"), 56
TOPICS = ("orders", "payments", "clicks", "audit", "sessions", "inventory", "mail-events", "fraud-scores")
CLUSTER, NAMESPACE = "prod", "default"

Row = dict[str, Any]


def example(count: int = 4_000, seed: int = SEED) -> Site:
    """Return a site of so many moves."""
    draw = random.Random(seed)
    moves = sorted((_move(draw, number, count) for number in range(count)), key=lambda row: float(row["started"]))
    for place, row in enumerate(moves[-24:]):
        _evacuate(draw, row, ended=place < 18)
    moves.sort(key=lambda row: float(row["started"]))
    failures = [
        (
            *(7, "/data/disk-c", "a read of /data/disk-c/orders-4/00000000000000000000.log failed: Input/output error"),
            *(
                _at(AS_OF - timedelta(days=9, hours=3)),
                _at(AS_OF - timedelta(days=9, hours=3)) + 1.4,
                "recorded",
                31,
                2,
            ),
            *(
                NAMESPACE,
                f"{CLUSTER}/directory-failure/7/AAAAAAAAAAAAAAAAAAAAAQ/1",
                "0195f7aa-0000-7000-8000-000000000000",
            ),
        )
    ]
    plans = plans_of(moves)
    return Site(
        as_of=_at(AS_OF),
        runs=count + 1_400,
        moves_total=count,
        tables={
            "moves": pack(MOVES, ([row[name] for name in MOVES] for row in moves), FIGURES),
            "days": pack(DAY_COLUMNS, days_of(moves)),
            "slos": pack(SLOS, slos_of(moves, _at(AS_OF))),
            "stalls": pack(STALLS, _stalls(moves)),
            "retries": pack(RETRIES, _retries(moves)),
            "rates": pack(RATES, _rates(moves)),
            "ingests": pack(INGESTS, _ingests(moves)),
            "quarantine": pack(
                QUARANTINE,
                [
                    (
                        611,
                        "dt=2026-11-11/run=e0611/part-2.pb",
                        81_920,
                        "truncated",
                        "the file ends within a history: 81,920 of 98,304 bytes are there",
                        212,
                    )
                ],
            ),
            "transitions": pack(TRANSITIONS, _transitions(moves)),
            "plans": pack(PLANS, ([row[name] for name in PLANS] for row in plans)),
            "progress": pack(PROGRESS, _progress(moves, plans)),
            "failures": pack(FAILURES, failures),
        },
        rules="example",
    )


def _at(time: datetime) -> float:
    return time.timestamp()


def _move(draw: random.Random, number: int, count: int) -> Row:
    day = DAYS * number / count * 0.999
    at = AS_OF - timedelta(days=DAYS - 1) + timedelta(days=int(day))
    night = draw.random() < 0.7
    at = at.replace(hour=0) + timedelta(hours=draw.triangular(0, 2.5, 0.2) if night else draw.uniform(6, 24))
    at = min(at, AS_OF - timedelta(minutes=draw.uniform(20, 300)))
    node = (int(day) * 2 + draw.choice((0, 0, 1, 4))) % NODES + 1 if night else draw.randint(1, NODES)
    topic = draw.choices(TOPICS, (9, 5, 8, 2, 4, 3, 2, 1))[0]
    between = draw.random() < 0.3
    source, target = draw.sample(DISKS, 2)
    size = int(draw.lognormvariate(23.4, 0.9))
    limit = draw.choice((30e6, 50e6, 80e6)) if night else None
    slow = node == 4 and target == "disk-b" and 30 <= day <= 37
    speed = (limit or draw.uniform(90e6, 180e6)) * draw.uniform(0.93, 0.998) * (0.18 if slow else 1.0)
    busy = size / speed
    throttled = busy * draw.uniform(0.35, 0.8) if limit and not slow else 0.0
    stalled = busy * draw.uniform(0.6, 0.8) if slow else 0.0
    queued = draw.expovariate(1 / 60) if night else draw.expovariate(1 / 4)
    row: Row = {
        "topic": topic,
        "partition": draw.randint(0, 47),
        "kind": "node" if between else "disk",
        "node": node,
        "from_node": (node + draw.randint(1, NODES - 2)) % NODES + 1 if between else None,
        "source": None if between else f"/data/{source}",
        "directory": f"/data/{target}",
        "plan": f"night-{at:%m-%d}" if night else None,
        "outcome": "moved",
        "phase": None,
        "started": round(_at(at), 3),
        "took": queued + busy + draw.uniform(0.1, 0.6),
        "deadline": float(max(900, round(size / 10e6))) if draw.random() < 0.85 else None,
        "bytes": size,
        "total": size,
        "rate": speed,
        "limit": limit,
        "attempts": 1 + (draw.random() < 0.04) + (draw.random() < 0.01),
        "resumed": 0,
        "queued": queued,
        "copying": busy - throttled - stalled,
        "throttled": throttled,
        "stalled": stalled,
        "locked": draw.lognormvariate(-5.2, 0.6),
        "reason": None,
        "message": None,
        "stall": None,
        "namespace": NAMESPACE,
        "by": None,
    }
    chance = draw.random()
    if chance < 0.012:
        row |= {
            "outcome": "failed",
            "reason": "TargetFull",
            "message": f"/data/{target} of node {node} is full: {topic}-{row['partition']} stays where it is",
        }
    elif chance < 0.03:
        row |= {"outcome": "cancelled"}
    elif chance < 0.036:
        row |= {"outcome": "superseded"}
    if row["outcome"] != "moved":
        row |= {"bytes": int(size * draw.random()), "took": row["took"] * draw.random()}
    if row["attempts"] > 1:
        row["resumed"] = int(size * draw.uniform(0.2, 0.7))
    row["sla"] = _judged(row)
    kind = "reassign" if between else f"move/{node}"
    row["run"] = short_id(
        f"{CLUSTER}/{kind}/{topic}-{row['partition']}/{draw.randint(1, 3)}", topic, row["partition"], node
    )
    return row


def _judged(row: Row) -> SlaVerdict:
    under_way, limit = row["outcome"] == "open", row["deadline"]
    late = limit is not None and row["took"] > limit
    return judge(row["outcome"], row["reason"] or "", under_way=under_way, late=late, has_deadline=limit is not None)


def _evacuate(draw: random.Random, row: Row, ended: bool) -> None:
    """Turn a move into one of a plan that empties a node, ended or open."""
    row |= {"plan": "evacuate-4", "outcome": "moved", "reason": None, "message": None, "bytes": row["total"]}
    row |= {"limit": 80e6, "rate": 80e6 * draw.uniform(0.6, 0.99), "stalled": 0.0, "queued": draw.uniform(0, 90)}
    busy = row["total"] / row["rate"]
    row["took"] = row["queued"] + busy + 0.3
    row["started"] = round(_at(AS_OF) - row["took"] - draw.uniform(30, 2400), 3)
    if not ended:
        share = draw.uniform(0.2, 0.7)
        busy *= share
        row |= {"outcome": "open", "phase": "copying", "bytes": int(row["total"] * share), "took": row["queued"] + busy}
        row["started"] = round(_at(AS_OF) - row["took"], 3)
        if draw.random() < 0.4:
            row["stall"] = "the node's limit of 80.0 MB/s, shared by 3 copies"
    row["throttled"] = busy * draw.uniform(0.2, 0.6)
    row["copying"] = busy - row["throttled"]
    row["sla"] = _judged(row)


def _day(row: Row) -> str:
    return datetime.fromtimestamp(row["started"], UTC).date().isoformat()


def days_of(moves: list[Row]) -> list[tuple[Any, ...]]:
    """Return gold's sla_daily of these moves, computed plainly."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in moves:
        scopes = [("all", ""), ("kind", row["kind"]), ("node", str(row["node"]))]
        for scope, value in [*scopes, *([("plan", row["plan"])] if row["plan"] else [])]:
            groups[_day(row), scope, value].append(row)
    found = []
    for key, rows in sorted(groups.items()):
        of = Counter(row["outcome"] for row in rows)
        sla = Counter(row["sla"] for row in rows)
        took = sorted(row["took"] for row in rows if row["outcome"] == "moved")
        found.append(
            (
                *key,
                len(rows),
                *(of["moved"], of["failed"], of["cancelled"] + of["superseded"], of["open"]),
                *(sla["yes"], sla["no"], sla["not due"], sla["excluded"]),
                sum(row["bytes"] for row in rows),
                median(took) if took else None,
                took[int(0.95 * (len(took) - 1))] if took else None,
            )
        )
    return found


def slos_of(moves: list[Row], as_of: float) -> list[tuple[Any, ...]]:
    """Return gold's burn_rate of two SLOs of these moves, computed plainly."""
    placed, swap = Objective("placed in time", "placed", 0.99), Objective("swap pause", "swap", 0.999)
    events = [
        Happened(placed.name, _ended(row), row["sla"] == "yes") for row in moves if row["sla"] in ("yes", "no")
    ] + [Happened(swap.name, _ended(row), row["locked"] <= 0.05) for row in moves if row["outcome"] == "moved"]
    found = []
    for row in budgets((placed, swap), events, as_of):
        day = datetime.fromtimestamp(row["day"] * 86_400, UTC).date().isoformat()
        shown = row | {"day": day, "window": row["window_days"]}
        found.append(tuple(millionths(shown[name]) if name in FRACTIONS else shown[name] for name in SLOS))
    return found


def _ended(row: Row) -> float:
    return float(row["started"]) + float(row["took"])


def plans_of(moves: list[Row]) -> list[Row]:
    """Return the plans of these moves. Each was submitted a while before its first move, with a deadline, which not all
    of them meet; a check expected how long it takes.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in moves:
        if row["plan"]:
            groups[row["plan"]].append(row)
    return sorted((_plan(name, rows) for name, rows in groups.items()), key=lambda row: float(row["started"]))


def _plan(name: str, rows: list[Row]) -> Row:
    of = Counter(row["outcome"] for row in rows)
    began = round(float(rows[0]["started"]) - 20, 3)
    ended = None if of["open"] else round(max(map(_ended, rows)) + 1, 3)
    missed = len(rows) - of["moved"] - of["open"]
    deadline = began + 3 * 3600
    late = (ended or _at(AS_OF)) > deadline
    total = sum(row["total"] for row in rows)
    return {
        "plan": name,
        "namespace": NAMESPACE,
        "id": f"{CLUSTER}/plan/{name}",
        "chain": f"0195{sum(map(ord, name)):04x}-0000-7000-8000-000000000000",
        "outcome": "open" if of["open"] else "failed" if missed else "done",
        "phase": "moving" if of["open"] else None,
        "started": began,
        "finished": ended,
        "deadline": deadline,
        "met": judge("failed" if missed else "done", "", under_way=bool(of["open"]), late=late, has_deadline=True),
        "low": round(total / 400e6, 1),
        "high": round(total / 150e6, 1),
        **{"moves": len(rows), "done": of["moved"], "missed": missed, "running": of["open"]},
        "bytes": sum(row["bytes"] for row in rows if row["outcome"] == "moved"),
        "total": total,
        "message": f"{missed} of {len(rows)} moves missed their targets" if missed else None,
    }


def _progress(moves: list[Row], plans: list[Row]) -> list[tuple[Any, ...]]:
    """Return gold's plan_progress of these plans, computed plainly."""
    found = []
    for plan in plans:
        mine = [row for row in moves if row["plan"] == plan["plan"] and row["outcome"] != "open"]
        for minute in sorted({_ended(row) // 60 * 60 for row in mine}):
            done = [row for row in mine if _ended(row) < minute + 60 and row["outcome"] == "moved"]
            missed = sum(_ended(row) < minute + 60 for row in mine) - len(done)
            copied = sum(row["bytes"] for row in done)
            rate = copied / (minute + 60 - plan["started"])
            eta = minute + 60 + (plan["total"] - copied) / rate if copied else None
            total = plan["total"]
            found.append(
                (plan["id"], plan["chain"], minute, plan["moves"], len(done), missed, copied, total, rate, eta)
            )
    return sorted(found, key=lambda row: (row[2], row[0]))


def _stalls(moves: list[Row]) -> list[tuple[Any, ...]]:
    groups: dict[tuple[str, int, str], list[tuple[float, str]]] = defaultdict(list)
    for row in moves:
        for name, reason in (("queued", "queued"), ("throttled", "node_limit"), ("stalled", "slow_disk")):
            if row[name] > 0:
                groups[_day(row), row["node"], reason].append((row[name], f"{row['topic']}-{row['partition']}"))
    return [(*key, len(of), sum(value for value, _ in of), *max(of)) for key, of in sorted(groups.items())]


def _retries(moves: list[Row]) -> list[tuple[Any, ...]]:
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in moves:
        if row["kind"] == "disk":
            groups[_day(row), row["node"]].append(row)
    found: list[tuple[Any, ...]] = []
    for (day, node), rows in sorted(groups.items()):
        failed = sum(row["outcome"] == "failed" for row in rows)
        attempts = sum(row["attempts"] for row in rows)
        retried = sum(row["attempts"] > 1 for row in rows)
        last = "WorkerShutdown" if retried else "TargetFull" if failed else None
        found.append((day, "MoveReplica", "copy", node, len(rows), attempts, retried, failed, 0, last))
        found.append((day, "MoveReplica", "swap", node, len(rows) - failed, len(rows) - failed, 0, 0, 0, None))
    return found


def _rates(moves: list[Row]) -> list[tuple[Any, ...]]:
    groups: dict[tuple[float, str, int, str, str], list[Row]] = defaultdict(list)
    for row in moves:
        hour = row["started"] // 3600 * 3600
        origin = row["source"] or f"node {row['from_node']}"
        groups[hour, row["kind"], row["node"], origin, row["directory"]].append(row)
    return [
        (
            *key,
            len(rows),
            sum(row["bytes"] for row in rows),
            sum(row["copying"] + row["throttled"] + row["stalled"] for row in rows),
        )
        for key, rows in sorted(groups.items())
    ]


def _ingests(moves: list[Row]) -> list[tuple[Any, ...]]:
    found = []
    for day, count in sorted(Counter(_day(row) for row in moves).items()):
        lost = 212 if day == "2026-11-11" else 0
        end = _at(datetime.fromisoformat(f"{day}T23:00:00+00:00"))
        taken = min(end, _at(AS_OF))
        found.append((day, "closed", 24, count * 4_300, count * 26, count * 26 - lost, lost, taken))
        found.append((day, "open", 24, 9_100, 61, 61, 0, taken))
    return found


def _transitions(moves: list[Row]) -> list[tuple[Any, ...]]:
    done = [row for row in moves if row["outcome"] == "moved"]
    steps = (
        ("creating", "created", "copying"),
        ("copying", "caught_up", "swapping"),
        ("swapping", "swapped", "delete_delay"),
        ("deleting", "deleted", ""),
    )
    counts = Counter(_day(row) for row in done)
    example_of = {_day(row): f"{CLUSTER}/move/{row['node']}/{row['topic']}-{row['partition']}" for row in done}
    return [(day, *step, count, True, example_of[day]) for day, count in sorted(counts.items()) for step in steps]
