"""The webhooks that receive alerts of plans. Their URLs are secrets of the worker: no history, log or error has one.

The worker's --alerts file is TOML, a table for each name that plans use:

    [oncall]
    url = "https://hooks.slack.com/services/..."
    format = "slack"
"""

from __future__ import annotations

import asyncio
import http.client
import json
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from storage_node.model.fields import BadField
from workflows.model.plans import options
from workflows.model.plans.problems import Problems
from workflows.model.plans.running import alerting
from workflows.model.plans.running.alerting import AlertRequest

#: Seconds of one socket operation, and of one attempt.
SOCKET_TIMEOUT, ATTEMPT_TIMEOUT = 8.0, 15.0
#: Requests at a time: a webhook that hangs takes no thread from the steps of plans.
THREADS = 4


class Format(StrEnum):
    """What a webhook receives."""

    SLACK = "slack"
    """{"text": a sentence}, as Slack, Mattermost and others accept it."""
    JSON = "json"
    """All fields of the alert, and the sentence as "text"."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where alerts are sent; the URL is not shown."""

    url: str = field(repr=False)
    format: Format


class AlertNotSent(Exception):
    """A webhook did not accept an alert; `retryable`: a later attempt may succeed."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


def read(path: Path) -> dict[str, Webhook]:
    """Read an --alerts file. Raises `PlanProblems` with every mistake, OSError, ValueError if it is not TOML."""
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    problems = Problems()
    found: dict[str, Webhook] = {}
    for name, value in rows.items():
        problems.read(options.webhook_name, name, name)
        row = problems.object(value, name, ("url", "format"))
        url = problems.read(_url, row.get("url"), f"{name}.url")
        kind = problems.read(_format, row.get("format", Format.JSON), f"{name}.format")
        if url is not None and kind is not None:
            found[name] = Webhook(url, kind)
    problems.finish()
    return found


def _url(value: Any, path: str) -> str:
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and value.isascii() and value.isprintable()
        usable = usable and (parts.port is None or parts.port > 0) and " " not in value
    except ValueError:
        usable = False
    if not usable:
        raise BadField(path, "must be a URL that begins with https:// or http://")
    return str(value)


def _format(value: Any, path: str) -> Format:
    if value not in set(Format):
        raise BadField(path, f"must be one of {', '.join(Format)}")
    return Format(value)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A webhook that moved is reported: an alert follows no response to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class AlertSteps:
    """The activity that sends alerts."""

    def __init__(self, webhooks: Mapping[str, Webhook]) -> None:
        self._webhooks = webhooks
        self._threads = ThreadPoolExecutor(THREADS, "alerts")
        self._opener = urllib.request.build_opener(_NoRedirects)

    @property
    def names(self) -> list[str]:
        """Return the names that plans may use."""
        return sorted(self._webhooks)

    async def send(self, alert: AlertRequest) -> None:
        """Send an alert once. Raises `AlertNotSent`."""
        webhook = self._webhooks.get(alert.webhook)
        if webhook is None:
            # Another worker may know it.
            raise AlertNotSent(f"this worker knows no webhook {alert.webhook!r}: add it to its --alerts file")
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(loop.run_in_executor(self._threads, self._post, webhook, alert), ATTEMPT_TIMEOUT)
        except TimeoutError:
            raise AlertNotSent(f"the webhook {alert.webhook} did not respond in time") from None

    def _post(self, webhook: Webhook, alert: AlertRequest) -> None:
        request = urllib.request.Request(
            webhook.url,
            json.dumps(body(webhook.format, alert)).encode(),
            {"Content-Type": "application/json", "Idempotency-Key": alert.id.encode("ascii", "replace").decode()},
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=SOCKET_TIMEOUT):
                return
        except urllib.error.HTTPError as error:
            code = error.code
            error.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            # The error itself may have the URL.
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or type(reason).__name__
            raise AlertNotSent(f"the webhook {alert.webhook} is unavailable: {why}") from None
        # A request that the receiver rejects is not repeated, except where its status requests that.
        raise AlertNotSent(
            f"the webhook {alert.webhook} responded with HTTP status {code}",
            retryable=code >= 500 or code in (408, 425, 429),
        )


def body(kind: Format, alert: AlertRequest) -> dict[str, Any]:
    """Return the body of a request."""
    text = alerting.sentence(alert)
    if kind == Format.SLACK:
        # Slack's control characters.
        return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    row = asdict(alert)
    del row["webhook"]
    return {"version": 1, "text": text} | row
