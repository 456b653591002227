"""The settings of a Kafka client: the `client.properties` that Kafka's own tools take with --command-config."""

from __future__ import annotations

import codecs
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import javaproperties

from activities.kafka_admin.errors import BadClientConfig

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: PEM texts in the settings themselves, which Kafka's tools take as well (KIP-651).
INLINE = ("ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key")
_LOGIN = re.compile(r'\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\')')


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Bootstrap addresses (`HOST:PORT,...`), and the security settings as the client library's arguments."""

    bootstrap: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a password


def read(path: Path, bootstrap: str = "") -> ClientConfig:
    """Read a file of Kafka's client settings; `bootstrap` replaces its `bootstrap.servers`.

    Settings that have no meaning for an admin client are ignored, as Kafka's tools ignore them. Raises
    `BadClientConfig` naming the setting.
    """
    try:
        # The mark that some editors put first would be read as a part of the first key.
        text = path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("latin-1")
        values: dict[str, str] = {key: value.strip() for key, value in javaproperties.loads(text).items()}
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadClientConfig(f"cannot read the client settings {path}: {why}") from error
    try:
        return of(values, bootstrap)
    except BadClientConfig as error:
        raise BadClientConfig(f"{path}: {error}") from error


def of(values: Mapping[str, str], bootstrap: str = "") -> ClientConfig:
    """Return the settings of a client's properties. Raises `BadClientConfig`."""
    servers = bootstrap or values.get("bootstrap.servers", "")
    if not servers:
        raise BadClientConfig("bootstrap.servers is missing: write HOST:PORT of one or more brokers")
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise BadClientConfig(f"security.protocol is {protocol}, but must be one of {', '.join(PROTOCOLS)}")
    found: dict[str, Any] = {"security_protocol": protocol}
    if protocol.startswith("SASL"):
        found |= _sasl(values)
    if protocol.endswith("SSL"):
        found |= _tls(values)
    return ClientConfig(servers, found)


def _sasl(values: Mapping[str, str]) -> dict[str, Any]:
    mechanism = values.get("sasl.mechanism", "")
    if mechanism not in MECHANISMS:
        raise BadClientConfig(f"sasl.mechanism is {mechanism or 'missing'}; it must be one of {', '.join(MECHANISMS)}")
    login = {key: double or single for key, double, single in _LOGIN.findall(values.get("sasl.jaas.config", ""))}
    if missing := [key for key in ("username", "password") if key not in login]:
        raise BadClientConfig(f'sasl.jaas.config has no {missing[0]}="..."')
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": _unescaped(login["username"]),
        "sasl_plain_password": _unescaped(login["password"]),
    }


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _tls(values: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ssl_check_hostname": values.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
    }
    for name in INLINE:
        if values.get(name):
            raise BadClientConfig(f"{name} is not supported: write the PEM text into a file, and name it by .location")
    for store, key in (("ssl.truststore", "ssl_cafile"), ("ssl.keystore", "ssl_certfile")):
        location = values.get(f"{store}.location", "")
        if not location:
            continue
        kind = values.get(f"{store}.type", "JKS").upper()
        if kind != "PEM":
            raise BadClientConfig(
                f"{store}.type is {kind}, which this client cannot read: convert the store to PEM (keytool -exportcert "
                f"-rfc, openssl pkcs12) and set {store}.type=PEM"
            )
        if not Path(location).is_file():
            raise BadClientConfig(f"{store}.location is {location}, which does not exist")
        found[key] = location
    _read_stores(found, values.get("ssl.key.password", ""))
    return found


def _read_stores(found: dict[str, Any], password: str) -> None:
    """Read the PEM files as the client will: it would say only that a file is wrong, not which one and why."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if location := found.get("ssl_cafile"):
        try:
            context.load_verify_locations(location)
        except OSError as error:
            raise BadClientConfig(
                f"ssl.truststore.location is {location}, which has no certificate in PEM that can be read"
            ) from error
    if location := found.get("ssl_certfile"):
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        found["ssl_password"] = password
        try:
            context.load_cert_chain(location, password=password)
        except (OSError, ValueError) as error:
            why = "ssl.key.password must be the key's" if password else "an encrypted key needs ssl.key.password"
            raise BadClientConfig(
                f"ssl.keystore.location is {location}, in which no key with its certificate can be read: both must "
                f"be PEM, and {why}"
            ) from error
