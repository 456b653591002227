"""The folder of a run: its own, and on a disk with enough space."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ops.demo import folder
from ops.stack.errors import OpsError


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(OpsError, match="contains files that are not a demo's"):
        folder.prepare(tmp_path)


def test_disk_that_is_too_full_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=folder.NEEDED - 1))
    with pytest.raises(OpsError, match=r"has 1000\.0 MB free, and the run needs 1\.0 GB; free some space"):
        folder.prepare(tmp_path / "demo")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=folder.NEEDED))
    folder.prepare(tmp_path / "demo")
