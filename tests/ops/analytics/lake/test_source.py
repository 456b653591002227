"""The data source: which files of which manifests a batch has."""

from __future__ import annotations

import shutil
from pathlib import Path

from activities.history.manifest import read_manifests
from ops.analytics.lake.decode import MANIFEST, QUARANTINE
from ops.analytics.lake.source import HistoryStream, files_of, newest, numbered_again, restored, spread
from tests.support.runs.histories import export, moved


def two_exports(folder: Path) -> None:
    """An export, and one of what came after it."""
    export(folder, moved("a"), at=100)
    export(folder, moved("a"), moved("b", partition=1), at=200)


def test_batch_is_a_range_of_manifests(tmp_path: Path) -> None:
    two_exports(tmp_path)
    stream = HistoryStream(str(tmp_path), 0)
    assert (stream.initialOffset(), stream.latestOffset()) == ({"sequence": 0}, {"sequence": 2})
    parts = stream.partitions({"sequence": 1}, {"sequence": 2})
    found = [(file["sequence"], file["kind"]) for part in parts for file in part.files]  # type: ignore[attr-defined]
    assert found == [(2, "closed"), (2, MANIFEST)]


def test_malformed_and_missing_manifests_are_quarantined_and_stop_nothing(tmp_path: Path) -> None:
    two_exports(tmp_path)
    export(tmp_path, moved("c", partition=2), at=300)
    (tmp_path / "_manifest" / "00000001.json").write_text("{")
    (tmp_path / "_manifest" / "00000002.json").unlink()
    found = [(file["sequence"], file["kind"], file.get("reason")) for file in files_of(tmp_path, 0, newest(tmp_path))]
    assert found == [(1, QUARANTINE, "manifest"), (2, QUARANTINE, "manifest"), (3, MANIFEST, None), (3, "closed", None)]


def test_pruned_manifests_are_left_out(tmp_path: Path) -> None:
    two_exports(tmp_path)
    (tmp_path / "_manifest" / "00000001.json").unlink()
    (tmp_path / "_manifest" / "pruned").write_text("00000001.json\n")
    assert [file["sequence"] for file in files_of(tmp_path, 0, 2)] == [2, 2]


def test_exports_that_were_removed_before_they_were_read_are_quarantined_once(tmp_path: Path) -> None:
    for number in range(1, 6):
        export(tmp_path, *[moved(f"m{each}", partition=each) for each in range(number)], at=100 * number)
    for number in (1, 2, 3, 4):
        (tmp_path / "_manifest" / f"0000000{number}.json").unlink()
    (tmp_path / "_manifest" / "pruned").write_text("00000004.json\n")
    bad, *rest = files_of(tmp_path, 1, 5)
    assert (bad["sequence"], bad["reason"]) == (2, "pruned")
    assert bad["message"].startswith("the exports 00000002.json to 00000004.json were removed before they were read")
    assert {file["sequence"] for file in rest} == {5}


def test_exports_that_numbered_again_follow_those_that_were_read(tmp_path: Path) -> None:
    two_exports(tmp_path)
    second = read_manifests(tmp_path)[1].export_id
    assert not numbered_again(tmp_path, 2, second)
    shutil.rmtree(tmp_path)
    export(tmp_path, moved("c"), at=300)
    assert numbered_again(tmp_path, 2, second)
    stream = HistoryStream(str(tmp_path), 2, 2)
    assert stream.latestOffset() == {"sequence": 3}
    parts = stream.partitions({"sequence": 2}, {"sequence": 3})
    assert {file["sequence"] for part in parts for file in part.files} == {3}  # type: ignore[attr-defined]
    export(tmp_path, moved("c"), moved("d", partition=1), at=400)
    assert numbered_again(tmp_path, 2, second), "the number is that of another export"


def test_pruned_exports_are_not_numbered_again(tmp_path: Path) -> None:
    two_exports(tmp_path)
    first = read_manifests(tmp_path)[0].export_id
    (tmp_path / "_manifest" / "00000001.json").unlink()
    (tmp_path / "_manifest" / "pruned").write_text("00000001.json\n")
    assert not numbered_again(tmp_path, 1, first)


def test_file_and_manifest_are_read_once_they_are_restored(tmp_path: Path) -> None:
    two_exports(tmp_path)
    manifest = read_manifests(tmp_path)[1]
    (file,) = manifest.files
    data = (tmp_path / file.name).read_bytes()
    (tmp_path / file.name).write_bytes(data[:-1])
    assert restored(tmp_path, 2, file.name) == []
    (tmp_path / file.name).write_bytes(data)
    assert [one["name"] for one in restored(tmp_path, 2, file.name)] == [file.name]
    path = tmp_path / "_manifest" / manifest.name
    text = path.read_text()
    path.write_text("{")
    assert restored(tmp_path, 2, f"_manifest/{manifest.name}") == []
    path.write_text(text)
    assert [one["kind"] for one in restored(tmp_path, 2, f"_manifest/{manifest.name}")] == [MANIFEST, "closed"]


def test_file_that_no_manifest_names_is_foreign(tmp_path: Path) -> None:
    export(tmp_path, moved("a"), at=100)
    (manifest,) = read_manifests(tmp_path)
    (tmp_path / Path(manifest.files[0].name).with_name("stray.pb")).write_bytes(b"x")
    bad = [file for file in files_of(tmp_path, 0, 1) if file["kind"] == QUARANTINE]
    assert [(file["reason"], Path(file["name"]).name) for file in bad] == [("foreign", "stray.pb")]


def test_link_out_of_the_export_folder_is_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "export", tmp_path / "secret"
    export(folder, moved("a"), at=100)
    (manifest,) = read_manifests(folder)
    file = folder / manifest.files[0].name
    outside.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(outside)
    assert [(one["kind"], one.get("reason")) for one in files_of(folder, 0, 1)[1:]] == [(QUARANTINE, "foreign")]


def test_files_are_spread_evenly_by_size() -> None:
    files = [{"name": str(n), "bytes": n} for n in (9, 1, 1, 1, 5, 1)]
    bins = [part.files for part in spread(files, 9)]  # type: ignore[attr-defined]
    assert sorted(sum(int(file["bytes"]) for file in one) for one in bins) == [9, 9]
    assert len(spread(files, 1)) == 6 and len(spread([])) == 1
