"""Gold: what reports and dashboards show, by day or hour. A day's rows are computed again when one of its moves is."""

from __future__ import annotations

from ops.analytics.schema.columns import BOOL, DATE, DOUBLE, INT, LONG, STRING, TIME, Column, Table, columns

_DAY = Column("day", DATE, "the day on which the moves started")
#: The windows of burn rates, the shortest first, and their names in a sentence.
BURN_WINDOWS = {"5m": "5 minutes", "30m": "30 minutes", "1h": "hour", "6h": "6 hours", "3d": "3 days"}
#: The counts, times and rates over a group of moves.
ATTAINMENT = (
    *columns(
        STRING,
        scope="all, kind, node or plan: what the moves have in common",
        value="the kind, the node or the plan; empty for all",
    ),
    *columns(
        LONG,
        moves="moves, each replica once",
        moved="moves that reached their target",
        failed="moves that failed, timed out or were terminated",
        cancelled="moves that were cancelled or superseded",
        open="moves that are open",
        asked="moves with an SLA",
        met="moves that met it",
        missed="moves that missed it, open ones past their deadline included",
        not_due="open moves before their deadline",
        excluded="moves that do not count: cancelled, superseded or invalid before their deadline",
    ),
    *columns(
        DOUBLE,
        attainment="met / (met + missed); null if none counts",
        low="lower end of its 95 % Wilson interval",
        high="upper end of it",
    ),
    *columns(LONG, bytes_copied="bytes in the copies"),
    *columns(
        DOUBLE,
        p50_seconds="median of the time until in place",
        p95_seconds="95 % quantile of it",
        max_seconds="the longest",
        mean_rate="bytes per second while copying, over all",
    ),
)

SLA_DAILY = Table(
    "gold",
    "sla_daily",
    "day and group of moves that started on it",
    ("day", "scope", "value"),
    (_DAY, *ATTAINMENT, *columns(STRING, rules="the digest of the rules for SLAs that applied")),
)

RATES_HOURLY = Table(
    "gold",
    "rates_hourly",
    "hour and pair of directories or nodes between which replicas were copied",
    ("hour", "kind", "node", "origin", "target"),
    (
        *columns(TIME, hour="the begin of the hour"),
        *columns(STRING, kind="disk, node or both"),
        *columns(INT, node="the node that got the replicas"),
        *columns(STRING, origin="the directory, or the node, that they left", target="the directory that they got"),
        *columns(LONG, moves="moves that copied in this hour"),
        *columns(
            DOUBLE,
            bytes="bytes copied in it, a move's bytes spread evenly over the time it copied",
            seconds="seconds of copying, the limited and stalled ones included",
            rate="bytes per second of one copy: bytes / seconds",
        ),
        Column("day", DATE, "the day of the hour"),
    ),
)

STALLS = Table(
    "gold",
    "stalls",
    "day, node and reason that held moves",
    ("day", "node", "reason"),
    (
        _DAY,
        *columns(INT, node="the node that gets the replicas; -1 if it is unknown"),
        *columns(STRING, reason="what held them"),
        *columns(LONG, moves="moves that it held"),
        *columns(DOUBLE, seconds="for how long, over all", longest_seconds="the longest time of one move"),
        *columns(STRING, longest_id="that move"),
    ),
)

RETRIES = Table(
    "gold",
    "retries",
    "day, workflow type, activity and node",
    ("day", "workflow_type", "activity_type", "node"),
    (
        Column("day", DATE, "the day on which the activities were scheduled"),
        *columns(STRING, workflow_type="the type of their workflow", activity_type="their name"),
        *columns(INT, node="the node whose queue they were in; -1 for another queue"),
        *columns(
            LONG,
            activities="activities that were scheduled",
            attempts="attempts of them, as far as they are known",
            retried="activities with more than one attempt",
            failed="activities that failed for good",
            timed_out="activities that timed out",
            cancelled="activities that were cancelled",
        ),
        *columns(STRING, last_failure="the type of the latest failure"),
    ),
)

