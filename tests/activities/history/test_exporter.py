"""What an export folder holds after an export, a second one, a broken-off one, and one with nothing to say."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.export.v1 import WorkflowExecutions
from temporalio.api.history.v1 import History

from activities.history.activity import cluster_scope
from activities.history.exporter import Exporter
from activities.history.files import ExportBusy, locked
from activities.history.lateness import late_exports
from activities.history.manifest import CLOSED, FORMAT, ExportCorrupt, Manifest, decode, newest_manifest, read_manifests
from activities.history.source import Run
from tests.support.runs.histories import (
    CLUSTER,
    NAMESPACE,
    RUNNING,
    T0,
    BuiltSource,
    RunBuilder,
    export,
    exporter,
    moved,
)
from tests.support.runs.sample_runs import cluster, failed, under_way
from workflows.model.calls import ExportCall, ExportResult


def go(source: BuiltSource, directory: Path, at: float = 3600.0, **call: Any) -> ExportResult:
    when = T0 + timedelta(seconds=at)
    return asyncio.run(exporter(source, when).export(ExportCall(str(directory), **call)))


def exported(directory: Path, manifest: Manifest, prefix: str = "part") -> dict[tuple[str, str], int]:
    """(workflow id, run id) -> events of what an export's files hold."""
    found = {}
    for entry in manifest.files:
        if entry.name.endswith(".pb") and Path(entry.name).name.startswith(prefix):
            executions = WorkflowExecutions.FromString((directory / entry.name).read_bytes())
            for run, item in zip(entry.runs, executions.items, strict=True):
                found[run.workflow_id, run.run_id] = len(item.history.events)
    return found


def test_export_is_temporals_protobuf_in_a_dated_folder(tmp_path: Path) -> None:
    well, bad = moved("a"), failed()
    result = export(tmp_path, well, bad)
    (manifest,) = read_manifests(tmp_path)
    assert exported(tmp_path, manifest) == {
        (well.workflow_id, well.run_id): len(well.events),
        (bad.workflow_id, bad.run_id): len(bad.events),
    }
    assert (result.closed, result.open, result.events) == (2, 0, len(well.events) + len(bad.events))
    assert result.manifest == str(tmp_path / "_manifest" / "00000001.json")
    name = manifest.files[0].name
    assert name == f"dt=2026-11-20/run={manifest.export_id}/part-00000.pb"
    executions = WorkflowExecutions.FromString((tmp_path / name).read_bytes())
    by_id = {
        item.history.events[0].workflow_execution_started_event_attributes.workflow_id: item
        for item in executions.items
    }
    assert by_id[well.workflow_id].history == well.history()


