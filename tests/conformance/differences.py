"""Where our nodes differ from Apache Kafka on purpose: read from differences.tsv, asserted on both kinds of cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("differences.tsv")


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
    """The table as the README shows it."""
    lines = ["| Apache Kafka | rehome's nodes | why |", "|---|---|---|"]
    lines += [f"| {row.kafka} | {row.ours} | {row.why} |" for row in rows.values()]
    return "\n".join(lines) + "\n"


DIFFERENCES = read()
