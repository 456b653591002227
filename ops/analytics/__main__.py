"""`python -m ops.analytics EXPORT_DIR OUT_DIR [--as-of ISO] [--json]`.

Exit codes: 0 the report is there, 1 it could not be made, 2 wrong usage or no readable export, 3 no Java.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ops.analytics.errors import AnalyticsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the report and print it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ops.analytics", description="Report on moves from exported histories."
    )
    parser.add_argument("export_dir", type=Path, help="folder that ExportHistory writes to")
    parser.add_argument("out_dir", type=Path, help="folder for report.html and the Parquet tables")
    parser.add_argument("--as-of", metavar="ISO", help="report for this time instead of the newest export's")
    parser.add_argument("--json", action="store_true", help="print the summary and the moves as JSON")
    chosen = parser.parse_args(arguments)
    try:
        from ops.analytics.job import run
        from ops.analytics.table import print_report

        summary = run(chosen.export_dir, chosen.out_dir, chosen.as_of)
    except AnalyticsError as error:
        print(f"rehome: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"rehome: the report could not be written: {error}", file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps(summary.to_json(), indent=2))
    else:
        print_report(summary.report)
        print(f"page: {summary.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