TRANSITIONS = Table(
    "gold",
    "transitions",
    "day and transition of replicas between two phases",
    ("day", "phase", "event", "next_phase"),
    (
        Column("day", DATE, "the day on which the steps closed"),
        *columns(
            STRING,
            phase="the phase before",
            event="the outcome of its step",
            next_phase="the phase of the next step; empty after the last one",
        ),
        *columns(LONG, moves="how often it was taken"),
        *columns(BOOL, allowed="whether the workflow's transition table has it; if not, it is an alarm"),
        *columns(STRING, example="one move that took it"),
    ),
)

PLAN_PROGRESS = Table(
    "gold",
    "plan_progress",
    "plan and minute in which moves of it ended",
    ("namespace", "workflow_id", "chain", "minute"),
    (
        *columns(STRING, namespace="Temporal's namespace", workflow_id="the plan's workflow id", chain="its first run"),
        *columns(TIME, minute="the begin of the minute"),
        *columns(
            LONG,
            moves_total="moves in the plan",
            ended="moves that ended in this minute",
            done="moves that had reached their targets by its end",
            missed="moves that had ended elsewhere by its end; one that was tried again counts once more",
            bytes_total="bytes to copy: as the check found them, or what was copied, if that is more",
            bytes="bytes of the moves that reached their targets in this minute",
            bytes_done="the same by its end",
        ),
        *columns(DOUBLE, rate="bytes_done per second since the plan's start"),
        *columns(TIME, eta="when the rest would be copied at this rate; null if nothing was copied"),
        Column("day", DATE, "the day on which the plan started"),
    ),
)

SLO_MINUTES = Table(
    "gold",
    "slo_minutes",
    "SLO, minute in which events of it fell, and day on which their moves started",
    ("day", "slo", "minute"),
    (
        _DAY,
        *columns(STRING, slo="the SLO's name"),
        *columns(TIME, minute="the begin of the minute in which the events were good, or turned bad"),
        *columns(LONG, good="good events", bad="bad events"),
        *columns(
            DOUBLE,
            good_weight="what the good ones weigh: 1 each, or the bytes of their replicas",
            bad_weight="what the bad ones weigh",
            squares="the sum of the squares of all weights, for the interval of a weighted share",
        ),
        *columns(STRING, definitions="the digest of the SLOs and the rules that applied"),
    ),
)

BURN_RATE = Table(
    "gold",
    "burn_rate",
    "SLO and day, as of the day's end; of the newest day as of the newest export",
    ("day", "slo"),
    (
        Column("day", DATE, "the day"),
        *columns(STRING, slo="the SLO's name", event="what it counts: placed, swap, rate, unattended or cancelled"),
        *columns(DOUBLE, objective="the share of events that should be good"),
        *columns(INT, window_days="the days over which its budget is counted"),
        *columns(STRING, weight="moves or bytes: what an event weighs"),
        *columns(TIME, until="the last minute that counts: windows end with it"),
        *columns(LONG, good="good events within the window", bad="bad events within it"),
        *columns(
            DOUBLE,
            share="the share of the good ones, by weight; null without any",
            low="lower end of its 95 % Wilson interval",
            high="upper end of it",
            budget_left="1 - (1 - share) / (1 - objective): 1 is all of it, below 0 it is overspent; null below 20 "
            "events",
            **{
                f"burn_{name}": f"share of bad events in the last {words} / (1 - objective): 1 spends the budget "
                "in its window; null below 20 events"
                for name, words in BURN_WINDOWS.items()
            },
        ),
        *columns(
            STRING,
            alarm="page: the last hour (and 5 minutes) burned at a rate that spends 2 % of the budget in an hour, or "
            "6 hours (and 30 minutes) at one that spends 5 % in 6 hours; ticket: 3 days (and 6 hours) at one that "
            "spends 10 % in 3 days; null for neither, and where a window has fewer than 20 events",
            definitions="the digest of the SLOs and the rules that applied",
        ),
    ),
)
