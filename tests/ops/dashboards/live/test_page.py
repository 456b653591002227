"""The live page in a real browser: figures, keys, filters in the URL, phone, themes, staleness, names as text."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.dashboards.live.board import Board, Fact, Freshness, Kind, Source
from ops.dashboards.live.hub import Reading
from ops.dashboards.site.example import example
from ops.dashboards.site.write import write_site
from tests.ops.dashboards.live.sample import MB, NASTY, board, served, work
from tests.support.nodes.node_harness import until
from tests.support.programs.chromium import Watched

pytestmark = pytest.mark.browser


def several(_: Mapping[str, Reading], now: float) -> Board:
    return board(
        work(0),
        work(1, held_by="its limit", held_why="the run's limit of 20 MB/s", bytes_copied=999 * MB),
        work(2, phase="queued", bytes_copied=0, rate=0.0, held_by="other moves", eta_low=None, eta_high=None),
        work(
            3, key="r", kind=Kind.REASSIGNMENT, title="clicks-4", origin="nodes 1,2", target="nodes 1,3", eta_high=None
        ),
        work(
            4, key="p", kind=Kind.PLAN, title="july", phase="moving", origin="", target="", detail="3 of 9 moves ended"
        ),
        at=now,
    )


def rows(watched: Watched) -> list[str]:
    return [str(text) for text in watched.page.locator('[data-testid="row"] .what b').all_inner_texts()]


def opened(browser: Any, url: str, **options: Any) -> Watched:
    watched = Watched(browser, url, **options)
    watched.page.wait_for_selector("body[data-boards]")
    return watched


def test_figures_have_units_and_no_request_goes_outside(browser: Any) -> None:
    with served(several) as url, opened(browser, url) as watched:
        row = watched.page.locator('[data-testid="row"][data-key="disk/1/orders-0"]').inner_text()
        for text in ("orders-0", "node 1: /data/disk-a → /data/disk-b", "copying", "25.0 %", "20.0 MB/s", "35–48 s"):
            assert text in row
        assert "250 MB of 1.00 GB" in row
        assert "> 35 s" in watched.page.locator('[data-key="r"]').inner_text()
        assert (watched.text("copies"), watched.text("held"), watched.text("rate")) == ("4", "2", "60.0 MB/s")
        assert watched.text("link") == "live"
        assert watched.serious() == []
        assert watched.outside(url) == []
        assert watched.problems == []


def test_percent_rises_without_a_reload(browser: Any) -> None:
    began = time.time()

    def rising(_: Mapping[str, Reading], now: float) -> Board:
        return board(work(bytes_copied=int((now - began) * 10 * MB)), at=now)

    with served(rising) as url, opened(browser, url) as watched:
        shown = "Number.parseFloat(document.querySelector('.pct').textContent)"
        first = watched.page.evaluate(shown)
        until(lambda: watched.page.evaluate(shown) > first + 1, what="the percent rises")
        assert len([each for each in watched.requests if each == url]) == 1


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (800, "light"), (1440, "dark")])
def test_page_fits_every_width_in_both_themes(browser: Any, width: int, scheme: str) -> None:
    with served(several) as url, opened(browser, url, width=width, scheme=scheme) as watched:
        watched.page.locator('[data-key="disk/1/orders-1"]').click()
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
        assert watched.page.evaluate("document.documentElement.dataset.theme") == scheme
        assert watched.serious() == []


def test_keys_select_open_filter_and_switch_the_theme(browser: Any) -> None:
    with served(several) as url, opened(browser, url) as watched:
        press = watched.page.keyboard.press
        press("j")
        press("j")
        assert watched.page.evaluate("document.activeElement.dataset.key") == "r"
        press("Enter")
        detail = watched.page.get_by_test_id("detail")
        assert "by node 1" in detail.inner_text()
        link = detail.locator("a").get_attribute("href")
        assert link == "http://localhost:8233/namespaces/default/workflows/rehome%2Fmove%2F1%2Forders-3%2F1"
        press("Enter")
        assert detail.count() == 0
        press("k")
        assert watched.page.evaluate("document.activeElement.dataset.key") == "p"
        press("h")
        assert rows(watched) == ["orders-1", "orders-2"]
        press("h")
        press("/")
        watched.page.keyboard.type("clicks")
        assert rows(watched) == ["clicks-4"] and watched.text("shown") == "1 of 5"
        assert "?q=clicks" in watched.url
        press("Escape")
        assert len(rows(watched)) == 5 and "q=" not in watched.url
        press("t")
        assert watched.page.evaluate("document.documentElement.dataset.theme") == "dark"
        press("?")
        assert watched.page.locator("#keys").is_visible()
        assert watched.problems == []


def test_filters_come_from_the_url(browser: Any) -> None:
    with served(several) as url, opened(browser, f"{url}?q=orders&held=1") as watched:
        assert rows(watched) == ["orders-1", "orders-2"]
        assert watched.page.get_by_test_id("only-held").is_checked()
        watched.page.get_by_test_id("filter").fill("nothing like it")
        assert watched.text("empty") == "Nothing matches the filter."


def test_silent_source_is_stale_since_its_last_response(browser: Any) -> None:
    def silent(_: Mapping[str, Reading], now: float) -> Board:
        made = board(work(facts=(Fact("bytes", "node 1", now - 75),)), at=now)
        return replace(
            made, sources=(Source("node 1", Freshness.STALE, 1_780_000_000.0, "refused"), Source("T", Freshness.STALE))
        )

    with served(silent) as url, opened(browser, url) as watched:
        assert watched.page.locator('[data-source="node 1"]').inner_text() == "node 1\nstale since 20:26:40"
        assert "has never responded" in watched.text("sources")
        assert watched.text("link") == "2 stale"
        row = watched.page.get_by_test_id("row")
        assert "aged" in row.get_attribute("class") and re.search(r"1:1\d min", row.inner_text())


def test_page_says_so_when_its_server_is_silent(browser: Any) -> None:
    with served(several) as url:
        watched = opened(browser, url)
        assert watched.page.get_by_test_id("silent").is_hidden()
    with watched:
        watched.page.wait_for_selector('[data-testid="silent"]:not([hidden])', timeout=10_000)
        assert "No data from the dashboard's server since" in watched.text("silent")
        assert watched.text("link") == "no data"
        assert len(rows(watched)) == 5


def test_names_from_users_are_not_markup(browser: Any) -> None:
    row = work(
        title=NASTY, origin=NASTY, target=NASTY, id=NASTY, phase=NASTY, held_by=NASTY, held_why=NASTY, detail=NASTY
    )

    def nasty(_: Mapping[str, Reading], now: float) -> Board:
        return board(row, at=now, notes=(NASTY,))

    with served(nasty) as url, opened(browser, url) as watched:
        watched.page.get_by_test_id("row").click()
        assert watched.page.locator("main img, main script, main b b").count() == 0
        assert rows(watched) == [NASTY] and NASTY in watched.text("notes")
        assert watched.problems == []


def test_trend_of_the_newest_site_is_beneath_and_leads_to_its_pages(browser: Any, tmp_path: Path) -> None:
    with served(several, site=tmp_path) as url, opened(browser, url) as watched:
        assert watched.page.get_by_test_id("trend").is_hidden()
        write_site(example(400), tmp_path)
        watched.page.reload()
        watched.page.wait_for_selector('[data-testid="trend"]:not([hidden])')
        shown = watched.text("trend")
        assert "as of the report of 2026-11-20 12:00:00 UTC" in shown and re.search(r"9\d\.\d % \(\d+ of \d+\)", shown)
        assert watched.page.locator("#trend-bars .done-bar").count() == 30
        watched.page.locator('[data-testid="trend"] a').click()
        watched.page.wait_for_selector("body[data-drawn]")
        assert watched.outside(url) == [] and watched.problems == []
