"""Records the histories that the replay tests replay: runs the workflows' tests with recording on.

    python -m tests.golden.histories.record [pytest's arguments]

Record anew only what a deliberate, versioned change of a workflow needs; a recorded history that no longer replays
means that runs which are under way in the field would break.
"""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    """Run the tests that record."""
    os.environ["REHOME_RECORD"] = "1"
    return int(pytest.main(["tests/workflows", "-m", "temporal", "-p", "no:cacheprovider", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
