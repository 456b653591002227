"""The page in a real browser, without a network: numbers, charts, themes, no errors, no requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.analytics.page import write_page
from tests.ops.analytics.sample import EMPTY, NASTY, WELL, report
from tests.support.programs.chromium import Watched, browser

__all__ = ["browser"]

pytestmark = pytest.mark.browser

CHARTS = ("timeline", "durations", "rates", "split")


class Opened(Watched):
    """The page, once its charts are drawn."""

    def __init__(self, browser: Any, path: Path, scheme: str = "light", width: int = 1320) -> None:
        super().__init__(browser, path.as_uri(), scheme=scheme, width=width, offline=True)
        self.page.wait_for_selector("body[data-charts=drawn]", timeout=30_000)


def test_page_shows_the_numbers_without_console_errors(browser: Any, tmp_path: Path) -> None:
    path = write_page(report(), tmp_path / "report.html")
    opened = Opened(browser, path)
    assert opened.text("headline") == "2 of 4 moves done, 1 still open, 1 failed. 1 of 2 deadlines met."
    assert opened.text("attainment") == "too few to say"
    assert (opened.text("sla-met"), opened.text("sla-counted")) == ("1", "2")
    assert (opened.text("moved"), opened.text("moves"), opened.text("bytes")) == ("2", "4", "600 MB")
    assert opened.text("locked") == "4.2 ms"
    assert opened.text("as-of") == "2026-11-20 10:00:50 UTC"
    alarms = opened.text("alarms")
    assert "payments-1" in alarms and "42.0 s of 30.0 s" in alarms and "audit-3" in alarms
    row = opened.page.locator('[data-testid="table-moves"] tr[data-move*="orders-0"]').inner_text()
    for cell in ("12.5 s", "200 MB", "19.8 MB/s", "50.0 MB", "4.2 ms", "moved", "yes"):
        assert cell in row
    screenshot = tmp_path / "report.png"
    opened.page.screenshot(path=str(screenshot), full_page=True)
    assert screenshot.stat().st_size > 50_000
    assert opened.problems == []
    assert set(opened.requests) == {path.as_uri()}


def test_every_chart_is_drawn_and_has_a_table_with_the_same_numbers(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, write_page(report(), tmp_path / "report.html"))
    for name in CHARTS:
        marks = opened.page.locator(f"#chart-{name} svg path").count()
        assert marks >= 4, name
        section = opened.page.locator(f'section:has([data-testid="table-{name}"])')
        assert "as of 2026-11-20 10:00:50 UTC" in section.inner_text()
        section.locator("summary").click()
        assert section.get_by_test_id(f"table-{name}").is_visible()
    cells = opened.page.locator('[data-testid="table-durations"] tr:has(th:text-is("orders-0")) td')
    assert cells.all_inner_texts() == ["12.500", "30.0", "yes"]
    cells = opened.page.locator('[data-testid="table-rates"] tr:has(th:text-is("orders-0")) td')
    assert cells.all_inner_texts() == ["19.80", "20.00", "150000000"]
    timeline = opened.page.get_by_test_id("table-timeline").inner_text()
    assert "10:00:01.600" in timeline and "8.000" in timeline
    assert opened.problems == []


def test_dark_and_light_follow_the_system_and_the_button(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, write_page(report(), tmp_path / "report.html"), scheme="dark")
    theme = "document.documentElement.dataset.theme"
    assert opened.page.evaluate(theme) == "dark"
    background = "getComputedStyle(document.body).backgroundColor"
    dark = opened.page.evaluate(background)
    opened.page.get_by_role("button", name="Light").click()
    opened.page.wait_for_function(f"{theme} === 'light' && document.body.dataset.charts === 'drawn'")
    assert opened.page.evaluate(background) != dark
    assert opened.page.locator("#chart-rates svg").count() == 1
    assert opened.problems == []


def test_page_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, write_page(report(), tmp_path / "report.html"), width=400)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_names_from_users_are_not_markup(browser: Any, tmp_path: Path) -> None:
    move = replace(WELL, replica=NASTY, message=NASTY, workflow_id=NASTY, directory=NASTY, met_sla="no")
    opened = Opened(browser, write_page(report(move), tmp_path / "report.html"))
    assert NASTY in opened.text("alarms")
    assert opened.problems == []


def test_moves_without_a_limit_or_a_deadline_cause_no_console_errors(browser: Any, tmp_path: Path) -> None:
    bare = replace(WELL, throttle=None, deadline_seconds=None, deadline=None, met_sla="no deadline")
    opened = Opened(browser, write_page(report(bare), tmp_path / "report.html"))
    assert opened.page.locator("#chart-rates svg").count() == 1
    assert opened.problems == []


def test_empty_report_opens_without_errors(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, write_page(EMPTY, tmp_path / "report.html"))
    assert opened.text("headline") == "The exported histories contain no moves."
    assert opened.problems == []
