"""Preferred log directories are in every log directory: any but the last may be gone at the next start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.model.ids import TopicPartition
from storage_node.replicas.preferred_log_dirs import FILE, PreferredLogDirs
from tests.support.nodes.node_harness import make_dirs

TPS = [TopicPartition("later", index) for index in range(4)]


@pytest.fixture
def dirs(tmp_path: Path) -> Iterator[DirectoryManager]:
    manager = DirectoryManager.open(make_dirs(tmp_path, 3), node_id=1)
    yield manager
    manager.close()


def loaded(dirs: DirectoryManager, *online: LogDirectory) -> dict[TopicPartition, str]:
    """What a start with only these directories reads."""
    alone = DirectoryManager(online, cluster_id="c", node_id=1, directory_ids=())
    kept = PreferredLogDirs(alone)
    kept.load()
    return dict(kept._paths)


@pytest.mark.feature("113-06")
def test_preference_is_read_from_any_directory(dirs: DirectoryManager) -> None:
    kept = PreferredLogDirs(dirs)
    kept.load()
    one, two, three = dirs.directories
    assert kept.remember([(TPS[0], two)]) == []
    one.fail("pulled out")
    kept.remember([(TPS[1], three)])
    kept._file.flush(10)
    newest = {TPS[0]: two.name, TPS[1]: three.name}
    for directory in (two, three):
        assert loaded(dirs, LogDirectory(directory.path, directory.id)) == newest
    returned = LogDirectory(one.path, one.id)
    assert loaded(dirs, returned) == {TPS[0]: two.name}, "as it was when it failed"
    assert loaded(dirs, returned, two, three) == newest, "the newest counts, not the first"
    kept.forget(TPS)
    assert kept.get(TPS[0]) is None


def test_file_that_is_not_valid_gives_way_to_another(dirs: DirectoryManager) -> None:
    kept = PreferredLogDirs(dirs)
    kept.remember([(TPS[0], dirs.directories[2])])
    kept._file.flush(10)
    (dirs.directories[0].path / FILE).write_text('{"version": 1, "number": 99, "pa')
    assert loaded(dirs, *dirs.directories) == {TPS[0]: dirs.directories[2].name}


def test_list_from_an_earlier_version_is_read(dirs: DirectoryManager) -> None:
    first = dirs.directories[0]
    (first.path / FILE).write_text(json.dumps([["later", 0, first.name]]))
    assert loaded(dirs, *dirs.directories) == {TPS[0]: first.name}
