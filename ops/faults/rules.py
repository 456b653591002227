"""The rules by which a faulty file system fails."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass
class Rule:
    """A fault of the operations `ops` (empty: all) on paths that match `path`.

    It skips the first `after` matches and affects the next `count` (0: all). An affected operation waits for `delay`
    seconds and for its share of `rate` bytes per second, or hangs until the rules change (`hang`), and then fails with
    `errno` (0: does not fail). `drop`: a failed flush loses its data.
    """

    ops: tuple[str, ...] = ()
    path: str = ""
    after: int = 0
    count: int = 0
    errno: int = 0
    delay: float = 0.0
    hang: bool = False
    rate: float = 0.0
    drop: bool = False
    seen: int = 0
    hits: int = 0
    free_at: float = 0.0
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        self.ops = tuple(self.ops)
        self.pattern = re.compile(self.path)

    def hit(self, op: str, path: str) -> bool:
        """Return whether the rule affects this operation, and count it."""
        if (self.ops and op not in self.ops) or not self.pattern.search(path):
            return False
        self.seen += 1
        if self.seen <= self.after or (self.count and self.hits >= self.count):
            return False
        self.hits += 1
        return True
