"""What counts as shown in the table of the proposals' features, and what a run knows of its tests."""

from __future__ import annotations

import pytest

from tests.support import needs
from tests.support.report.tables import ROOT


def test_page_has_what_may_be_lacking() -> None:
    page = " ".join((ROOT / "ops" / "docs" / "testing.md").read_text().split())
    said = page.partition("What the tests need")[2][:800]
    for name in (
        "root",
        "docker",
        "strace",
        "mkfs.xfs",
        "fusermount3",
        "/dev/fuse",
        "kcat",
        "chromium",
        "Apache Kafka",
    ):
        assert name in said


def test_nothing_is_skipped_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="CI needs docker: no engine"):
        needs.need("docker", "no engine")
    assert needs.needs("docker", "no engine").args == (False,)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="needs docker: no engine"):
        needs.need("docker", "no engine")
    assert needs.needs("docker", "no engine").args == (True,)
    assert needs.needs("docker", "").args == (False,)
