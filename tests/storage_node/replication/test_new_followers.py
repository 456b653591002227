"""New replicas that follow are created after the node has responded to the image that assigns them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.node import Node
from storage_node.publisher import creation
from tests.support.nodes.node_harness import make_config, make_dirs, until
from tests.support.nodes.static_image import image, row

PORTS = {1: 9, 2: 9, 3: 9}  # no process listens there
TP = TopicPartition("t", 0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(make_config(make_dirs(tmp_path, 2), 1, 0))
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize(("leader", "at_once"), [(2, True), (1, False), (-1, False)])
def test_only_followers_may_be_created_after_the_response(
    node: Node, leader: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.apply_images([image(1, [row([2], leader=2)], PORTS).encode()]) == (1, 1)
    called, go_on = threading.Event(), threading.Event()
    make = creation.create_logs

    def slow(*arguments: Any) -> Any:
        called.set()
        assert go_on.wait(30)
        return make(*arguments)

    monkeypatch.setattr(creation, "create_logs", slow)
    told = image(2, [row([2, 1], leader=leader, epoch=2, partition_epoch=2)], PORTS)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(node.apply_images, [told.encode()])
        try:
            assert called.wait(30)
            if at_once:
                until(lambda: node.metadata.image.version == 2, what="the node responds by it")
            else:
                assert node.metadata.image.version == 1
            assert not work.done()
        finally:
            go_on.set()
        assert work.result(30) == told.pair
    assert node.metadata.image.version == 2
    assert node.replicas.served[TP].leader == leader
