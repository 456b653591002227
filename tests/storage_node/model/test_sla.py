"""The verdict on a deadline follows the table of cases."""

from __future__ import annotations

import pytest

from storage_node.model.sla import judge
from tests.support.sla_cases import CASES, SlaCase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_judge_follows_the_table_for_each_replica(case: SlaCase) -> None:
    has_deadline = case.deadline is not None
    late = case.deadline is not None and case.after > case.deadline
    found = [
        judge(outcome, error, under_way=outcome == "open", late=late, has_deadline=has_deadline)
        for outcome, error in case.rows
    ]
    assert found == list(case.replicas)
