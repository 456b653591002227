"""A real Chromium for tests: the browser, and pages that note what they print, request and fail at.

Playwright keeps an event loop running on the thread of the test: what calls `asyncio.run` must do so on another one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from tests.support.needs import need

T = TypeVar("T")

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        need("chromium", "not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


class Watched:
    """A page that notes its problems and requests. Use as a context manager."""

    def __init__(
        self,
        browser: Any,
        url: str,
        *,
        scheme: str = "light",
        width: int = 1320,
        height: int = 900,
        offline: bool = False,
    ) -> None:
        self._context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": height}, offline=offline
        )
        self.page = self._context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.close()

    def text(self, testid: str) -> str:
        return str(self.page.get_by_test_id(testid).inner_text()).strip()

    @property
    def url(self) -> str:
        """The page's address now; Playwright's own copy of it may lag behind."""
        return str(self.page.evaluate("location.href"))

    def outside(self, origin: str) -> list[str]:
        """The requests that went elsewhere."""
        return [url for url in self.requests if not url.startswith((origin, "data:"))]

    def serious(self) -> list[str]:
        """What axe finds that is serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page, options={"resultTypes": ["violations"]}).response["violations"]
        return [
            f"{each['id']}: {node['html'][:200]}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]


def aside(work: Callable[[], T]) -> T:
    """Run something on another thread, where `asyncio.run` works."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
