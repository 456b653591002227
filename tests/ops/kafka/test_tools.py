"""Kafka's tools by the names of their scripts: arguments, and the warm JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.kafka import tools
from ops.kafka.tools import Ran, ToolStuck, WarmTools
from tests.support.programs.kafka import require_kafka


@pytest.mark.parametrize(
    ("tool", "given", "expected"),
    [
        ("kafka-topics", ("--list",), ("--bootstrap-server", "a:1", "--list")),
        ("kafka-topics", ("--list", "--bootstrap-server", "b:2"), ("--list", "--bootstrap-server", "b:2")),
        ("kafka-topics", ("--bootstrap-server=b:2",), ("--bootstrap-server=b:2",)),
        ("kafka-reassign-partitions", ("--bootstrap-controller", "c:3"), ("--bootstrap-controller", "c:3")),
        ("kafka-dump-log", ("--files", "x"), ("--files", "x")),
    ],
)
def test_bootstrap_server_is_added_where_needed(tool: str, given: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert tools.with_server(tool, given, "a:1") == expected
    assert tools.with_server(tool, given, None) == given


def test_unknown_script_raises_key_error() -> None:
    assert tools.main_class("some.main.Class") == "some.main.Class"
    with pytest.raises(KeyError):
        tools.main_class("kafka-nothing")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmTools]:
    require_kafka()
    with WarmTools(tmp_path_factory.mktemp("warm")) as made:
        yield made


@pytest.mark.kafka
def test_outputs_of_consecutive_runs_are_separate(warm: WarmTools) -> None:
    first = warm.run("kafka-storage", "random-uuid")
    second = warm.run("kafka-storage", "random-uuid")
    assert first.code == second.code == 0 and first.err == second.err == ""
    assert first.out != second.out and len(first.out.strip()) == len(second.out.strip()) == 22
    code, out, err = warm.run("kafka-storage", "no-such-command")
    assert code == 1 and "no-such-command" in out + err
    assert warm.run("kafka-storage", "random-uuid").code == 0


@pytest.mark.kafka
def test_unknown_class_fails_and_the_next_tool_runs(warm: WarmTools) -> None:
    assert warm.run("no.such.Class") == Ran(1, "", "java.lang.ClassNotFoundException: no.such.Class\n")
    assert warm.run("kafka-storage", "random-uuid").code == 0


@pytest.mark.kafka
@pytest.mark.parametrize("own_process", [False, True])
def test_tool_that_times_out_is_killed(warm: WarmTools, own_process: bool) -> None:
    run = tools.run if own_process else warm.run
    forever = ("--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--max-messages", "1")
    with pytest.raises(ToolStuck, match=r"kafka-console-consumer .*--topic t.* did not exit within 3 s"):
        run("kafka-console-consumer", *forever, timeout=3)
    assert warm.run("kafka-storage", "random-uuid").code == 0


@pytest.mark.kafka
def test_dead_jvm_is_restarted(warm: WarmTools, tmp_path: Path) -> None:
    process = warm._started()
    process.kill()
    process.wait()
    assert warm.run("kafka-storage", "random-uuid").code == 0
