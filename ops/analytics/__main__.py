"""`python -m ops.analytics EXPORT_DIR OUT_DIR [--as-of ISO] [--sla FILE] [--slo FILE] [--temporal-ui URL] [--json]`,
`--tables LOCATION`, `--since ISO`, `--open` and `--kind KIND`, which choose the moves that are listed, and
`--follow SECONDS`, which makes the report again for each new export, and prints a line of JSON for each.
spark-submit runs this file too (`ops.analytics.submit`).

Exit codes: 0 report written, 1 failure, 2 wrong usage or no readable export, 3 no Java or no Delta Lake.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # spark-submit has put this folder, and the archive for its workers, first. The pages' templates are files here.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from ops.analytics.errors import AnalyticsError
from ops.analytics.follow import LONGEST, SHORTEST, follow
from ops.analytics.location import export_folder
from ops.analytics.schema.words import KINDS
from ops.dashboards import links

if TYPE_CHECKING:
    from ops.analytics.job import Summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report, print it, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ops.analytics", description="Report on replica moves from exported workflow histories."
    )
    parser.add_argument("export_dir", help="folder that ExportHistory writes to")
    parser.add_argument("out_dir", type=Path, help="folder for report.html and the tables")
    parser.add_argument(
        "--tables", metavar="LOCATION", default="", help="path or URI of the tables (default: OUT_DIR/tables)"
    )
    parser.add_argument("--as-of", metavar="ISO", help="report for this time instead of the newest export's")
    parser.add_argument("--sla", type=Path, metavar="FILE", help="rules for the SLAs of moves that come without one")
    parser.add_argument("--slo", type=Path, metavar="FILE", help="SLOs in TOML instead of the package's own")
    parser.add_argument(
        "--temporal-ui",
        metavar="URL",
        default="",
        help="Temporal's UI, for the site's links to runs (default: no links)",
    )
    parser.add_argument("--since", metavar="ISO", help="list moves that were under way at this time or later")
    parser.add_argument("--open", action="store_true", help="list open moves")
    parser.add_argument(
        "--kind", action="append", choices=KINDS, default=[], help="list moves of this kind; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print the summary and the moves as JSON")
    parser.add_argument(
        "--follow",
        type=_seconds,
        metavar="SECONDS",
        help="make the report again for each new export, until interrupted",
    )
    chosen = parser.parse_args(arguments)
    try:
        ui = links.temporal_ui(chosen.temporal_ui) if chosen.temporal_ui else ""
    except ValueError as error:
        print(f"rehome: --temporal-ui {error}", file=sys.stderr)
        return 2
    try:
        exports = export_folder(chosen.export_dir)
    except ValueError as error:
        print(f"rehome: {error}", file=sys.stderr)
        return 2
    try:
        from ops.analytics.job import run, time_of
        from ops.analytics.lake.ingest import newest_export
        from ops.analytics.report import Only
        from ops.analytics.session import spark_session
        from ops.analytics.table import print_report

        only = Only(time_of(chosen.since) if chosen.since else None, chosen.open, tuple(chosen.kind))

        def report() -> Summary:
            return run(exports, chosen.out_dir, chosen.as_of, chosen.sla, ui, only, chosen.slo, chosen.tables)

        if chosen.follow is not None:
            with spark_session(chosen.out_dir / ".spark"):  # of which each round makes use
                follow(lambda: newest_export(exports), chosen.follow, report, _tell)
        summary = report()
    except AnalyticsError as error:
        print(f"rehome: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"rehome: cannot write the report: {error}", file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps(summary.to_json(), indent=2))
    else:
        print_report(summary.report)
        print(f"site: {summary.site}")
        print(f"page: {summary.page}")
    return 0


def _seconds(text: str) -> float:
    """Return the seconds of `--follow`. Raises ValueError, ArgumentTypeError."""
    seconds = float(text)
    if not SHORTEST <= seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is not between {SHORTEST:.0f} and {LONGEST:.0f} seconds")
    return seconds


def _tell(round_: Summary | str) -> None:
    """Print a round of `--follow`, or why it failed, as a line of JSON."""
    print(json.dumps({"error": round_} if isinstance(round_, str) else round_.counts()), flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
