"""Each change of mutations.tsv can be made; `make mutations` shows that its tests notice it."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import Mutation, read
from tests.support.report.tables import ROOT


@pytest.mark.parametrize("mutation", read(), ids=lambda mutation: mutation.breaks)
def test_change_can_be_made(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new and all((ROOT / each.partition("::")[0]).exists() for each in mutation.tests)
