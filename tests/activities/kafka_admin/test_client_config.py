"""The client.properties that Kafka's own tools take: what each setting becomes, and which are rejected."""

from __future__ import annotations

import asyncio
import codecs
import logging
from pathlib import Path
from typing import Any, cast

import pytest

from activities.kafka_admin import admin, client_config
from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.errors import AdminError, BadClientConfig, NoResponse
from activities.kafka_admin.pool import AdminPool
from tests.support.programs.openssl import certificate

SERVERS = {"bootstrap.servers": "broker-1:9092,broker-2:9092"}
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="lovelace";'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required username='ada' password='a\\'b\\\\c';"


def config(**more: str) -> ClientConfig:
    return client_config.of(SERVERS | {key.replace("_", "."): value for key, value in more.items()})


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate, and it with its key, whose password is "geheim"."""
    signed, both = certificate(tmp_path_factory.mktemp("stores"), "ada", password="geheim")
    return str(signed), str(both)


def test_cluster_without_security_needs_only_addresses() -> None:
    found = config()
    assert found == ClientConfig(SERVERS["bootstrap.servers"], {"security_protocol": "PLAINTEXT"})


@pytest.mark.parametrize(
    ("mechanism", "jaas", "password"),
    [("PLAIN", PLAIN, "lovelace"), ("SCRAM-SHA-256", SCRAM, "a'b\\c"), ("SCRAM-SHA-512", SCRAM, "a'b\\c")],
)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "sasl_ssl"])
def test_login_is_read_from_the_jaas_config(mechanism: str, jaas: str, password: str, protocol: str) -> None:
    settings = config(security_protocol=protocol, sasl_mechanism=mechanism, sasl_jaas_config=jaas).settings
    assert settings["security_protocol"] == protocol.upper()
    assert (settings["sasl_mechanism"], settings["sasl_plain_username"], settings["sasl_plain_password"]) == (
        mechanism, "ada", password,
    )  # fmt: skip
    assert settings.get("ssl_check_hostname") == (True if protocol == "sasl_ssl" else None)


def tls(trusted: str, own: str, password: str) -> ClientConfig:
    return config(
        security_protocol="SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_location=trusted,
        ssl_keystore_type="pem",
        ssl_keystore_location=own,
        ssl_key_password=password,
        ssl_endpoint_identification_algorithm="",
    )


def test_pem_stores_and_the_key_password(stores: tuple[str, str]) -> None:
    assert tls(*stores, "geheim").settings == {
        "security_protocol": "SSL",
        "ssl_check_hostname": False,
        "ssl_cafile": stores[0],
        "ssl_certfile": stores[1],
        "ssl_password": "geheim",
    }


@pytest.mark.parametrize(
    ("password", "why"),
    [("", "an encrypted key needs ssl.key.password"), ("falsch", "ssl.key.password must be the key's")],
)
def test_key_that_its_password_does_not_open_is_rejected_and_nobody_is_asked(
    password: str, why: str, stores: tuple[str, str]
) -> None:
    with pytest.raises(BadClientConfig) as rejected:
        tls(*stores, password)
    assert str(rejected.value).startswith(f"ssl.keystore.location is {stores[1]}, ") and why in str(rejected.value)
    assert "falsch" not in str(rejected.value)


def test_stores_without_a_certificate_are_rejected_by_name(stores: tuple[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(BadClientConfig, match=r"ssl\.truststore\.location"):
        tls(str(empty), stores[1], "geheim")
    with pytest.raises(BadClientConfig, match=r"ssl\.keystore\.location"):
        tls(stores[0], stores[0], "geheim")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"security_protocol": "TLS"}, "security.protocol is TLS, but must be one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl.mechanism is GSSAPI"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, 'sasl.jaas.config has no username="..."'),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": 'X required username="a";',
            },
            'sasl.jaas.config has no password="..."',
        ),
        ({"security_protocol": "SSL", "ssl_truststore_location": "/s.jks"}, "ssl.truststore.type is JKS"),
        (
            {"security_protocol": "SSL", "ssl_keystore_type": "PKCS12", "ssl_keystore_location": "/s.p12"},
            "convert the store to PEM",
        ),
        (
            {"security_protocol": "SSL", "ssl_truststore_type": "PEM", "ssl_truststore_location": "/none.pem"},
            "ssl.truststore.location is /none.pem, which does not exist",
        ),
        (
            {"security_protocol": "SSL", "ssl_truststore_certificates": "-----BEGIN"},
            "ssl.truststore.certificates is not supported: write the PEM text into a file",
        ),
    ],
)
def test_bad_setting_is_named(settings: dict[str, str], why: str) -> None:
    with pytest.raises(BadClientConfig, match=why.replace(".", r"\.")) as caught:
        config(**settings)
    assert "lovelace" not in str(caught.value)


def test_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# Kafka's\nbootstrap.servers : one:9092\nacks=all\nsecurity.protocol=SASL_PLAINTEXT \n"
                    f"sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN[:60]}\\\n   {PLAIN[60:]}\n")  # fmt: skip
    found = client_config.read(file)
    assert (found.bootstrap, found.settings["sasl_plain_password"]) == ("one:9092", "lovelace")
    assert client_config.read(file, "two:9092").bootstrap == "two:9092", "the command's option governs"
    file.write_bytes(codecs.BOM_UTF8 + b"bootstrap.servers=three:9092\r\nacks=all\r\n")
    assert client_config.read(file).bootstrap == "three:9092", "the mark that some editors put first"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot read the client settings .*No such file or directory"),
        ("", "bootstrap.servers is missing: write HOST:PORT of one or more brokers"),
        ("bootstrap.servers=a:1\nsecurity.protocol=x", "security.protocol is X"),
        ("a=\\u00zz", "cannot read the client settings"),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "client.properties"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadClientConfig, match=why) as caught:
        client_config.read(file)
    assert str(file) in str(caught.value)


def test_password_is_in_no_repr_log_or_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(admin, "CONNECT_SECONDS", 0.3)
    caplog.set_level(logging.DEBUG)
    found = client_config.of(
        {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
         "sasl.jaas.config": PLAIN}
    )  # fmt: skip
    assert "lovelace" not in repr(found) + str(found) + f"{found}"

    async def work() -> str:
        pool = AdminPool(found, request_timeout=0.3)
        try:
            with pytest.raises(NoResponse) as caught:
                await pool.run(KafkaAdmin.topics)
            return f"{caught.value!r} {caught.value.__cause__!r} {vars(pool)}"
        finally:
            await pool.close()

    assert "lovelace" not in asyncio.run(work()) + caplog.text


def test_pool_replaces_a_client_without_response_and_keeps_one_whose_request_was_rejected() -> None:
    """The pool itself; what clients do is tested on real clusters."""
    made: list[Client] = []

    class Client:
        closed = False

        def __init__(self, *_: object) -> None:
            made.append(self)

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            self.closed = True

    def fails(error: Exception) -> object:
        raise error

    async def work() -> None:
        pool = AdminPool(ClientConfig("a:1"), clients=1, admin=cast(Any, Client))
        assert await pool.run(lambda _: 1) == 1
        with pytest.raises(AdminError, match="rejected"):
            await pool.run(lambda _: fails(AdminError("rejected")))
        assert [each.closed for each in made] == [False]
        for error in (NoResponse("nothing"), RuntimeError("a bug")):
            with pytest.raises(type(error)):
                await pool.run(lambda _, error=error: fails(error))  # type: ignore[misc]
            assert made[-1].closed
            assert await pool.run(lambda _: 2) == 2
        assert [each.closed for each in made] == [True, True, False]
        await pool.close()
        assert made[-1].closed

    asyncio.run(work())
