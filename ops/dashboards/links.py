"""Where the links of pages lead: Temporal's UI. A page requests nothing from it before a reader follows one."""

from __future__ import annotations

from urllib.parse import urlsplit

EXAMPLE = "http://localhost:8233"


def temporal_ui(url: str) -> str:
    """Return the address of Temporal's UI without the slash at its end. Raises ValueError for anything but http(s)."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is not the URL of Temporal's UI; write for example {EXAMPLE}")
    return url.rstrip("/")
