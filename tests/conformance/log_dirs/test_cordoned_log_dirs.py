"""cordoned.log.dirs (KIP-1066): directories that get nothing new, and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.clusters import BROKER_RESOURCE, Cluster
from tests.conformance.log_dirs.calls import (
    LOG_DIR_NOT_FOUND,
    NONE,
    ask,
    describe,
    moves_held,
    others,
    wait_until_in,
    where,
)

NODE = 2
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_REQUEST = 42


def cordon(cluster: Cluster, value: str | None, name: str = str(NODE)) -> tuple[int, str | None]:
    """Set (None: delete) the config; answers the error code and the message."""
    config = {"name": "cordoned.log.dirs", "config_operation": 1 if value is None else 0, "value": value}
    resources = [{"resource_type": BROKER_RESOURCE, "resource_name": name, "configs": [config]}]
    answer = cluster.call("IncrementalAlterConfigs", 1, node=NODE, resources=resources, validate_only=False)
    (row,) = answer.responses
    return int(row.error_code), row.error_message


def cordoned(cluster: Cluster) -> set[str]:
    return {path for path, row in describe(cluster, NODE, {}, 5).items() if row.cordoned}


@pytest.fixture(autouse=True)
def _nothing_stays_cordoned(cluster: Cluster) -> Iterator[None]:
    yield
    assert cordon(cluster, None) == (NONE, None)
    cluster.eventually(lambda: not cordoned(cluster))


def test_cordoned_directory_gets_neither_replicas_nor_copies(cluster: Cluster) -> None:
    here, there = cluster.log_dirs[NODE]
    topic = cluster.new_topic(assignment={0: [NODE]})
    held, other = str(where(cluster, NODE, topic)), others(cluster, NODE, topic)[0]
    assert cordon(cluster, other) == (NONE, None)
    cluster.eventually(lambda: cordoned(cluster) == {other})
    assert all(row.error == NONE for row in describe(cluster, NODE, {}, 5).values())
    assert set(describe(cluster, NODE, {}, 4)) == {here, there}
    for name in (topic, "no-such-topic"):
        assert ask(cluster, NODE, name, other) == INVALID_REPLICA_ASSIGNMENT
        assert ask(cluster, NODE, name, "/nowhere") == LOG_DIR_NOT_FOUND
    assert where(cluster, NODE, topic, future=True) is None
    made = cluster.new_topic(assignment={partition: [NODE] for partition in range(6)})
    assert {where(cluster, NODE, made, partition) for partition in range(6)} == {held}
    assert cordon(cluster, "*") == (NONE, None)
    cluster.eventually(lambda: cordoned(cluster) == {here, there})
    assert where(cluster, NODE, cluster.new_topic(assignment={0: [NODE]})) in (here, there)
    assert cordon(cluster, None) == (NONE, None)
    cluster.eventually(lambda: not cordoned(cluster))
    assert ask(cluster, NODE, topic, other) == NONE
    wait_until_in(cluster, NODE, topic, other)


def test_move_out_of_a_cordoned_directory_goes_on_and_can_be_cancelled(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    cluster.produce(topic, 0, 400, size=1000, per_batch=20)
    source, target = str(where(cluster, NODE, topic)), others(cluster, NODE, topic)[0]
    assert cordon(cluster, source) == (NONE, None)
    cluster.eventually(lambda: cordoned(cluster) == {source})
    with moves_held(cluster, NODE):
        assert ask(cluster, NODE, topic, target) == NONE
        assert where(cluster, NODE, topic, future=True) == target
        if cluster.differs("cancel-into-cordoned"):
            assert ask(cluster, NODE, topic, source) == NONE
            assert where(cluster, NODE, topic, future=True) is None
            assert ask(cluster, NODE, topic, target) == NONE
        else:
            assert ask(cluster, NODE, topic, source) == INVALID_REPLICA_ASSIGNMENT
            assert where(cluster, NODE, topic, future=True) == target
    wait_until_in(cluster, NODE, topic, target)


def test_only_directories_of_the_broker_named_can_be_cordoned(cluster: Cluster) -> None:
    here, there = cluster.log_dirs[NODE]
    words = "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir."
    for wrong in ("/nowhere", here + "/", "relative"):
        assert cordon(cluster, wrong) == (INVALID_REQUEST, f"{words} Missing entries : {wrong}")
    message = "Cannot update these configs at default cluster level, broker id must be specified: [cordoned.log.dirs]"
    assert cordon(cluster, here, name="") == (INVALID_REQUEST, message)
    assert cordon(cluster, f"{here},{there}") == (NONE, None)
    cluster.eventually(lambda: cordoned(cluster) == {here, there})
    assert cordon(cluster, "") == (NONE, None)
    cluster.eventually(lambda: not cordoned(cluster))
