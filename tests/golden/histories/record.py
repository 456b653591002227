"""Records the histories that the replay tests replay, and the timelines that `rehome show` prints of some of them: runs
the workflows' tests with recording on.

    python -m tests.golden.histories.record [pytest's arguments]
    python -m tests.golden.histories.record --ends

Record anew only what a deliberate, versioned change of a workflow needs; a recorded history that no longer replays, or
ends in something else (ends.json; `--ends` replays all histories and writes this file alone), means that runs which are
under way in the field would break.
"""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.workflows import replaying
from tests.workflows.conftest import read_history


def record_ends() -> int:
    """Record what the histories that are there end in."""
    for path in sorted(replaying.HISTORIES.glob("*.json.gz")):
        end = asyncio.run(replaying.replay(read_history(path)))
        replaying.keep(path.name.removesuffix(".json.gz"), end, recorded=False)
    return 0


def main() -> int:
    """Run the tests that record."""
    if sys.argv[1:] == ["--ends"]:
        return record_ends()
    os.environ["REHOME_RECORD"] = "1"
    recorded = int(pytest.main(["tests/workflows", "-m", "temporal", "-p", "no:cacheprovider", *sys.argv[1:]]))
    # The texts of `rehome show` are those of the recorded histories.
    return recorded or int(pytest.main(["tests/ops/cli/show/test_timeline.py", "-k", "text", "-p", "no:cacheprovider"]))


if __name__ == "__main__":
    sys.exit(main())
