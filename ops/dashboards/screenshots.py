"""`python -m ops.dashboards.screenshots`: takes the screenshots of the README again, of the seeded example.

Needs a Chromium, and Playwright of the extra `dev`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ops.dashboards.site.example import example
from ops.dashboards.site.write import write_site

#: File, page, width and height in pixels.
SHOTS = (
    ("disks.png", "disks.html?from=1795132800&to=1795143600", 1280, 820),
    ("fleet.png", "index.html", 1280, 760),
    ("sla.png", "sla.html", 1280, 800),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the screenshots; return 0, or 1 without a browser."""
    parser = argparse.ArgumentParser(prog="python -m ops.dashboards.screenshots", description=__doc__)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent, metavar="DIR", help="folder of the pictures")
    chosen = parser.parse_args(arguments)
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        print("rehome: the screenshots need Chromium, and Playwright: make setup-dev", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="rehome-site-") as folder, sync_playwright() as playwright:
        write_site(example(), Path(folder))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for file, page, width, height in SHOTS:
            context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
            opened = context.new_page()
            name, _, query = page.partition("?")
            opened.goto((Path(folder) / name).as_uri() + (f"?{query}" if query else ""))
            opened.wait_for_selector("body[data-drawn]")
            opened.screenshot(path=str(chosen.to / file))
            print(chosen.to / file)
            context.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