def test_manifest_describes_its_files(tmp_path: Path) -> None:
    first, last = moved("a"), moved("b", start=100)
    export(tmp_path, last, first)
    (manifest,) = read_manifests(tmp_path)
    (entry,) = manifest.files
    data = (tmp_path / entry.name).read_bytes()
    assert (entry.bytes, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert entry.events == len(first.events) + len(last.events)
    assert entry.min_close_time < entry.max_close_time == manifest.watermark
    assert [run.workflow_id for run in entry.runs] == [first.workflow_id, last.workflow_id]
    raw = json.loads((tmp_path / "_manifest" / "00000001.json").read_text())
    assert raw["format"] == FORMAT and raw["parent"] == "" and raw["exporter"].startswith("rehome ")


def test_exported_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    export(tmp_path / "new" / "folder", moved("a"), under_way())
    for path in (tmp_path / "new").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_second_export_without_changes_writes_nothing(tmp_path: Path) -> None:
    source = BuiltSource([moved("a"), failed(), under_way(), *cluster()])
    first = go(source, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    source.fetched.clear()
    again = go(source, tmp_path, at=7000)
    assert (again.closed, again.open, again.events, again.bytes) == (0, 0, 0, 0)
    assert again.manifest == first.manifest
    assert source.fetched == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_quiet_hour_leaves_a_manifest_without_files_while_a_run_is_open(tmp_path: Path) -> None:
    """Its deadline may pass: the time of the last export is that of the report."""
    going = under_way()
    source = BuiltSource([going])
    go(source, tmp_path)
    for at in (7200, 7300, 10_800):
        result = go(source, tmp_path, at=at)
        assert (result.closed, result.open, result.events) == (0, 0, 0)
    found = read_manifests(tmp_path)
    assert [(one.taken_at[11:16], len(one.files)) for one in found] == [("11:00", 2), ("12:00", 0), ("13:00", 0)]
    going.terminate(12_000)
    assert go(source, tmp_path, at=14_400).closed == 1
    assert go(source, tmp_path, at=90_000).manifest.endswith("00000004.json"), "nothing is open any more"


def test_next_export_has_only_new_runs(tmp_path: Path) -> None:
    old, going = moved("old"), under_way()
    source = BuiltSource([old, going])
    go(source, tmp_path)
    new = moved("new", start=60)
    source.add(new)
    source.fetched.clear()
    result = go(source, tmp_path, at=7200)
    assert (result.closed, result.open) == (1, 0)
    assert source.fetched == [(new.workflow_id, new.run_id)]
    first, second = read_manifests(tmp_path)
    assert second.parent == first.name and second.watermark > first.watermark
    assert exported(tmp_path, second) == {(new.workflow_id, new.run_id): len(new.events)}


def test_late_visible_run_is_exported_within_the_overlap(tmp_path: Path) -> None:
    source = BuiltSource([moved("seen", start=300)])
    go(source, tmp_path)
    source.add(moved("lagging", start=10))
    assert go(source, tmp_path).closed == 1
    assert go(source, tmp_path).closed == 0


def test_open_run_is_exported_with_its_pending_activities(tmp_path: Path) -> None:
    going = under_way()
    export(tmp_path, going)
    (manifest,) = read_manifests(tmp_path)
    assert exported(tmp_path, manifest, "open") == {(going.workflow_id, going.run_id): len(going.events)}
    (snapshot,) = [entry.name for entry in manifest.files if entry.name.endswith(".json")]
    (run,) = json.loads((tmp_path / snapshot).read_text())["runs"]
    (activity,) = run["activities"]
    assert activity["attempt"] == 3 and activity["lastFailure"]["message"] == "node restarted"
    assert activity["heartbeatDetails"]["payloads"]


def test_open_run_is_exported_again_after_changes_and_when_it_closes(tmp_path: Path) -> None:
    going = under_way()
    source = BuiltSource([going])
    go(source, tmp_path)
    going.pending[0]["lastHeartbeatTime"] = "2026-11-20T10:00:50Z"
    assert go(source, tmp_path).open == 0, "a heartbeat that says nothing new is no news"
    going.pending[0]["attempt"] = 4
    assert go(source, tmp_path).open == 1
    going.terminate(70)
    result = go(source, tmp_path)
    assert (result.closed, result.open) == (1, 0)
    assert len(read_manifests(tmp_path)) == 3


def test_run_that_closes_after_it_was_listed_is_exported_as_closed(tmp_path: Path) -> None:
    """Its history ends when it is fetched, half an hour after the listing; another run begins and ends in between."""
    going, short = under_way(), moved("short", start=120)

    class Slow(BuiltSource):
        async def history(self, run: Run) -> History | None:
            if run.key == (going.workflow_id, going.run_id) and going.status == RUNNING:
                going.terminate(1800)
                self.add(short)
            return await super().history(run)

    source = Slow([moved("before"), going])
    result = go(source, tmp_path)
    assert (result.closed, result.open) == (2, 0)
    (first,) = read_manifests(tmp_path)
    assert exported(tmp_path, first)[going.workflow_id, going.run_id] == len(going.events)
    assert {file.kind for file in first.files} == {CLOSED}
    assert go(source, tmp_path, at=7200).closed == 1
    assert exported(tmp_path, read_manifests(tmp_path)[1]) == {(short.workflow_id, short.run_id): len(short.events)}
    assert go(source, tmp_path, at=9000).closed == 0


def test_exporters_own_runs_do_not_cause_an_export(tmp_path: Path) -> None:
    own = RunBuilder(f"{CLUSTER}/export", "e1", "ExportHistory").complete(3.0)
    running = RunBuilder(f"{CLUSTER}/export", "e2", "ExportHistory", start=5.0)
    source = BuiltSource([own, running])
    assert go(source, tmp_path).closed == 0
    assert read_manifests(tmp_path) == ()
    source.add(moved("a"))
    result = go(source, tmp_path)
    assert (result.closed, result.open) == (2, 0)


def test_as_of_leaves_out_what_closed_or_started_later(tmp_path: Path) -> None:
    early, late_, going = moved("early"), moved("late", start=500), under_way(start=600)
    source = BuiltSource([early, late_, going])
    result = go(source, tmp_path, as_of="2026-11-20T10:05:00Z")
    assert (result.closed, result.open) == (1, 0)
    (manifest,) = read_manifests(tmp_path)
    assert manifest.taken_at == "2026-11-20T10:05:00.000000Z"
    assert go(source, tmp_path).closed == 1


def test_files_are_split_by_size_and_every_run_is_in_one_of_them(tmp_path: Path) -> None:
    runs = [moved(f"m{i}", partition=i) for i in range(12)]
    export(tmp_path, *runs, part_bytes=12_000)
    (manifest,) = read_manifests(tmp_path)
    assert len(manifest.files) > 3
    assert all(entry.bytes <= 12_000 for entry in manifest.files)
    assert set(exported(tmp_path, manifest)) == {(run.workflow_id, run.run_id) for run in runs}


def test_one_history_larger_than_a_file_gets_a_file_of_its_own(tmp_path: Path) -> None:
    export(tmp_path, moved("a"), moved("b", partition=1), part_bytes=10)
    (manifest,) = read_manifests(tmp_path)
    assert [len(entry.runs) for entry in manifest.files] == [1, 1]


def test_history_that_the_server_removed_meanwhile_is_left_out(tmp_path: Path) -> None:
    kept, gone = moved("kept"), moved("gone", partition=1)
    source = BuiltSource([kept, gone])
    source.gone.add((gone.workflow_id, gone.run_id))
    assert go(source, tmp_path).closed == 1
    assert go(source, tmp_path).closed == 0
    assert len(read_manifests(tmp_path)) == 1
    assert not [path for path in tmp_path.glob("dt=*/run=*") if not list(path.iterdir())]


def test_status_and_an_event_of_a_newer_server_pass_through(tmp_path: Path) -> None:
    run = under_way()
    run.event("MARKER_RECORDED", 30.0).event_type = 9999  # type: ignore[assignment]
    run.status = 8
    source = BuiltSource([run])
    source.runs[run.workflow_id, run.run_id].listed = lambda: under_way().listed()  # type: ignore[method-assign]
    assert go(source, tmp_path).open == 1


class Crash(BaseException):
    """As if the process had died."""


@pytest.mark.parametrize("kind", ["write", "rename"])
def test_crash_at_any_step_leaves_no_half_export_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Every write, flush and rename in turn is the last thing that happens; the next export then has everything."""
    real_sync, real_rename = os.fsync, Path.rename
    steps = {"left": 0}

    def step() -> None:
        steps["left"] -= 1
        if steps["left"] < 0:
            raise Crash

    def fsync(descriptor: int) -> None:
        if kind == "write":
            step()
        real_sync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        if kind == "rename":
            step()
        moved_to = real_rename(self, target)
        return moved_to

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    runs = [moved("a"), failed(), under_way()]
    crashes = 0
    for allowed in range(100):
        directory = tmp_path / str(allowed)
        steps["left"] = allowed
        try:
            go(BuiltSource(runs), directory)
        except Crash:
            crashes += 1
        else:
            break
        steps["left"] = 1000
        visible = read_manifests(directory)
        if not visible:
            assert go(BuiltSource(runs), directory).closed == 2
        (manifest,) = read_manifests(directory)
        assert len(exported(directory, manifest)) == 2 and len(exported(directory, manifest, "open")) == 1
        assert len(list(directory.glob("dt=*/run=*"))) == 1, "what was left of the crash is gone"
        assert not list(directory.rglob("*.tmp"))
    assert crashes >= 4


DAY = 86_400.0


def days_of_exports(directory: Path) -> BuiltSource:
    """An export a day for three days, each with a run that had closed just before."""
    runs = []
    for day in range(3):
        runs.append(moved(f"day-{day}", start=day * DAY))
        assert go(BuiltSource(runs), directory, at=day * DAY + 3600).closed == 1
    return BuiltSource(runs)


def test_exports_are_kept_for_ever_without_keep_days(tmp_path: Path) -> None:
    source = days_of_exports(tmp_path)
    go(source, tmp_path, at=1000 * DAY)
    assert len(read_manifests(tmp_path)) == 3


def test_pruned_exports_runs_are_not_exported_again(tmp_path: Path) -> None:
    source = days_of_exports(tmp_path)
    assert go(source, tmp_path, at=2 * DAY + 7200, keep_days=2).closed == 0
    left = read_manifests(tmp_path)
    assert [manifest.sequence for manifest in left] == [2, 3]
    assert len(list(tmp_path.glob("dt=*/run=*"))) == 2
    assert go(source, tmp_path, at=1000 * DAY, keep_days=1).closed == 0
    (newest,) = read_manifests(tmp_path)
    assert newest.sequence == 3, "it says how far the exports have come"
    assert len(exported(tmp_path, newest)) == 1
    later = moved("later", start=1000 * DAY)
    assert go(BuiltSource([*source.runs.values(), later]), tmp_path, at=1001 * DAY, keep_days=1).closed == 1
    assert [manifest.sequence for manifest in read_manifests(tmp_path)] == [3, 4]


def test_aborted_prune_is_finished_by_the_next_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = days_of_exports(tmp_path)

    def crash(self: Path, missing_ok: bool = False) -> None:
        raise Crash

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(Path, "unlink", crash)
        go(source, tmp_path, at=1000 * DAY, keep_days=1)
    assert [manifest.sequence for manifest in read_manifests(tmp_path)] == [3]
    assert go(source, tmp_path, at=1000 * DAY, keep_days=1).closed == 0
    assert [path.name for path in sorted((tmp_path / "_manifest").iterdir())] == ["00000003.json", "pruned"]
    assert len(list(tmp_path.glob("dt=*/run=*"))) == 1


def test_second_concurrent_export_is_rejected(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ExportBusy, match="another export"):
        export(tmp_path, moved("a"))
    assert export(tmp_path, moved("a")).closed == 1


@pytest.mark.parametrize("damage", ["garbage", "missing", "newer"])
def test_damaged_manifest_is_rejected_with_a_sentence(tmp_path: Path, damage: str) -> None:
    source = BuiltSource([moved("a")])
    go(source, tmp_path)
    source.add(moved("b", partition=1))
    go(source, tmp_path)
    first = tmp_path / "_manifest" / "00000001.json"
    if damage == "missing":
        first.unlink()
    else:
        first.write_text(
            "{" if damage == "garbage" else first.read_text().replace(f'"format":{FORMAT}', f'"format":{FORMAT + 1}')
        )
    with pytest.raises(ExportCorrupt, match="0000000"):
        go(source, tmp_path)


def test_concurrent_fetches_are_limited_and_a_failure_ends_the_export(tmp_path: Path) -> None:
    running = most = 0

    class Slow(BuiltSource):
        async def history(self, run):  # type: ignore[no-untyped-def]
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            if run.run_id == "run-m7" and len(self.fetched) < 30:
                raise OSError("gone")
            return await super().history(run)

    source = Slow([moved(f"m{i}", partition=i) for i in range(20)])
    with pytest.raises(OSError, match="gone"):
        asyncio.run(Exporter(source, NAMESPACE, fetches=8).export(ExportCall(str(tmp_path))))
    assert most == 8
    assert read_manifests(tmp_path) == ()


def test_scope_of_a_cluster_includes_its_plans() -> None:
    assert cluster_scope("c") == 'TaskQueue IN ("c", "c/history", "c/plans")'
    assert cluster_scope("") == ""


def test_export_warns_when_its_oldest_run_is_past_half_of_the_retention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, hour = BuiltSource([moved("a"), moved("b", start=1800.0)]), 3600.0
    source.kept = timedelta(hours=2)
    first = go(source, tmp_path, at=hour)
    (manifest,) = read_manifests(tmp_path)
    oldest = min(run.close_time for file in manifest.files for run in file.runs)
    assert (manifest.oldest_closed, manifest.retention_seconds) == (oldest, 7200)
    assert (first.oldest_closed, first.retention_seconds) == (oldest, 7200)
    assert not caplog.records and late_exports(manifest, T0 + timedelta(seconds=1.5 * hour)) == ""

    # Half of the retention after its end a run was not exported; what was exported before does not count.
    source.add(moved("c", start=2 * hour))
    later = go(source, tmp_path, at=3.2 * hour)
    newest = newest_manifest(tmp_path)
    assert newest is not None and newest.oldest_closed == later.oldest_closed > oldest
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.message == late_exports(newest, T0 + timedelta(seconds=3.2 * hour))
    assert record.message == (
        "the oldest run of this export closed 1.2 hours ago, and the server removes closed runs after 2.0 hours: "
        "export more often, or raise the namespace's retention"
    )
    assert late_exports(newest, T0 + timedelta(seconds=4.3 * hour)).startswith("the newest export is 1.1 hours old")


def test_manifest_of_an_earlier_version_says_nothing_of_the_retention(tmp_path: Path) -> None:
    export(tmp_path, moved("a"))
    (manifest,) = read_manifests(tmp_path)
    plain = json.loads(manifest.encode())
    del plain["retention_seconds"], plain["oldest_closed"]
    earlier = decode(json.dumps(plain | {"format": 1}).encode(), "it")
    assert late_exports(earlier, T0 + timedelta(days=900)) == "" == late_exports(None, T0)
