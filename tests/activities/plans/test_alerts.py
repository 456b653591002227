"""Alerts to real HTTP servers: one that accepts, rejects, is broken, moves elsewhere, refuses, hangs."""

from __future__ import annotations

import asyncio
import codecs
import socket
from pathlib import Path

import pytest

import worker
from activities.plans import alerts
from activities.plans.alerts import AlertNotSent, AlertSteps, Format, Webhook
from tests.support.webhook import receiving
from workflows.model.plans.problems import PlanProblems
from workflows.model.plans.running.alerting import AlertRequest

ALERT = AlertRequest("prod", "oncall", "prod/plan/a<b", "failed", "prod/plan/a/alert/failed-1-1", "t-0 & more", "", 5.0)


def send(url: str, kind: Format = Format.JSON, name: str = "oncall") -> None:
    asyncio.run(AlertSteps({name: Webhook(url, kind)}).send(ALERT))


def refused(url: str, name: str = "oncall") -> AlertNotSent:
    with pytest.raises(AlertNotSent) as caught:
        send(url, name=name)
    assert "secret-path" not in str(caught.value) and "127.0.0.1" not in str(caught.value)
    return caught.value


def test_alert_in_both_formats_with_the_key_by_which_a_receiver_knows_a_repeated_one() -> None:
    with receiving() as it:
        send(it.url, Format.SLACK)
        send(it.url)
    text = "rehome: the plan prod/plan/a<b has failed: t-0 & more"
    slack, row = it.received
    assert slack == {"text": "rehome: the plan prod/plan/a&lt;b has failed: t-0 &amp; more"}
    assert (row["text"], row["event"], row["plan"], row["id"]) == (text, "failed", "prod/plan/a<b", ALERT.id)
    assert it.headers[0]["Idempotency-Key"] == ALERT.id


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (429, True), (404, False), (302, False)])
def test_response_that_is_no_success_is_an_error_which_a_retry_may_mend_or_not(status: int, retryable: bool) -> None:
    with receiving() as it:
        it.statuses = [status]
        found = refused(it.url)
        assert found.retryable == retryable and f"HTTP status {status}" in str(found)
        assert len(it.received) == 1, "it follows no redirect"


def test_webhook_that_refuses_the_connection_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = refused(f"http://127.0.0.1:{port}/secret-path")
    assert found.retryable and "the webhook oncall is unavailable: Connection refused" in str(found)


def test_webhook_that_hangs_costs_one_bounded_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "SOCKET_TIMEOUT", 0.3)
    with receiving() as it:
        it.statuses = [None]
        assert refused(it.url).retryable  # after the socket's timeout, while the receiver never responds


def test_name_that_this_worker_does_not_know_may_be_known_by_another() -> None:
    found = refused("http://127.0.0.1:1/secret-path", name="other")
    assert found.retryable and "knows no webhook 'oncall'" in str(found)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    return path


def test_file_of_webhooks_is_read_with_all_mistakes_and_without_their_urls(tmp_path: Path) -> None:
    good = write(tmp_path, '[oncall]\nurl = "https://h/secret"\nformat = "slack"\n[log]\nurl = "http://l:1/"\n')
    found = alerts.read(good)
    assert {name: each.format for name, each in found.items()} == {"oncall": "slack", "log": "json"}
    assert "secret" not in repr(found)
    good.write_bytes(codecs.BOM_UTF8 + good.read_bytes())
    assert alerts.read(good) == found, "the mark that some editors put first"
    bad = write(
        tmp_path,
        '[a]\nurl = "ftp://h/secret"\n[b]\nurl = "https://h"\nformat = "xml"\ntoken = "secret"\n[c]\n"d e" = 1\n',
    )
    with pytest.raises(PlanProblems) as caught:
        alerts.read(bad)
    text = str(caught.value)
    assert all(each in text for each in ("a.url", "b.format", "token", "c.url")) and "secret" not in text
    with pytest.raises(ValueError, match="is not valid TOML"):
        alerts.read(write(tmp_path, "[a"))


def test_worker_does_not_start_with_a_file_that_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = write(tmp_path, '[a]\nurl = "ftp://h/secret"\n')
    role = ["orchestrator", "--bootstrap-server", "127.0.0.1:1", "--cluster", "c"]
    for path, says in ((bad, "a.url must be a URL"), (tmp_path / "none.toml", "No such file or directory")):
        assert worker.main([*role, "--alerts", str(path)]) == 1
        error = capsys.readouterr().err
        assert "worker.py orchestrator: " in error and says in error and str(path) in error and "secret" not in error
