"""The rules by which a faulty file system fails."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass
class Rule:
    """What happens to operations of the kinds `ops` (none: all) on paths that match `path`.

    The first `after` matches are let through; `count` (0: all) are then hit. A hit waits for `delay` seconds, and as
    long as `rate` bytes per second ask for, or until the rules change (`hang`), and then fails with `errno` (0: not).
    `drop`: a flush that fails forgets what it should have written.
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
        """Whether this operation is hit; counted."""
        if (self.ops and op not in self.ops) or not self.pattern.search(path):
            return False
        self.seen += 1
        if self.seen <= self.after or (self.count and self.hits >= self.count):
            return False
        self.hits += 1
        return True
