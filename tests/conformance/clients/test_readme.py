"""ops/docs/clients.md does what it says: shell, Python and Java, word for word."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.kafka.jars import java_command
from tests.conformance.clients.conftest import Ask
from tests.conformance.clients.java import ok
from tests.conformance.conftest import Tools
from tests.support.nodes.node_harness import until
from tests.support.report.readme import CLIENTS, block, commands

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.temporal]

THIS = "tests/conformance/clients/test_readme.py"
#: What the examples have where only their reader can know better.
SERVER, PATH, DATA = "localhost:9092", "/data/disk-b", "/data/"
TOPIC = "words"

#: Stands for each of Kafka's scripts: asks the virtual machine that runs their main classes already.
SCRIPT = """#!{python} -SE
import json, pathlib, socket, sys
name = pathlib.Path(sys.argv[0]).stem
given = sys.stdin.read() if name == "kafka-console-producer" else ""
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    arguments = [str(pathlib.Path(a).resolve()) if pathlib.Path(a).is_file() else a for a in sys.argv[1:]]
    with asked.makefile("rw") as stream:
        stream.write(json.dumps([name, arguments, given]) + "\\n")
        stream.flush()
        code, out, err = json.loads(stream.readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Shell:
    """A terminal whose PATH has Kafka's scripts, in an empty folder."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.folder = folder

        class Asked(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                name, arguments, given = json.loads(self.rfile.readline())
                self.wfile.write((json.dumps(tools.run(name, *arguments, stdin=given)) + "\n").encode())

        address = str(folder / "tools.socket")
        self._server = socketserver.ThreadingUnixStreamServer(address, Asked)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        scripts = folder / "bin"
        scripts.mkdir()
        for line in commands(THIS):
            for word in line.split():
                if word.startswith("kafka-") and word.endswith(".sh"):
                    (scripts / word).write_text(SCRIPT.format(python=sys.executable, address=address))
                    (scripts / word).chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            env=self._environment,
            cwd=self.folder,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def shell(tmp_path: Path, tools: Tools) -> Iterator[Shell]:
    made = Shell(tmp_path, tools)
    yield made
    made.close()


@pytest.fixture
def other_disk(ask: Ask, cluster: Any) -> Callable[[], str]:
    """The directory of node 1 where the examples' replica is not."""

    def other() -> str:
        here = ok(ask("describeReplicaLogDirs", replicas=[[TOPIC, 0, 1]])[f"{TOPIC}-0-1"])["current"]
        (there,) = [str(path) for path in cluster.log_dirs[1] if str(path) != here]
        return there

    return other


def test_examples(
    shell: Shell, cluster: Any, other_disk: Callable[[], str], spark_kafka: Any, tmp_path: Path, kcat_program: str
) -> None:
    server = cluster.address(1)
    create, write, read, config, where, file, move, verify, dump, metadata, add, group, described = (
        line.replace(SERVER, server) for line in _joined(commands(THIS))
    )
    assert "Created topic words." in shell.run(create)
    until(lambda: cluster.leaders(TOPIC, 1) == {0: 1, 1: 2} == cluster.leaders(TOPIC, 2), 60, "the topic")
    shell.run(write)
    assert sorted(shell.run(read).split()) == ["one", "three", "two"]
    assert "Completed updating config for topic words." in shell.run(config)
    assert '"partition":"words-0"' in shell.run(where)

    there = other_disk()
    shell.run(file.replace(PATH, there))
    assert f"Successfully started moving log directory to {there} for replica words-0" in shell.run(move)
    done = "Reassignment of replica words-0-1 completed successfully."
    until(lambda: done in shell.run(verify), 60, done)
    assert "baseOffset" in shell.run(dump.replace(PATH, there)) or cluster.end_offset(TOPIC, 0) == 0

    assert "partition 0, leader 1, replicas: 1, isrs: 1" in shell.run(metadata)
    shell.run(add)
    assert sorted(shell.run(group).split()) == ["four", "one", "three", "two"]
    assert "readers" in shell.run(described)

    cluster.new_topic(name="loud")
    python = block("python", THIS).replace(SERVER, cluster.bootstrap).replace(DATA, f"{tmp_path}/")
    exec(compile(python, str(CLIENTS), "exec"), {})
    lines = [line for part in (tmp_path / "loud").glob("part-*") for line in part.read_text().split()]
    assert sorted(lines) == ["FOUR", "ONE", "THREE", "TWO"]

    there = other_disk()
    source = tmp_path / "Move.java"
    source.write_text(block("java", THIS).replace(SERVER, server).replace(PATH, there))
    ran = subprocess.run(
        java_command(str(source), heap="256m"), capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == f"{there} -> null"
    cluster.delete_topic(TOPIC)
    cluster.delete_topic("loud")


def _joined(lines: list[str]) -> Iterator[str]:
    """Commands whose quotes go over several lines, as one each."""
    whole = ""
    for line in lines:
        whole = f"{whole}\n{line}" if whole else line
        if whole.count("'") % 2 == 0:
            yield whole
            whole = ""
