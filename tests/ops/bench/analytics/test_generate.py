"""The generated history: an export that is as its manifest says, with as many events as it claims."""

from __future__ import annotations

from pathlib import Path

from activities.history.manifest import CLOSED, read_manifests
from ops.analytics.lake.decode import read_file
from ops.analytics.lake.source import files_of
from ops.bench.analytics.generate import EVENTS, export, moves_of


def test_generated_exports_follow_each_other_and_are_read_whole(tmp_path: Path) -> None:
    export(tmp_path, 1, 0, moves_of(3 * EVENTS))
    export(tmp_path, 2, 3, 1)
    assert [manifest.sequence for manifest in read_manifests(tmp_path)] == [1, 2]
    records = [record for file in files_of(tmp_path, 0, 2) for record in read_file(file)]
    assert sum(record[0] == CLOSED for record in records) == 4 * EVENTS
    assert len({record[5] for record in records if record[0] == CLOSED}) == 4
