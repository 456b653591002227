"""An ingest repairs what earlier ones left: restored files, an interrupted rebuild, exports numbered again."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.history import exporter
from activities.history.manifest import read_manifests
from ops.analytics import schema
from ops.analytics.gold.rules import Rules
from ops.analytics.lake import ingest as module
from ops.analytics.lake.ingest import TRANSFORMS, ingest_exports, transforms
from ops.analytics.lake.tables import Lake
from tests.support.runs.histories import T0, export, moved
from tests.support.runs.sample_runs import under_way

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Killed(Exception):
    """The process ends here."""


def moves(lake: Lake) -> list[tuple[str, str]]:
    return sorted((row.topic, row.outcome) for row in lake.read(schema.MOVES).collect())


def test_restored_file_an_interrupted_rebuild_and_new_exports_lose_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lake, rules = tmp_path / "export", Lake(spark, tmp_path / "tables"), Rules()
    first, second = moved("a", topic="first"), moved("b", topic="second")
    # Its end came after it was listed, with an exporter that leaves it among the open ones.
    ended = under_way("ended")
    ended.terminate(90.0)
    listed = ended.listed
    with monkeypatch.context() as patch:
        patch.setattr(exporter, "_CLOSING", frozenset())
        ended.listed = lambda: under_way("ended").listed()  # type: ignore[method-assign]
        export(folder, first, ended, at=100)
        ended.listed = listed  # type: ignore[method-assign]
    export(folder, first, second, at=200)
    broken = folder / read_manifests(folder)[1].files[0].name
    data = broken.read_bytes()
    broken.write_bytes(data[:-1])
    ingest_exports(lake, folder, rules)
    assert moves(lake) == [("first", "moved"), ("payments", "terminated")]
    assert lake.read(schema.QUARANTINE).count() == 1
    assert lake.noted(schema.INGESTS, TRANSFORMS) == transforms()

    # A later version computes the tables again; its first attempt is interrupted.
    broken.write_bytes(data)
    lake.note(schema.INGESTS, TRANSFORMS, "an earlier version")

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, "rebuild", killed)
        ingest_exports(lake, folder, rules)
    assert moves(lake) == [("first", "moved"), ("payments", "terminated"), ("second", "moved")]
    assert lake.read(schema.QUARANTINE).count() == 0
    accounts = lake.read(schema.INGESTS).where("kind != 'manifest'").collect()
    assert all(row.expected == row.read > 0 and row.quarantined == 0 for row in accounts) and len(accounts) == 4
    assert lake.noted(schema.INGESTS, TRANSFORMS) == "an earlier version"

    shutil.rmtree(folder)
    export(folder, first, second, ended, moved("c", topic="third"), at=300)
    ingest_exports(lake, folder, rules)
    assert lake.noted(schema.INGESTS, TRANSFORMS) == transforms()
    assert moves(lake) == [("first", "moved"), ("payments", "terminated"), ("second", "moved"), ("third", "moved")]
    manifests = lake.read(schema.INGESTS).where("kind = 'manifest'").collect()
    assert sorted((row.sequence, row.taken_at.timestamp()) for row in manifests) == [
        (number, (T0 + timedelta(seconds=100 * number)).timestamp()) for number in (1, 2, 3)
    ]
    # Each event once, those of the run that had ended too.
    events = lake.read(schema.HISTORY_EVENTS)
    assert events.count() == events.select("run_id", "event_id").distinct().count()
    assert events.where(f"run_id = '{ended.run_id}'").count() == len(ended.events)
    assert lake.read(schema.OPEN_SNAPSHOTS).count() == 0
