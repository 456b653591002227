"""What our nodes do not offer is said at once, by the client's own error, and never waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError

from tests.conformance.clients.conftest import Ask, fresh
from tests.conformance.clients.java import JavaClients

pytestmark = [pytest.mark.kafka, pytest.mark.temporal]

UNSUPPORTED = "UnsupportedVersionException"
#: Seconds; clients that wait for something do it for a minute.
AT_ONCE, WAITED_FOR = 20.0, 60.0


@pytest.fixture(autouse=True)
def _at_once(cluster: Any, java: JavaClients) -> Iterator[None]:
    java.call(cluster.bootstrap, "describeCluster")  # the clients are there
    began = time.monotonic()
    yield
    assert time.monotonic() - began < AT_ONCE


def test_transactions_of_the_java_producer(ask: Ask, cluster: Any) -> None:
    topic = cluster.new_topic()
    answer = ask("transaction", topic=topic, config={"transactional.id": fresh()})
    if cluster.differs("no-transactions"):
        assert answer["error"] == "TransactionalIdAuthorizationException"
    else:
        assert answer == {"ok": None}


def test_transactions_of_librdkafka(cluster: Any) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": fresh(), "log_level": 0}
    producer = Producer(settings)
    if not cluster.differs("no-transactions"):
        producer.init_transactions(WAITED_FOR)
        return
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(WAITED_FOR)
    error = raised.value.args[0]
    assert (error.name(), error.fatal()) == ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", True)


def test_transactions_of_kafka_python(cluster: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), transactional_id=fresh())
    try:
        if not cluster.differs("no-transactions"):
            producer.init_transactions()
            return
        with pytest.raises(KafkaError, match="TransactionalIdAuthorizationFailed"):
            producer.init_transactions()
    finally:
        producer.close(timeout=5)


def test_newer_protocol_of_groups(ask: Ask, cluster: Any) -> None:
    topic = cluster.new_topic()
    ask("produce", topic=topic, prefix="r", count=1)
    newer = {"group.id": fresh(), "group.protocol": "consumer"}
    ask.expected += ["CONSUMER_GROUP_HEARTBEAT", "transitioned to fatal state"]
    answer = ask("consume", subscribe=[topic], count=1, seconds=WAITED_FOR, config=newer)
    if cluster.differs("classic-groups-only"):
        assert answer["error"] == UNSUPPORTED
        assert "group.protocol=classic" in answer["message"]
    else:
        assert len(answer["records"]) == 1


@pytest.mark.parametrize("asked", ["describeQuorum", "describeQuotas", "listTransactions", "describeAcls"])
def test_what_is_not_advertised(ask: Ask, cluster: Any, asked: str) -> None:
    answer = ask(asked)
    if cluster.differs("not-advertised"):
        assert answer["error"] == UNSUPPORTED
    else:
        assert "ok" in answer or answer["error"] == "SecurityDisabledException"
