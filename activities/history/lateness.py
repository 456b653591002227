"""Whether exports are late: the server removes a closed run with its history when the namespace's retention is over."""

from __future__ import annotations

from datetime import datetime, timedelta

from activities.history.manifest import Manifest, from_iso

#: The share of the retention after which an export is late.
ALARM = 0.5


def late_export(oldest: datetime | None, retention: timedelta | None, now: datetime) -> str:
    """Return a warning for an export whose oldest run, not exported before, closed too long ago; "" for none."""
    if oldest is None or not retention or now - oldest <= retention * ALARM:
        return ""
    return (
        f"the oldest run of this export closed {_days(now - oldest)} ago, and the server removes closed runs after "
        f"{_days(retention)}: export more often, or raise the namespace's retention"
    )


def late_exports(newest: Manifest | None, now: datetime) -> str:
    """Return a warning about an export folder: its newest export was late, or is too old itself; "" for none."""
    if newest is None or not newest.retention_seconds:
        return ""
    retention = timedelta(seconds=newest.retention_seconds)
    taken = from_iso(newest.taken_at)
    if now - taken > retention * ALARM:
        return (
            f"the newest export is {_days(now - taken)} old, and the server removes closed runs after "
            f"{_days(retention)}: export now, or runs are lost to the tables"
        )
    return late_export(from_iso(newest.oldest_closed) if newest.oldest_closed else None, retention, taken)


def _days(length: timedelta) -> str:
    hours = length.total_seconds() / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"
