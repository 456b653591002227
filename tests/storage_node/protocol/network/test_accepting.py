"""Connections to a node without free file descriptors, and to a flooded one."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.support.nodes.node_harness import until
from tests.support.wire import receive_frame

HELLO = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff"
"""ApiVersions, version 0."""


def node_with_few_descriptors(folder: str) -> None:
    """A process with a node that may open 200 files. "fill" opens all that are left, "free" closes them."""
    import os
    import resource

    from tests.support.nodes.node_harness import running

    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    with running(Path(folder), dirs=1) as harness:
        print(harness.node.port, flush=True)
        held: list[int] = []
        for line in sys.stdin:
            if line.strip() == "fill":
                try:
                    while True:
                        held.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    pass
            else:
                for file in held:
                    os.close(file)
            print("done", flush=True)


def answers(port: int, seconds: float = 30.0) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), seconds) as connection:
            connection.sendall(HELLO)
            return len(receive_frame(connection)) > 50
    except OSError:
        return False


def test_node_without_descriptors_listens_again_when_it_has_some(tmp_path: Path) -> None:
    code = f"from {__name__} import node_with_few_descriptors as run; run({str(tmp_path)!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        port = int(process.stdout.readline())
        assert answers(port)

        def tell(what: str) -> None:
            assert process.stdin is not None and process.stdout is not None
            print(what, file=process.stdin, flush=True)
            assert process.stdout.readline() == "done\n"

        refused = fills = 0
        tell("fill")
        while refused < 50:
            if answers(port, 0.2):
                # The process had just closed a descriptor, as of a connection; "fill" takes that too.
                tell("fill")
                fills += 1
                assert fills < 10
            else:
                refused += 1
        tell("free")
        until(lambda: answers(port, 2), 60)
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
