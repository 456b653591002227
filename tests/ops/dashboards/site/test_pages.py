"""The site in a real browser, from a folder, without a network: figures, filters, keys, themes, phones, many moves."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ops.dashboards.site.example import example
from ops.dashboards.site.pack import pack, unpack
from ops.dashboards.site.tables import MOVES, PLANS, Site
from ops.dashboards.site.write import PAGES, write_site
from tests.ops.dashboards.live.sample import NASTY
from tests.ops.dashboards.site.test_pack import read
from tests.support.programs.chromium import Watched

pytestmark = pytest.mark.browser

NAMES = [name for name, _, _ in PAGES]
#: A site of 100,000 moves has less than 5 MB, and a page of it reacts within so many seconds.
MANY, LARGEST, SECONDS = 100_000, 5_000_000, 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    write_site(example(400), made)
    return made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of few moves: axe inspects every cell of it."""
    made = tmp_path_factory.mktemp("small")
    write_site(example(12), made)
    return made


@pytest.fixture(scope="module")
def moves(folder: Path) -> list[dict[str, Any]]:
    return table(folder, "moves")


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table of a site in a folder."""
    return rows_of(unpack((folder / f"data/{name}.js").read_text()))


def table_of(site: Site, name: str) -> list[dict[str, Any]]:
    """The rows of a table of a site."""
    return rows_of(site.table(name).as_json())


def rows_of(value: Any) -> list[dict[str, Any]]:
    columns = {name: read(column) for name, column in value["columns"].items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def stamp(epoch: float) -> str:
    """A time as pages write it."""
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S}"


class Opened(Watched):
    """A page of the site, once it is drawn."""

    def __init__(self, browser: Any, folder: Path, name: str, query: str = "", **options: Any) -> None:
        super().__init__(browser, (folder / f"{name}.html").as_uri() + query, offline=True, **options)
        self.page.wait_for_selector("body[data-drawn]", timeout=20_000)

    def cells(self, table: str) -> list[list[str]]:
        rows = self.page.locator(f'[data-testid="table-{table}"] tbody tr')
        return [row.locator("th, td").all_text_contents() for row in rows.all()]


@pytest.mark.parametrize("name", NAMES)
def test_page_is_whole_in_both_themes_and_on_a_phone(browser: Any, small: Path, name: str) -> None:
    for scheme, width in (("light", 1320), ("dark", 390)):
        with Opened(browser, small, name, scheme=scheme, width=width) as opened:
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
            assert opened.page.evaluate("document.documentElement.dataset.theme") == scheme
            assert opened.text("as-of") == "2026-11-20 12:00:00 UTC"
            for section in opened.page.locator("section.card").all():
                assert "as of 2026-11-20 12:00:00 UTC" in section.inner_text()
                if section.locator(".chart svg").count():
                    section.locator("summary").click()
                    assert section.locator("details tbody tr").count() > 0
            assert opened.problems == []
            assert opened.outside(small.as_uri()) == []
            if scheme == "light" or name in ("index", "disks"):  # axe takes a second for a page
                assert opened.serious() == []


def test_fleet_has_the_figures_of_its_moves(browser: Any, folder: Path, moves: list[dict[str, Any]]) -> None:
    with Opened(browser, folder, "index") as opened:
        done = [move for move in moves if move["outcome"] == "moved"]
        met = sum(move["sla"] == "yes" for move in moves)
        counted = met + sum(move["sla"] == "no" for move in moves)
        assert opened.text("done") == str(len(done)) and opened.text("open") == "6"
        assert opened.text("attainment") == f"{int(1000 * met / counted) / 10} %"
        assert f"{met} of {counted}" in opened.page.locator(".tiles").inner_text()
        assert re.fullmatch(r"[\d.]+ TB", opened.text("bytes"))
        by_node = {row[0]: row for row in opened.cells("nodes")}
        for node in range(1, 10):
            assert by_node[str(node)][1] == str(sum(move["node"] == node for move in moves))
        days = opened.page.locator('[data-testid="per-day"] details')
        days.locator("summary").click()
        assert sum(int(row[1]) for row in opened.cells("per-day")) == len(done)


def test_filters_are_in_the_url_and_lead_to_the_next_page(
    browser: Any, folder: Path, moves: list[dict[str, Any]]
) -> None:
    wanted = [move for move in moves if move["node"] == 4 or move["from_node"] == 4]
    with Opened(browser, folder, "index", "?node=4") as opened:
        assert opened.text("done") == str(sum(move["outcome"] == "moved" for move in wanted))
        opened.page.locator("[name=topic]").fill("orders")
        orders = [move for move in wanted if move["topic"] == "orders"]
        assert f"{len(orders)} move" in opened.page.locator("#count").inner_text()
        assert "node=4&topic=orders" in opened.url
        opened.page.locator("nav a", has_text="Stalls").click()
        opened.page.wait_for_selector('[data-testid="held"]')
        assert "node=4&topic=orders" in opened.url and opened.page.locator("[name=node]").input_value() == "4"
        assert opened.problems == []


def test_keys_change_the_page_the_theme_and_the_filter(browser: Any, folder: Path) -> None:
    with Opened(browser, folder, "index") as opened:
        opened.page.keyboard.press("t")
        assert opened.page.evaluate("document.documentElement.dataset.theme") == "dark"
        opened.page.keyboard.press("2")
        opened.page.wait_for_selector('[data-testid="share"]')
        assert opened.page.locator("nav a[aria-current]").inner_text() == "SLA and budget"
        opened.page.keyboard.press("/")
        assert opened.page.evaluate("document.activeElement.name") == "scope"


def test_below_twenty_events_a_share_says_nothing(browser: Any, tmp_path: Path) -> None:
    write_site(example(15), tmp_path)
    with Opened(browser, tmp_path, "sla") as opened:
        assert opened.text("attainment") == "too few to say" and opened.text("budget-left") == "too few to say"
        assert "100 %" not in opened.page.locator(".tiles").inner_text()
        opened.page.locator('[data-testid="share"] summary').click()
        assert {row[5] for row in opened.cells("share")} <= {"too few to say", "–"}
    with Opened(browser, tmp_path, "index") as opened:
        assert opened.text("attainment") == "too few to say"


def test_budget_follows_the_objective(browser: Any, folder: Path, moves: list[dict[str, Any]]) -> None:
    with Opened(browser, folder, "sla", "?window=90&objective=0.9") as opened:
        missed = sum(move["sla"] == "no" for move in moves)
        counted = missed + sum(move["sla"] == "yes" for move in moves)
        left = float(opened.text("budget-left").removesuffix(" %"))
        assert left == pytest.approx(100 * (1 - missed / (counted * 0.1)), abs=0.1)
        opened.page.locator("[name=objective]").select_option("0.999")
        assert opened.text("budget-left").startswith("−")


def test_slo_has_its_budget_and_burn_rates(browser: Any, folder: Path, tmp_path: Path) -> None:
    rows = table(folder, "slos")
    newest = {row["slo"]: row for row in rows if row["day"] == rows[-1]["day"]}
    with Opened(browser, folder, "sla", "?slo=swap%20pause") as opened:
        cells = {row[0]: row for row in opened.cells("objectives")}
        assert set(cells) == set(newest) == {"placed in time", "swap pause"}
        placed = newest["placed in time"]
        left = f"{'−' if placed['left'] < 0 else ''}{abs(placed['left']) // 1000 / 10:.1f} %"
        assert cells["placed in time"][3:6] == [
            str(placed["good"]),
            str(placed["bad"]),
            f"{placed['share'] // 1000 / 10:.1f} %",
        ]
        assert cells["placed in time"][7] == left and cells["placed in time"][9] == "too few to say"
        section = opened.page.locator('[data-testid="objective-budget"]')
        assert section.locator("h2").inner_text() == "Budget of: swap pause"
        section.locator("summary").click()
        assert len(opened.cells("objective-budget")) == sum(row["slo"] == "swap pause" for row in rows)
        opened.page.locator("[name=slo]").select_option("placed in time")
        assert section.locator("h2").inner_text() == "Budget of: placed in time"
    write_site(example(15), tmp_path)
    with Opened(browser, tmp_path, "sla") as opened:
        assert {row[5] for row in opened.cells("objectives")} == {"too few to say"}
        assert "100.0 %" not in opened.page.locator('[data-testid="objectives"]').inner_text()


def test_plan_burns_down_by_its_progress_and_an_open_one_has_a_fan(browser: Any, folder: Path) -> None:
    known, progress = table(folder, "plans"), table(folder, "progress")
    ended = next(plan for plan in reversed(known) if plan["outcome"] == "done")
    minutes = [row for row in progress if (row["id"], row["chain"]) == (ended["id"], ended["chain"])]
    with Opened(browser, folder, "plans", f"?plan={ended['plan']}") as opened:
        row = next(row for row in opened.cells("plans") if row[0] == ended["plan"])
        assert row[1] == "done" and row[5:9] == [str(ended[name]) for name in ("moves", "done", "running", "missed")]
        assert row[10:12] == [stamp(ended["deadline"]), "yes"]
        opened.page.locator('[data-testid="burn-down"] summary').click()
        cells = opened.cells("burn-down")
        assert [cell[1] for cell in cells] == [str(one["done"]) for one in minutes]
        assert [cell[3] for cell in cells][-1] == "0 B" and cells[-1][0] == stamp(ended["finished"])
        assert [cell[5] for cell in cells] == [stamp(one["eta"]) for one in minutes]
        assert opened.page.locator("path.dash.l3").count() == 0
        assert opened.page.locator('[data-testid="burn-down"] line.deadline').count() == 1
        assert opened.text("burn-end").endswith(f"deadline {stamp(ended['deadline'])} UTC: yes.")
        opened.page.get_by_role("link", name="evacuate-4").click()
        opened.page.wait_for_selector("path.dash.l3")
        assert re.search(
            r"[\d.]+ GB left; ends in .* to .*; deadline 2026-11-20 .* UTC: not due", opened.text("burn-end")
        )
        assert opened.problems == []


def test_plan_without_an_ended_move_has_the_fan_of_its_check(browser: Any, tmp_path: Path) -> None:
    now = 1.8e9
    plan = dict.fromkeys(PLANS) | {
        "plan": "p", "id": "k/plan/p", "chain": "c", "outcome": "open", "started": now - 60, "low": 120, "high": 360,
        "moves": 2, "done": 0, "missed": 0, "running": 2, "bytes": 0, "total": 5_000_000, "met": "no deadline",
    }  # fmt: skip
    write_site(Site(now, 1, 0, {"plans": pack(PLANS, [[plan[name] for name in PLANS]])}), tmp_path)
    with Opened(browser, tmp_path, "plans") as opened:
        assert opened.text("burn-end") == "5.00 MB in 2 moves; 5.00 MB left; ends in 1 min 00 s to 5 min 00 s."
        assert opened.page.locator("path.dash.l3").count() == 2
        assert opened.page.locator("line.deadline").count() == 0
        assert opened.problems == []


def test_gantt_has_a_bar_per_copy_its_held_part_and_the_limit(
    browser: Any, folder: Path, moves: list[dict[str, Any]]
) -> None:
    with Opened(browser, folder, "disks", "?span=604800") as opened:
        newest = max(move["started"] + move["took"] for move in moves)
        within = [move for move in moves if move["started"] + move["took"] >= newest - 604800]
        chart = opened.page.locator('[data-testid="gantt"] .chart svg')
        assert chart.locator("g.hit").count() == len(within)
        held = [move for move in within if move["throttled"] + move["stalled"] > 0.01 * move["took"]]
        assert chart.locator("rect.held").count() >= 0.9 * len(held) > 0
        assert chart.locator("path.dash.l4").count() > 3
        assert "show=" not in opened.url and opened.page.locator("#reset").is_hidden()
        box = chart.bounding_box()
        opened.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
        opened.page.mouse.down()
        opened.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 90)
        opened.page.mouse.up()
        assert "from=" in opened.url and "to=" in opened.url
        assert 0 < chart.locator("g.hit").count() < len(within)
        opened.page.locator("#reset").click()
        assert chart.locator("g.hit").count() == len(within)
        assert opened.problems == []


def test_quality_counts_what_was_read(browser: Any, folder: Path) -> None:
    with Opened(browser, folder, "data") as opened:
        expected, quarantined = (int(opened.text(name).replace(",", "")) for name in ("expected", "quarantined"))
        assert int(opened.text("read").replace(",", "")) + quarantined == expected and quarantined == 212
        assert "truncated" in opened.page.get_by_test_id("table-quarantine").inner_text()
        assert opened.page.locator(".alarm").count() == 0


def test_unread_events_and_forbidden_transitions_are_alarms(browser: Any, tmp_path: Path) -> None:
    made = example(30)
    ingests = pack(("day", "kind", "files", "bytes", "expected", "read", "quarantined", "taken_at"),
                   [("2026-11-20", "closed", 1, 10, 50, 44, 2, made.as_of)])  # fmt: skip
    forbidden = pack(("day", "phase", "event", "next_phase", "moves", "allowed", "example"),
                     [("2026-11-20", "done", "created", "copying", 1, False, "prod/move/1/a-0/1")])  # fmt: skip
    tables = {**made.tables, "ingests": ingests, "transitions": forbidden}
    write_site(Site(made.as_of, 1, 30, tables), tmp_path)
    with Opened(browser, tmp_path, "data") as opened:
        alarms = opened.page.locator(".alarm").all_inner_texts()
        assert alarms[0].startswith("4 events of the exports are neither read nor in quarantine")
        assert "1 transition of replicas" in alarms[1]


def test_move_has_a_page_with_its_run(browser: Any, folder: Path) -> None:
    with Opened(browser, folder, "index") as opened:
        link = opened.page.locator('[data-testid="table-moves"] tbody a').first
        name = link.inner_text()
        link.click()
        opened.page.wait_for_selector('[data-testid="facts"]')
        assert opened.page.locator("h1").inner_text() == name
        assert re.search(
            rf"prod/(move/\d|reassign)/{re.escape(name)}/\d", opened.page.get_by_test_id("facts").inner_text()
        )
        assert opened.problems == []
    with Opened(browser, folder, "move", "?row=5&started=1") as opened:
        assert "This move is not in this site" in opened.page.locator("main").inner_text()


@pytest.mark.parametrize("name", NAMES)
def test_names_from_users_are_not_markup_and_an_empty_site_opens(browser: Any, tmp_path: Path, name: str) -> None:
    row = dict.fromkeys(MOVES) | {
        **dict.fromkeys(("topic", "source", "directory", "plan", "phase", "reason", "message", "stall", "kind"), NASTY),
        "run": f"={NASTY}", "outcome": "failed", "sla": "no", "partition": 0, "node": 1, "started": 1.8e9, "took": 9.0,
        "copying": 5.0, "throttled": 1.0, "stalled": 0.0, "queued": 0.0, "attempts": 1, "bytes": 5,
    }  # fmt: skip
    write_site(Site(1.8e9 + 60, 1, 1, {"moves": pack(MOVES, [[row[each] for each in MOVES]])}), tmp_path)
    with Opened(browser, tmp_path, name) as opened:
        assert opened.page.locator("main script, main img").count() == 0
        assert opened.problems == []
    write_site(Site(1.8e9, 0, 0), tmp_path)
    with Opened(browser, tmp_path, name) as opened:
        assert opened.problems == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("large")
    write_site(example(MANY), made)
    yield made


def test_runs_are_linked_to_temporals_ui_where_its_address_is_given(browser: Any, tmp_path: Path) -> None:
    ui, made = "http://ui.example:8233", example(30)
    row = next(row for row in table_of(made, "moves") if row["plan"])
    by = {**row, "run": "=k/plan/p/lane-0", "by": "k/move/#/%/1", "namespace": "a b"}
    moves = pack(MOVES, [[by[name] for name in MOVES]])
    write_site(replace(made, tables={**made.tables, "moves": moves}, temporal_ui=ui), tmp_path)

    def hrefs(opened: Opened, section: str) -> list[str]:
        links = opened.page.locator(f'[data-testid="{section}"] a[rel=noreferrer]').all()
        return [str(link.get_attribute("href")) for link in links]

    run = f"{ui}/namespaces/a%20b/workflows/k%2Fplan%2Fp%2Flane-0"
    carried = f"k%2Fmove%2F{row['node']}%2F{row['topic']}-{row['partition']}%2F1"
    with Opened(browser, tmp_path, "index") as opened:
        assert hrefs(opened, "moves") == [run] and opened.outside(tmp_path.as_uri()) == []
    with Opened(browser, tmp_path, "move") as opened:
        assert hrefs(opened, "facts") == [run, f"{ui}/namespaces/a%20b/workflows/{carried}"]
        assert opened.outside(tmp_path.as_uri()) == [] and opened.problems == []
    with Opened(browser, tmp_path, "plans") as opened:
        plans = table_of(made, "plans")
        assert set(hrefs(opened, "plans")) == {
            f"{ui}/namespaces/default/workflows/{quote(plan['id'], safe='')}/{plan['chain']}" for plan in plans
        }
    with Opened(browser, tmp_path, "stalls") as opened:
        (failure,) = table_of(made, "failures")
        path = f"{quote(failure['id'], safe='')}/{failure['chain']}"
        assert hrefs(opened, "failures") == [f"{ui}/namespaces/default/workflows/{path}"]
    write_site(made, tmp_path)
    with Opened(browser, tmp_path, "index") as opened:
        assert opened.page.locator("a[href^=http]").count() == 0


def test_many_moves_stay_small_and_react(browser: Any, large: Path) -> None:
    assert sum(path.stat().st_size for path in large.rglob("*") if path.is_file()) < LARGEST
    for name in ("index", "disks"):
        with Opened(browser, large, name) as opened:
            before = int(opened.page.evaluate("document.body.dataset.drawn"))
            began = time.monotonic()
            opened.page.locator("[name=node]").select_option("4")
            opened.page.wait_for_selector(f"body[data-drawn='{before + 1}']")
            assert time.monotonic() - began < SECONDS
            assert opened.problems == []
