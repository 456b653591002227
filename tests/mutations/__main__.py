"""Makes each change of mutations.tsv in a copy of the sources, and runs the tests that must notice it.

    python -m tests.mutations [WORDS]

A row is a file, the text to replace (which is in it once), its replacement, the tests, and what the change breaks;
`\\n` in a text is a line's end. With WORDS only the rows whose last column has them. Exits with 1 if a change is not
noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.report.tables import ROOT

FILE = Path(__file__).with_name("mutations.tsv")
PARTS = ("storage_node", "workflows", "activities", "ops", "tests")
FILES = ("worker.py", "pyproject.toml", "Makefile", "README.md", "ARCHITECTURE.md")
#: Seconds until tests that hang because of a change have noticed it.
PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change, and the tests that must fail with it."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    breaks: str

    def apply(self, root: Path) -> None:
        """Make the change below `root`. Raises ValueError unless the text is there once."""
        path = root / self.file
        source = path.read_text()
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file} has the text of {self.breaks!r} {source.count(self.old)} times, not once")
        path.write_text(source.replace(self.old, self.new))


def read(file: Path = FILE) -> list[Mutation]:
    """Return all rows. Raises ValueError for a row without its five columns."""
    found = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        columns = [column.replace("\\n", "\n") for column in line.split("\t")]
        if len(columns) != 5 or not all(columns):
            raise ValueError(f"{file.name}:{number}: a row is file, text, replacement, tests and what it breaks")
        found.append(Mutation(columns[0], columns[1], columns[2], tuple(columns[3].split()), columns[4]))
    return found


def noticed(mutation: Mutation) -> str:
    """Return the first test that fails with the change, "" if none does."""
    with tempfile.TemporaryDirectory(prefix="rehome-mutation-") as folder:
        root = Path(folder)
        for part in PARTS:
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy2(ROOT / name, root / name)
        mutation.apply(root)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow_conformance", *mutation.tests]
        environment = os.environ | {"PYTHONPATH": str(root)}
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{mutation.tests[0]} (hangs)"
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or bool(done.returncode) != bool(failed):
        raise ValueError(f"pytest of {' '.join(mutation.tests)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return failed[0] if failed else ""


def main(words: str) -> int:
    """Run the rows; print a line for each, and how many were noticed."""
    chosen = [each for each in read() if words in each.breaks]
    survived = 0
    for number, mutation in enumerate(chosen, 1):
        began = time.monotonic()
        test = noticed(mutation)
        survived += not test
        print(f"{number:>3} {time.monotonic() - began:5.1f} s  {mutation.breaks}: {test or 'NOT NOTICED'}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} changes were noticed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
