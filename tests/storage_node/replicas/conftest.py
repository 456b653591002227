from __future__ import annotations

from tests.storage_node.move.conftest import make

__all__ = ["make"]
