"""The output of `rehome storage info`, as values and as lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node.directories import storage_info
from storage_node.directories.meta.properties import MetaProperties
from storage_node.directories.storage_info import Seen, info, lines, see

A, B, C = (letter * 22 for letter in "ABC")
V0 = MetaProperties(0, "c", 1)
V1 = MetaProperties(1, "c", 1, B)
V2 = MetaProperties(2, "c", 1, B, (B, C))


def ok(path: str, properties: MetaProperties) -> Seen:
    return Seen(path, "ok", properties)


@pytest.mark.conformance(140)
def test_what_is_at_a_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "meta.properties").write_text("version=1\nnode.id=1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "meta.properties").mkdir()
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    seen = {name: see(str(tmp_path / name)) for name in ("none", "file", "empty", "bad", "folder", "good")}
    states = {name: each.state for name, each in seen.items()}
    assert states == {
        "none": "missing",
        "file": "no directory",
        "empty": "unformatted",
        "bad": "malformed",
        "folder": "malformed",
        "good": "ok",
    }
    assert seen["bad"].reason == "cluster.id is missing" and "regular file" in seen["folder"].reason
    assert seen["good"].properties == MetaProperties(1, "c", 1)


@pytest.mark.conformance(140, 142)
def test_directories_and_problems_are_sorted_by_path() -> None:
    seen = [Seen("/d", "unformatted"), Seen("/c", "no directory"), Seen("/b", "missing"), ok("/a", V1)]
    assert lines(info(seen, "kraft")) == [
        "Found log directories:",
        "  /a",
        "  /d",
        "",
        f"Found metadata: {{cluster.id=c, directory.id={B}, node.id=1, version=1}}",
        "",
        "Found problems:",
        "  /b does not exist",
        "  /c is not a directory",
        "  /d is not formatted.",
        "",
    ]


@pytest.mark.parametrize(
    ("properties", "shown"),
    [
        (V0, "{broker.id=1, cluster.id=c, version=0}"),
        (MetaProperties(0, None, None), "{version=0}"),
        (V1, f"{{cluster.id=c, directory.id={B}, node.id=1, version=1}}"),
        (MetaProperties(1, "c", 1, B, (B,)), f"{{cluster.id=c, directory.id={B}, node.id=1, version=1}}"),
        (
            MetaProperties(2, "c", 1, B, (B,)),
            f"{{cluster.id=c, directory.id={B}, directory.ids={B}, node.id=1, version=2}}",
        ),
    ],
)
def test_one_good_directory(properties: MetaProperties, shown: str) -> None:
    found = info([ok("/a", properties)], "")
    assert found.problems == ()
    assert lines(found) == ["Found log directory:", "  /a", "", f"Found metadata: {shown}", ""]


@pytest.mark.conformance(127, 141)
@pytest.mark.parametrize(
    ("mode", "properties", "problem"),
    [
        ("kraft", V0, "for a cluster in KRaft mode, but the directories are formatted for legacy mode."),
        ("legacy", V1, "for a legacy cluster, but the directories are formatted for a cluster in KRaft mode."),
        ("legacy", MetaProperties(2, "c", 1, B, (B,)), "formatted for a cluster in KRaft mode."),
        ("legacy", V0, ""),
        ("kraft", V1, ""),
        ("", V0, ""),
        ("", V1, ""),
    ],
)
def test_file_of_another_mode(mode: str, properties: MetaProperties, problem: str) -> None:
    problems = info([ok("/a", properties)], mode).problems
    assert len(problems) == bool(problem) and all(each.endswith(problem) for each in problems)


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (MetaProperties(1, "x", 2, C), "Mismatched cluster IDs between storage directories."),
        (MetaProperties(1, "c", 2, C), "Mismatched node IDs between storage directories."),
        (MetaProperties(1, "c", 1, B), f"Duplicate directory ID {B} in /a and /b."),
        (
            MetaProperties(2, "c", 1, C, (B, C, A)),
            f"Directory ID {A} is listed in /b/meta.properties, but no directory has it",
        ),
    ],
)
def test_mismatched_directories_are_reported(other: MetaProperties, problem: str) -> None:
    (told,) = info([ok("/a", V1), ok("/b", other)], "").problems
    assert told.startswith(problem)


def test_malformed_file_is_named() -> None:
    found = info([Seen("/a", "malformed", reason="unknown version 3")], "")
    assert found.problems == ("Error loading /a/meta.properties: unknown version 3",)
    assert found.metadata == {} and found.directories == ("/a",)
    assert storage_info.lines(found)[0] == "Found log directory:"
