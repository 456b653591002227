"""A node drops groups only once their new coordinator has them on disk, in any order of calls."""

from __future__ import annotations

import asyncio
import json
import random
import socketserver
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node.groups import giving
from storage_node.model.metadata import NodeImage
from storage_node.wire.client import private_client
from storage_node.wire.client.exchange import receive_frame
from storage_node.wire.client.private_client import PrivateCallFailed
from tests.support.group_calls import NOW
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.scale import scaled, tally
from tests.support.wire import Client

GROUPS = ["", *(f"group-{index}" for index in range(30)), "ä" * 16_000]


class SecondNode:
    """Node 2 of the tests: the groups from groups-give on its disk, and the tokens that it confirms."""

    def __init__(self) -> None:
        self.disk: set[str] = set()
        self.tokens: set[str] = set()
        self.asked = 0
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                data = receive_frame(self.request)
                _, _, correlation, length = struct.unpack_from(">hhih", data)
                answer = json.dumps(outer.answer(json.loads(data[10 + length :]))).encode()
                self.request.sendall(struct.pack(">ii", 4 + len(answer), correlation) + answer)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        if call["op"] == "groups-kept":
            self.asked += 1
            return {"node": 2, "kept": call["token"] in self.tokens}
        return {"node": 2, "groups": [], "more": False, "settled": False}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def second() -> Iterator[SecondNode]:
    made = SecondNode()
    yield made
    made.close()


def start(harness: Harness, second: SecondNode, groups: list[str]) -> None:
    """Commit to the groups, then register node 2, which coordinates about half of them."""
    harness.create_topic("t")
    until(lambda: harness.node.groups.settled == 1)
    client = Client(harness)
    for group in groups:
        row = {"partition_index": 0, "committed_offset": 42, "committed_metadata": ""}
        values = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        answer = client.ask(8, 5, values | {"topics": [{"name": "t", "partitions": [row]}]})
        assert int(answer.topics[0].partitions[0].error_code) == 0
    client.close()
    register(harness, second)


def register(harness: Harness, second: SecondNode, generation: int = 1) -> None:
    nodes = {
        **harness.controller.image.nodes,
        2: NodeImage(2, "incarnation-2", 99, "127.0.0.1", second.port, (), False),
    }
    harness.controller.change(nodes=nodes, cluster_generation=generation)
    until(
        lambda: harness.node.metadata.image.cluster_generation == generation and 2 in harness.node.metadata.image.nodes
    )


def call(harness: Harness, op: str, **fields: Any) -> dict[str, Any]:
    return private_client.call("127.0.0.1", harness.node.port, op, 10.0, **fields)


def given(harness: Harness, generation: int = 1) -> dict[str, Any]:
    answer = call(harness, "groups-give", node=2, generation=generation, after="")
    return answer | {"names": [row[0] for row in answer["groups"]]}


def take(harness: Harness, answer: dict[str, Any], **fields: Any) -> None:
    """Send groups-taken as node 2 does; raises PrivateCallFailed."""
    last = answer["names"][-1]
    values = {"node": 2, "generation": 1, "after": "", "last": last, "token": answer["token"]}
    call(harness, "groups-taken", **values | fields)


def test_call_in_another_nodes_name_drops_no_groups(tmp_path: Path, second: SecondNode) -> None:
    with running(tmp_path, 1, NOW) as harness:
        start(harness, second, GROUPS)
        answer = given(harness)
        assert len(answer["names"]) > 5
        with pytest.raises(PrivateCallFailed, match="did not take"):
            take(harness, answer)
        assert second.asked == 1
        assert set(GROUPS) <= set(harness.node.groups.data)


