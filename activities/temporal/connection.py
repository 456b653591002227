"""The connection to Temporal, by the profile and environment variables of Temporal's own command line.

TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS... and the profile file (TEMPORAL_CONFIG_FILE,
TEMPORAL_PROFILE) have the same meaning as there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from temporalio.envconfig import ClientConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from activities.temporal.errors import BadConfiguration

_runtime: Runtime | None = None


def runtime() -> Runtime:
    """Return this process's one runtime; it sends the core's log lines to Python's logging, not to stdout."""
    global _runtime
    if _runtime is None:
        _runtime = Runtime(
            telemetry=TelemetryConfig(
                logging=LoggingConfig(
                    filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
                    forwarding=LogForwardingConfig(logger=logging.getLogger("temporalio.core")),
                )
            )
        )
    return _runtime


@contextlib.contextmanager
def silent_sdk() -> Iterator[None]:
    """Keep the SDK's log lines out of a command's output: the command reports errors itself."""
    log = logging.getLogger("temporalio")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def settings(role: str, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of `Client.connect`: of the profile, then the environment, then `overrides` (tests).

    Files are read each time. Raises `BadConfiguration` for a profile, or a certificate's file, that cannot be read.
    """
    try:
        found: dict[str, Any] = dict(ClientConfig.load_client_connect_config(profile))
    except Exception as error:  # The SDK's core does not document its exceptions.
        raise BadConfiguration(str(error) or type(error).__name__) from error
    found.setdefault("target_host", "localhost:7233")
    found["identity"] = f"{name_of(role)}{os.getpid()}@{socket.gethostname()}"
    found["runtime"] = runtime()
    found.update(overrides or {})
    return found


def name_of(role: str) -> str:
    """Return the prefix of the identities of a role's clients, which is the same for all its starts."""
    return f"rehome-{role}-"
