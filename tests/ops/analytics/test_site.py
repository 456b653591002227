"""The figures that a browser shows of a site are those that `rehome sql` returns for the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.analytics import sql
from ops.analytics.job import site_of, stored
from ops.analytics.lake.ingest import newest_time
from ops.analytics.numbers import FEWEST, TOO_FEW, burn, fraction, rate, size
from ops.dashboards.site.write import write_site
from tests.ops.analytics.ingested import RULES, Made
from tests.support.programs.chromium import Watched, browser

__all__ = ["browser"]

pytestmark = [pytest.mark.spark, pytest.mark.browser]

COUNTS = """count(*), count_if(outcome IN ('moved', 'in_place')), count_if(open),
count_if(outcome IN ('failed', 'timed out', 'terminated')), sum(bytes_copied)"""


class Opened(Watched):
    """A page of the site, once it is drawn."""

    def __init__(self, browser: Any, folder: Path, name: str, query: str = "") -> None:
        super().__init__(browser, (folder / f"{name}.html").as_uri() + query, offline=True)
        self.page.wait_for_selector("body[data-drawn]", timeout=20_000)

    def more(self, testid: str) -> str:
        """The small print of a tile."""
        return str(self.page.locator(f'dd:has([data-testid="{testid}"]) small').inner_text())

    def cells(self, table: str) -> list[list[str]]:
        rows = self.page.locator(f'[data-testid="table-{table}"] tbody tr')
        return [row.locator("th, td").all_text_contents() for row in rows.all()]


@pytest.fixture(scope="module")
def site(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the shared tables."""
    tables = stored(made.lake)
    folder = tmp_path_factory.mktemp("site")
    write_site(site_of(made.lake, tables, RULES, newest_time(made.lake), tables.runs.count()), folder)
    return folder


def select(made: Made, text: str) -> tuple[tuple[Any, ...], ...]:
    return sql.query(made.lake.spark, Path(made.lake.root), f"SELECT {text}").rows


def test_figures_of_the_fleet_are_those_of_the_tables(browser: Any, site: Path, made: Made) -> None:
    ((moves, done, still_open, failed, copied),) = select(made, f"{COUNTS} FROM moves WHERE carries_out IS NULL")
    ((met, missed),) = select(made, "sum(met), sum(missed) FROM sla_daily WHERE scope = 'all'")
    by_node = select(made, f"node, {COUNTS} FROM moves WHERE carries_out IS NULL GROUP BY node ORDER BY node")
    assert min(moves, done, still_open, failed, copied, met, missed) > 0
    with Opened(browser, site, "index") as opened:
        assert (opened.text("done"), opened.more("done")) == (str(done), f"of {moves}")
        assert (opened.text("open"), opened.text("failed")) == (str(still_open), str(failed))
        assert opened.text("bytes") == size(copied)
        assert opened.more("attainment") == f"{met} of {met + missed} met; a share needs 20"
        shown = [(*row[:5], row[6]) for row in opened.cells("nodes")]
        assert shown == [(*map(str, row[:5]), size(row[5])) for row in by_node]
        assert len(opened.cells("moves")) == moves and opened.problems == []
    with Opened(browser, site, "sla", "?window=90") as opened:
        assert opened.more("attainment") == f"{met} of {met + missed} met; a share needs 20"


def test_budgets_are_those_of_the_tables(browser: Any, site: Path, made: Made) -> None:
    columns = (
        "good",
        "bad",
        "share",
        "low",
        "high",
        "budget_left",
        "burn_1h",
        "burn_5m",
        "burn_6h",
        "burn_30m",
        "burn_3d",
    )
    newest = "FROM burn_rate WHERE day = (SELECT max(day) FROM burn_rate) ORDER BY slo"
    expected = []
    for name, good, bad, share, low, high, *rest in select(made, f"slo, {', '.join(columns)} {newest}"):
        few = good + bad < FEWEST
        interval = "–" if few else f"{fraction(low)} to {fraction(high)}"
        left, *burns = rest
        figures = [TOO_FEW if few else fraction(share), interval, fraction(left), *map(burn, burns)]
        expected.append([name, str(good), str(bad), *figures])
    assert len(expected) == len(RULES.slos) and {row[3] for row in expected} > {TOO_FEW}, "with figures and without"
    with Opened(browser, site, "sla") as opened:
        assert [[row[0], *row[3:]] for row in opened.cells("objectives")] == expected
        assert opened.problems == []


def test_burn_down_of_a_plan_is_that_of_the_tables(browser: Any, site: Path, made: Made) -> None:
    ((plan, outcome, moves, total),) = select(made, "workflow_id, outcome, moves, bytes_total FROM plans")
    minutes = select(
        made, "done, missed, bytes_total - bytes_done, rate, date_format(eta, 'yyyy-MM-dd HH:mm:ss') "
        "FROM plan_progress ORDER BY minute",
    )  # fmt: skip
    with Opened(browser, site, "plans") as opened:
        (row,) = opened.cells("plans")
        assert (row[0], row[1], row[5], row[6]) == (
            plan.partition("/plan/")[2],
            outcome,
            str(moves),
            str(minutes[-1][0]),
        )
        assert opened.text("burn-end").startswith(
            f"{size(total)} in {moves} moves; {size(minutes[-1][2])} left; ended "
        )
        opened.page.locator('[data-testid="burn-down"] summary').click()
        assert [tuple(cells[1:]) for cells in opened.cells("burn-down")] == [
            (str(done), str(missed), size(left), rate(speed), eta) for done, missed, left, speed, eta in minutes
        ]
        assert opened.problems == []
