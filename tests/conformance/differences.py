"""Where our nodes differ from Apache Kafka on purpose: read from differences.tsv, asserted on both kinds of cluster.

`python -m tests.conformance.differences` writes them to ops/docs/differences.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.report.tables import conformance_sentence

FILE = Path(__file__).with_name("differences.tsv")
PAGE = Path(__file__).parents[2] / "ops" / "docs" / "differences.md"

_HEAD = """# Where our nodes differ from Apache Kafka

<!-- generated from differences.tsv by `python -m tests.conformance.differences`; a test compares -->

`make conformance` runs one suite against three nodes of ours and three brokers of Apache Kafka 4.3.1, and writes
build/conformance.md: each case of Kafka's behaviour in this field with the tests that show it
([all cases](conformance.md)).
"""
_TAIL = """(build/conformance.md names the row of tests/conformance/differences.tsv). Each difference is deliberate, and
the suite asserts both sides of each row.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """One row: what Apache Kafka does, what our nodes do, and why."""

    id: str
    kafka: str
    ours: str
    why: str


def read(file: Path = FILE) -> dict[str, Difference]:
    """All rows by their id, in the file's order. Raises ValueError for a row that is not whole or an id given twice."""
    found: dict[str, Difference] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line:
            continue
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 4 or not all(columns) or columns[0] in found:
            raise ValueError(f"{file.name}:{number}: a row is a new id, Kafka, ours and why, with tabs between")
        found[columns[0]] = Difference(*columns)
    return found


def as_markdown(rows: dict[str, Difference]) -> str:
    """The table as the page shows it."""
    lines = ["| Apache Kafka | rehome's nodes | why |", "|---|---|---|"]
    lines += [f"| {row.kafka} | {row.ours} | {row.why} |" for row in rows.values()]
    return "\n".join(lines) + "\n"


def page(rows: dict[str, Difference]) -> str:
    """The whole page: how it is known, how many cases there are, and the table."""
    return f"{_HEAD}{conformance_sentence()}\n{_TAIL}\n{as_markdown(rows)}"


DIFFERENCES = read()

if __name__ == "__main__":
    PAGE.write_text(page(DIFFERENCES))
