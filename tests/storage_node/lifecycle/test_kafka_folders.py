"""A node starts on the folders of an Apache Kafka broker: they are upgraded, their records are served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_node.config.node_config import NodeConfig
from storage_node.directories.meta import properties as meta_properties
from storage_node.node import Node
from tests.support.nodes.kafka_folders import CODECS, GOLDEN, controller_that_knows, read

CLUSTER = "rehomeConformanceClust"
IDS = ("SRkblI8UWtx0OWPVDh2izw", "iGgGx7Kx74JQuY3h1olj8w")
SENT = sorted(f"{codec} {number} {'x' * 50}".encode() for codec in CODECS for number in range(20))


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    """The broker's own configuration, over a copy of its folders."""
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    dirs = f"{tmp_path}/disk-1,{tmp_path}/disk-2"
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "log.dirs": dirs,
        "metadata.log.dir": f"{tmp_path}/disk-1",
    }
    return NodeConfig.parse(values)


@contextmanager
def started(config: NodeConfig) -> Iterator[str]:
    """The node runs while the block does; answers its address."""
    controller = controller_that_knows("orders", config, CLUSTER)
    node = Node(config, controller)
    node.start()
    try:
        controller.attach(node)
        yield f"127.0.0.1:{node.port}"
    finally:
        controller.detach(node)
        node.stop()
        controller.close()


@pytest.mark.feature("858-04", "858-07")
@pytest.mark.parametrize("clean", [True, False])
def test_node_serves_what_apache_kafka_wrote(config: NodeConfig, clean: bool) -> None:
    first, second = map(Path, config.log_dirs)
    if not clean:
        for path in (first, second):
            (path / ".kafka_cleanshutdown").unlink()
    untouched = {file: file.read_bytes() for file in (first / "__cluster_metadata-0").iterdir()}
    untouched |= {
        path / "bootstrap.checkpoint": (path / "bootstrap.checkpoint").read_bytes() for path in (first, second)
    }
    segments = {file: file.read_bytes() for path in (first, second) for file in path.glob("orders-*/*.log")}
    for _ in range(2):
        with started(config) as address:
            assert sorted(read(address, "orders", 2, len(SENT))) == SENT
    found = [meta_properties.read(path) for path in (first, second)]
    assert [(each.version, each.cluster_id, each.directory_id) for each in found if each] == [
        (2, CLUSTER, IDS[0]),
        (2, CLUSTER, IDS[1]),
    ]
    assert all(set(each.directory_ids) == set(IDS) for each in found if each)
    assert {file: file.read_bytes() for file in untouched} == untouched
    assert {file: file.read_bytes() for file in segments} == segments
