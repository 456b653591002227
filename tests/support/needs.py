"""What a test needs beyond Python's packages: without it the test is skipped, and the end of the run names it once.

With CI set nothing is skipped: what is missing fails the test.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

_REASON = re.compile(r"(?:Skipped: )?needs ([^:]+):")  # as `reason` writes it, and pytest repeats it


def in_ci() -> bool:
    return bool(os.environ.get("CI"))


def reason(what: str, why: str) -> str:
    """The reason of a skip for lack of `what`, a name by which ops/docs/testing.md has it, without a colon."""
    return f"needs {what}: {why}"


def need(what: str, why: str) -> NoReturn:
    """Skip the running test for lack of `what`; in CI that is a failure."""
    if in_ci():
        pytest.fail(f"CI {reason(what, why)}")
    pytest.skip(reason(what, why))


def needs(what: str, missing: str) -> pytest.MarkDecorator:
    """The marker that skips for lack of `what` when `missing` says why; in CI the test runs, and fails by itself."""
    return pytest.mark.skipif(bool(missing) and not in_ci(), reason=reason(what, missing or "-"))


def need_programs(*programs: str) -> None:
    """Skip unless all of these are on the PATH."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        need(", ".join(missing), "not installed")


needs_root = needs("root", "mounts disks" if os.geteuid() != 0 else "")


def lacks(reasons: Iterable[str]) -> str:
    """One line for the end of a run: what its skipped tests lacked, and how many tests each; "" for nothing."""
    found = Counter(what for text in reasons if (match := _REASON.match(text)) for what in match[1].split(", "))
    if not found:
        return ""
    listed = ", ".join(f"{what} ({number})" for what, number in sorted(found.items()))
    return f'skipped for lack of: {listed}; see "What the tests need" in ops/docs/testing.md'
