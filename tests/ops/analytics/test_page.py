"""The content of the page and of the printed table, without a browser."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ops.analytics.charts import MOST
from ops.analytics.page import alarms, headline, lost, render, write_page
from ops.analytics.report import Budget, Plan, Quarantined
from ops.analytics.table import print_report
from tests.ops.analytics.sample import EMPTY, FAILED, LATE, NASTY, OPEN, WELL, report, total


def outside_scripts(html: str) -> str:
    return re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def test_page_loads_no_external_resource() -> None:
    html = render(report())
    text = outside_scripts(html)
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", text)
    assert "<link" not in text.replace('<link rel="icon" href="data:,">', "")
    assert "default-src 'none'" in text


def test_names_from_users_are_escaped() -> None:
    move = replace(WELL, replica=NASTY, message=NASTY, workflow_id=NASTY, source=NASTY, met_sla="no")
    html = render(report(move))
    assert "alert(1)</script>" not in html
    assert "&lt;b&gt;t&lt;/b&gt;" in html
    specs = re.search(r'<script type="application/json" id="specs">(.*?)</script>', html, re.DOTALL)
    assert specs is not None and set(json.loads(specs.group(1))) == {"timeline", "durations", "rates", "split"}


def test_vega_bundle_cannot_end_its_own_script() -> None:
    html = render(report())
    script = html[html.index('<script type="module">') + 22 :]
    assert script.index("</script>") > 500_000


def test_charts_show_the_latest_moves_and_tables_show_all() -> None:
    moves = [replace(WELL, id=f"m{i}", replica=f"orders-{i}") for i in range(MOST + 15)]
    html = render(report(*moves))
    assert f"the latest {MOST} of {MOST + 15} moves" in html
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', html, re.DOTALL).group(1))  # type: ignore[union-attr]
    shown = {row["move"] for row in specs["rates"]["layer"][0]["data"]["values"]} if "data" in specs["rates"]["layer"][
        0
    ] else {row["move"] for row in specs["rates"]["data"]["values"]}  # fmt: skip
    assert len(shown) == MOST and "orders-0  n1" not in shown
    table = html[html.index('data-testid="table-moves"') :]
    assert all(f'data-move="m{i}"' in table for i in range(MOST + 15))


def test_replica_that_moved_twice_has_two_bars() -> None:
    html = render(report(WELL, replace(WELL, id="again")))
    assert "orders-0  n1 (2)" in html


def test_empty_report_is_a_page() -> None:
    html = render(EMPTY)
    assert "The exported histories contain no moves." in html
    assert "no move failed, is late or has stalled" in html


def test_page_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    assert write_page(report(), path) == path
    assert path.read_text().startswith("<!doctype html>")
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (total(), "2 of 4 moves done, 1 still open, 1 failed. 1 of 2 deadlines met."),
        (total(moves=1, moved=1, failed=0, open=0, met=1, missed=0), "1 of 1 move done. 1 of 1 deadline met."),
        (total(open=0, failed=0, met=0, missed=0, asked=0), "2 of 4 moves done. No move had a deadline."),
        (total(open=0, failed=0, met=0, missed=0, cancelled=2), "2 of 4 moves done, 2 cancelled."),
    ],
)
def test_headline_summarises_the_moves(row, text: str) -> None:  # type: ignore[no-untyped-def]
    assert headline(row) == text


def printed(width: int) -> str:
    out = io.StringIO()
    print_report(report(WELL, LATE, FAILED, OPEN), Console(file=out, width=width))
    return out.getvalue()


def test_printed_table_has_the_specified_columns() -> None:
    text = printed(190)
    (line,) = [line for line in text.splitlines() if line.strip().startswith("orders-0")]
    for cell in (
        "moved",
        "12.5 s",
        "200 MB",
        "19.8 MB/s",
        "2",
        "50.0 MB",
        "1.50 s",
        "8.00 s",
        "2.00 s",
        "4.2 ms",
        "yes",
    ):
        assert cell in line
    assert "as of 2026-11-20 10:00:50 UTC" in text
    assert "SLA attainment: too few to say (1 of 2 met; 95 % interval 9.4 % to 90.5 %)" in text
    assert "open: copying" in text


def test_wide_terminal_shows_kind_reason_and_deadline() -> None:
    text = printed(260)
    (title,) = [line.split() for line in text.splitlines() if line.strip().startswith("replica")]
    assert {"kind", "deadline", "reason"} <= set(title)
    for move in (WELL, LATE, FAILED, OPEN):
        (line,) = [line.split() for line in text.splitlines() if line.strip().startswith(str(move.replica))]
        assert move.kind in line and (move.deadline[11:19] if move.deadline else "–") in line
        assert (move.reason or move.stall or "–") == line[-1]


def test_report_of_some_moves_says_so() -> None:
    some = replace(report(OPEN), only="open, of kind disk", matching=1)
    of = some.total.moves
    out = io.StringIO()
    print_report(some, Console(file=out, width=190))
    assert f"Only moves open, of kind disk: 1 of {of}." in out.getvalue()
    html = render(some)
    assert f"have only moves open, of kind disk: 1 of {of}." in html and "All moves" not in html
    assert "older ones only in the tables folder" not in html and "the latest 1 of" not in html


def test_long_name_leaves_room_for_the_other_columns() -> None:
    out = io.StringIO()
    print_report(report(replace(WELL, replica="t" * 249 + "-0")), Console(file=out, width=130))
    assert "19.8 MB/s" in out.getvalue() and "4.2 ms" in out.getvalue() and "…" in out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 130])
def test_on_a_narrow_terminal_no_row_is_broken(width: int) -> None:
    lines = [line for line in printed(width).splitlines() if line.strip().startswith(("orders-0", "payments-1"))]
    assert len(lines) == 2
    assert all(len(line) <= width and ("yes" in line or "no" in line) for line in lines)


def test_page_shows_why_time_was_lost() -> None:
    held = replace(OPEN, stall="growing_source", stall_message="the source grows by 2 MB/s & more")
    moves = (WELL, replace(held, spent={"growing_source": 30.0, "run_limit": 10.0}))
    by_reason = {reason: (seconds, share, most.replica) for reason, seconds, share, most in lost(moves)}
    assert by_reason["run_limit"] == (12.0, pytest.approx(12 / 52), "clicks-2")
    assert by_reason["growing_source"] == (30.0, pytest.approx(30 / 52), "clicks-2")
    assert "slow_disk" not in by_reason and lost(()) == ()
    (alarm,) = alarms([held])
    assert alarm[2] == "the source grows by 2 MB/s & more"
    html = render(report(*moves))
    assert 'data-reason="growing_source"' in html and "source grew faster than the copy" in html
    assert "the source grows by 2 MB/s &amp; more" in html


def test_page_and_terminal_show_what_could_not_be_read() -> None:
    bad = Quarantined("part-0.pb", 0, "truncated", "part-0.pb has 3 bytes, its manifest says <4>: restore it")
    shown = replace(report(WELL), quarantine=(bad,), quarantined=7)
    assert "Not read" not in render(report(WELL))
    html = render(shown)
    assert "7 parts of the exports" in html and "its manifest says &lt;4&gt;: restore it" in html
    out = io.StringIO()
    print_report(shown, Console(file=out, width=190))
    assert "not read: part-0.pb has 3 bytes, its manifest says <4>: restore it" in out.getvalue()
    assert "2 more parts of the export are in the table quarantine." in out.getvalue()


def test_move_between_nodes_shows_both_nodes() -> None:
    moved = replace(WELL, kind="both", node=3, from_node=1, source=None, directory="/d2")
    assert (moved.origin, moved.target) == ("node 1", "node 3: /d2")
    assert "node 1 → node 3: /d2" in render(report(moved))
    added = replace(moved, kind="node", from_node=None, directory=None)
    assert (added.origin, added.target) == (None, "node 3")


def test_page_and_terminal_show_plans() -> None:
    plan = Plan(
        "prod/plan/july", "prod", "failed", False, None, None, NASTY, "2026-11-20T10:00:00.000000Z",
        "2026-11-20T10:01:00.000000Z", 60.0, 3, 2, 1, 0, 3_000_000, 2_000_000, "2026-11-20T11:00:00.000000Z", "no",
        False, 1,
    )  # fmt: skip
    shown = replace(report(), plans=(plan,))
    page = render(shown)
    assert 'data-plan="prod/plan/july"' in page and "2 of 3" in page and "1 differ" in page and NASTY not in page
    assert "table-plans" not in render(report())
    out = io.StringIO()
    print_report(shown, Console(file=out, width=190))
    (line,) = [one for one in out.getvalue().splitlines() if one.startswith("plan prod/plan/july failed")]
    assert "2 of 3 moves done, 1 missed, 2.00 MB, 1 partition differ" in line


def test_printed_budgets_have_no_figure_below_twenty_events() -> None:
    burns = {f"burn_{window}": None for window in ("5m", "30m", "1h", "6h", "3d")}
    few = Budget("few", "swap", 0.999, 30, "moves", "", 19, 0, 1.0, 0.83, 1.0, None, **burns, alarm=None)
    spent = replace(few, slo="spent", objective=0.9, good=70, bad=30, share=0.7, budget_left=-2.0, alarm="page")
    spent = replace(spent, burn_1h=15.06, burn_5m=2.0, burn_6h=1.5, burn_3d=0.5)
    out = io.StringIO()
    print_report(replace(report(WELL), budgets=(few, spent)), Console(file=out, width=190))
    first, second = (line.strip() for line in out.getvalue().splitlines() if re.match(r"(few|spent)\b", line.strip()))
    assert "100" not in first and re.split(" {2,}", first) == [
        "few", "99.9 % of moves in 30 d", "19", "0", *["too few to say"] * 5, "–",
    ]  # fmt: skip
    assert re.split(" {2,}", second) == [
        "spent", "90.0 % of moves in 30 d", "70", "30", "70.0 %", "−200.0 %", "15.0 × / 2.0 ×",
        "1.5 × / too few to say", "0.5 × / 1.5 ×", "page",
    ]  # fmt: skip
