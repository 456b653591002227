"""Writes a site: pages, styles, scripts and data files, into a folder that needs no server."""

from __future__ import annotations

import os
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ops.dashboards import assets
from ops.dashboards.site.pack import script
from ops.dashboards.site.tables import TABLES, Site

_HERE = Path(__file__).parent
#: The pages: file, title, tables that the page loads.
PAGES = (
    ("index", "Fleet", ("moves",)),
    ("sla", "SLA and budget", ("days", "slos")),
    ("plans", "Plans", ("moves", "plans", "progress")),
    ("disks", "Copies by disk", ("moves",)),
    ("nodes", "Nodes", ("moves", "rates")),
    ("stalls", "Stalls and failures", ("stalls", "retries", "failures", "moves")),
    ("data", "Data quality", ("ingests", "quarantine", "transitions", "moves")),
    ("move", "One move", ("moves",)),
)
_SCRIPTS = ("lib.js", "charts.js", "pages.js")


def write_site(site: Site, folder: Path) -> Path:
    """Write the site and return its first page. Each file is replaced atomically, the data first. Raises OSError."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    _write(folder / "data" / "about.js", script("about", site.about()))
    for name in TABLES:
        _write(folder / "data" / f"{name}.js", script(name, site.table(name).as_json()))
    for name in _SCRIPTS:
        _write(folder / name, (_HERE / "static" / name).read_text())
    _write(folder / "site.css", assets.css() + (_HERE / "static" / "site.css").read_text())
    environment = Environment(
        loader=FileSystemLoader(_HERE / "static"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    template = environment.get_template("page.html.j2")
    for page, title, tables in PAGES:
        menu = [(f"{name}.html", text, name == page) for name, text, _ in PAGES if name != "move"]
        html = template.render(
            page=page, title=title, menu=menu, scripts=_SCRIPTS, data=[f"data/{name}.js" for name in ("about", *tables)]
        )
        _write(folder / f"{page}.html", html)
    return folder / "index.html"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
