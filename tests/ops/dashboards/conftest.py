"""A Chromium for the tests of the pages."""

from __future__ import annotations

from tests.support.programs.chromium import browser

__all__ = ["browser"]
