"""A client's input is shown in one line of bounded length."""

from __future__ import annotations

import logging

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.printable import LONGEST, printable
from tests.support.nodes.node_harness import Harness
from tests.support.wire import Client


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a-topic", "a-topic"),
        ("a\nERROR b", "a\\nERROR b"),
        ("\x1b[2J", "\\x1b[2J"),
        ("x" * 5 * LONGEST, "x" * LONGEST + "..."),
        (None, "None"),
    ],
)
def test_shown_in_one_line(given: object, shown: str) -> None:
    assert printable(given) == shown


def test_topic_name_of_a_failed_acks_0_produce_is_escaped(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    name = "missing\n2026-01-01 ERROR everything is lost \x1b[2J"
    with caplog.at_level(logging.INFO, "storage_node"):
        client = Client(harness)
        client.send_produce(name, 0, build_batch([b"x"]), acks=0)
        assert client.closed()
    (line,) = [record.getMessage() for record in caplog.records if "acks=0" in record.getMessage()]
    assert line.isprintable() and "missing" in line
