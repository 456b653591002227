"""Define names and defaults of server.properties, as Kafka documents them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from storage_node.config.table import ALIASES, BROKER, PROPOSED

log = logging.getLogger(__name__)

#: Every supported key; None: no default (or one that depends on other keys).
DEFAULTS: Mapping[str, str | None] = {name: key.default for name, key in BROKER.items()}
LISTENERS = DEFAULTS["listeners"] or ""

_warned: set[str] = set()


def real_name(name: str) -> str:
    """Return the key that replaced a proposal's name, with one warning for it; any other name unchanged."""
    real = ALIASES.get(name, name)
    if name in PROPOSED and name not in _warned:
        _warned.add(name)
        log.warning("the config %s is a proposal's name of %s and read as that; write %s", name, real, real)
    return real


#: Kafka's keys that describe a KRaft cluster: they cause no warning in a file that is shared with Kafka.
IGNORED = frozenset(
    {
        "process.roles",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "controller.listener.names",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "num.network.threads",
        "num.io.threads",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "replica.socket.receive.buffer.bytes",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    }
)

#: Keys of other parts of the program that may be in the same file.
PREFIXES = ("rehome.", "temporal.")

_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]*):(?P<port>\d{1,5})")


def parse_listener(value: str) -> tuple[str, int]:
    """Return host and port of `PLAINTEXT://host:port`; of several, the first but the controller's.

    Raises ValueError.
    """
    parts = [part.strip() for part in value.split(",") if part.strip()]
    for part in parts:
        match = _LISTENER.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not of the form PLAINTEXT://host:port")
        if match["name"].upper() == "CONTROLLER" and len(parts) > 1:
            continue
        if match["name"].upper() in ("SSL", "SASL_SSL", "SASL_PLAINTEXT"):
            raise ValueError(f"{match['name']} is not offered, only PLAINTEXT")
        port = int(match["port"])
        if port > 65535:
            raise ValueError(f"port {port} is beyond 65535")
        return match["host"].strip("[]"), port
    raise ValueError("no listener")


def parse_overrides(value: str) -> dict[str, int]:
    """Return the connections per host in `host:100,127.0.0.1:200,[::1]:300`. Raises ValueError."""
    found: dict[str, int] = {}
    for part in (part.strip() for part in value.split(",")):
        if not part:
            continue
        host, _, count = part.rpartition(":")
        host = host.strip().strip("[]")
        if not host or not count.strip().isdecimal():
            raise ValueError(f"{part!r} is not of the form host:count")
        found[host] = int(count)
    return found
