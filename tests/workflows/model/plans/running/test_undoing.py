"""What a roll-back takes back, whatever has become of the cluster since."""

from __future__ import annotations

import pytest

from tests.workflows.model.plans.support import cluster, with_state
from tests.workflows.model.plans.test_moves import plan
from workflows.model.plans.running.undoing import undoing_of
from workflows.model.plans.values import ClusterView

#: What the plan has changed: t-0 on its brokers, the directory of t-1, and both of t-2.
BACK = plan(("t-0", "1:/a 2:/a"), ("t-1", "1:/a"), ("t-2", "1:/a 2:/a"))
DONE = plan(("t-0", "1 3:/b"), ("t-1", "1:/b"), ("t-2", "1:/b 3"))
AFTER = {"t-0": ["1:/a", "3:/b"], "t-1": ["1:/b"], "t-2": ["1:/b", "3:/a"]}


def shown(view: ClusterView) -> tuple[dict[str, str], dict[str, str]]:
    found = undoing_of(BACK, DONE, view)
    entries = {
        f"{each.topic}-{each.partition}": " ".join(
            f"{node}:{path}" for node, path in zip(each.replicas, each.log_dirs, strict=True)
        )
        for each in found.plan.partitions
    }
    return entries, {row.key: row.outcome for row in found.rows}


def test_moves_that_stand_go_back() -> None:
    assert shown(cluster(AFTER)) == ({"t-0": "1:any 2:/a", "t-1": "1:/a", "t-2": "1:/a 2:/a"}, {})


@pytest.mark.parametrize(
    ("view", "key", "outcome", "entry"),
    [
        ({**AFTER, "t-0": ["2:/a"]}, "t-0", "superseded", None),
        ({**AFTER, "t-1": ["1:/c"]}, "t-1@1", "superseded", "1:any"),
        ({**AFTER, "t-2": ["1:/c", "3:/a"]}, "t-2@1", "superseded", "1:any 2:/a"),
        ({name: held for name, held in AFTER.items() if name != "t-1"}, "t-1", "topic_deleted", None),
    ],
)
def test_what_others_have_changed_stays_with_a_row(
    view: dict[str, list[str]], key: str, outcome: str, entry: str | None
) -> None:
    entries, rows = shown(cluster(view))
    assert rows == {key: outcome} and entries.get(key.partition("@")[0]) == entry and len(entries) == 2 + bool(entry)


def test_reassignment_of_others_in_progress_stays_with_a_row() -> None:
    entries, rows = shown(with_state(cluster(AFTER), "t-0", replicas=(1, 3, 4), adding=(4,), removing=(3,)))
    assert rows == {"t-0": "superseded"} and sorted(entries) == ["t-1", "t-2"]


def test_what_never_moved_stays_where_it_is() -> None:
    """Cancelled moves, also where the controller returned the replicas in another order."""
    view = cluster({"t-0": ["2:/a", "1:/a"], "t-1": ["1:/a"], "t-2": ["1:/b", "2:/a"]})
    assert shown(view) == ({"t-0": "2:any 1:any", "t-1": "1:/a", "t-2": "1:/a 2:any"}, {})