def test_groups_are_not_dropped_without_a_token(tmp_path: Path, second: SecondNode) -> None:
    with running(tmp_path, 1, NOW) as harness:
        start(harness, second, GROUPS)
        names = given(harness)["names"]
        for fields in (
            {"groups": names},
            {"node": 2, "generation": 1, "after": "", "last": names[-1]},
            {"node": 2, "generation": 1, "after": "", "last": names[-1], "token": ""},
            {"node": 2, "generation": 1, "after": "", "last": names[-1], "token": f"{10**17}.{'0' * 64}"},
            {"node": 2, "generation": 1, "after": "", "last": names[-1], "token": "9" * 5000},
            {"node": 2, "generation": 1, "after": "", "last": names[-1], "token": "\ud800.ä"},
            {"node": 1, "generation": 1, "after": "", "last": names[-1], "token": given(harness)["token"]},
        ):
            with pytest.raises(PrivateCallFailed):
                call(harness, "groups-taken", **fields)
        assert second.asked == 0, "the node requests no confirmation of a token of another node"
        assert set(GROUPS) <= set(harness.node.groups.data)


def test_every_group_is_on_a_disk_after_calls_in_any_order(tmp_path: Path, second: SecondNode) -> None:
    """With lost responses, repeated calls, those of other nodes, ranges and generations, and changes in between."""
    with running(tmp_path, 1, NOW) as harness, tally("orders of giving groups away") as counted:
        start(harness, second, GROUPS)
        random_ = random.Random(7)
        answers: list[dict[str, Any]] = []
        generation, dropped = 1, 0
        for _ in range(scaled(150, 3000)):
            step = random_.choice(["give", "keep", "taken", "taken", "changed", "generation", "lost"])
            answer = random_.choice(answers) if answers else None
            if step == "give":
                answers = [*answers[-5:], found] if (found := given(harness, generation))["names"] else answers
            elif step == "keep" and answer is not None:
                second.disk |= set(answer["names"])
                second.tokens.add(answer["token"])
            elif step == "taken" and answer is not None:
                fields: dict[str, Any] = {"generation": generation}
                if random_.random() < 0.4:
                    fields |= random_.choice(
                        [
                            {"generation": random_.choice([0, 1, 2, 3])},
                            {"node": random_.choice([1, 3])},
                            {"last": random_.choice(GROUPS)},
                            {"after": random_.choice(GROUPS)},
                            {"token": random_.choice(answers)["token"]},
                        ]
                    )
                before = set(harness.node.groups.data)
                try:
                    take(harness, answer, **fields)
                except PrivateCallFailed:
                    assert set(harness.node.groups.data) == before, "a rejected call drops nothing"
                else:
                    dropped += 1
                    assert before - set(harness.node.groups.data) <= second.disk
            elif step == "changed":
                # Another node gives this node the rest of a group.
                adopt(harness, random_.choice(GROUPS))
            elif step == "generation" and random_.random() < 0.1:
                generation += 1
                register(harness, second, generation)
            elif step == "lost":
                second.tokens.clear()  # node 2 was restarted: it has the groups, but no token
            assert set(GROUPS) <= set(harness.node.groups.data) | second.disk
            counted.count += 1
        assert dropped


def adopt(harness: Harness, group: str) -> None:
    loop, groups = harness.node.listener.loop, harness.node.groups
    assert loop is not None
    topic_id = harness.node.metadata.image.topics["t"].id
    row = [group, None, [["t", 0, 43, -1, "", groups.expiry.now(), topic_id]]]
    if group in groups.data:
        asyncio.run_coroutine_threadsafe(groups.adopt(row), loop).result(10)


def test_token_expires(tmp_path: Path, second: SecondNode, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, 1, NOW) as harness:
        start(harness, second, GROUPS)
        monkeypatch.setattr(giving, "_VALID", -0.001)
        late = given(harness)
        second.tokens.add(late["token"])
        with pytest.raises(PrivateCallFailed, match="expired"):
            take(harness, late)
        monkeypatch.undo()
        good = given(harness)
        second.tokens.add(good["token"])
        take(harness, good)
        assert not set(good["names"]) & set(harness.node.groups.data)
        with pytest.raises(PrivateCallFailed):
            take(harness, good)
