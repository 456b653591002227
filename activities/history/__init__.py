"""The history exporter: closed and open runs of a namespace as Temporal's export protobuf, with a manifest."""

from __future__ import annotations

from activities.history.activity import HistoryActivities
from activities.history.manifest import ExportCorrupt, Manifest, read_manifests

__all__ = ["ExportCorrupt", "HistoryActivities", "Manifest", "read_manifests"]
