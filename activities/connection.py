"""The connection to Temporal, by the profile and environment variables that Temporal's own command line reads.

TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS... and the profile file (TEMPORAL_CONFIG_FILE,
TEMPORAL_PROFILE) mean here what they mean there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.2  # seconds before the second attempt to connect
LONGEST_PAUSE = 5.0

_runtime: Runtime | None = None


def runtime() -> Runtime:
    """This process's one runtime; the core's log lines go to Python's logging, since by default they go to stdout."""
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


def settings(role: str, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of `Client.connect`: the profile, then the environment, then `overrides` (tests)."""
    found: dict[str, Any] = dict(ClientConfig.load_client_connect_config(profile))
    found.setdefault("target_host", "localhost:7233")
    found["identity"] = f"{name_of(role)}{os.getpid()}@{socket.gethostname()}"
    found["runtime"] = runtime()
    found.update(overrides or {})
    return found


def name_of(role: str) -> str:
    """What the identity of a role's clients begins with, whichever start of it they belong to."""
    return f"rehome-{role}-"


async def connect_forever(
    role: str, profile: str | None = None, overrides: Mapping[str, Any] | None = None, *, pause: float = FIRST_PAUSE
) -> Client:
    """Connect, trying again with growing pauses until it works or the task is cancelled.

    Raises what `ClientConfig` raises for a profile that is missing or malformed.
    """
    where = settings(role, profile, overrides)
    failed = False
    while True:
        try:
            client = await Client.connect(**where)
        except (RuntimeError, OSError) as error:
            if not failed:
                address = where["target_host"]
                log.warning("Temporal at %s does not answer (%s); trying again until it does", address, error)
                failed = True
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 1.6)
            continue
        if failed:
            log.warning("connected to Temporal")
        return client
