"""A plan's alerts, each by a run of its own, on a real Temporal server and to a real webhook."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError

from activities.plans import alerts
from activities.plans.alerts import Format, Webhook
from activities.temporal.describing import describe_run
from tests.support.programs.temporal import TemporalServer
from tests.support.webhook import Receiver, receiving
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until_true
from tests.workflows.plans.scene import Scene, run
from workflows import options
from workflows.model import names

pytestmark = pytest.mark.temporal

ALERTED = {"alerts": "oncall"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def webhook() -> Iterator[Receiver]:
    with receiving() as it:
        yield it


def webhooks(receiver: Receiver) -> dict[str, Webhook]:
    return {"oncall": Webhook(receiver.url, Format.JSON)}


def events(receiver: Receiver) -> list[str]:
    return [each["event"] for each in receiver.received]


async def received(receiver: Receiver, *expected: str) -> None:
    async def there() -> bool:
        return events(receiver) == list(expected)

    await until_true(there)


def test_plan_at_risk_of_its_deadline_alerts_that_once_and_its_end(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, webhook: Receiver
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit(ALERTED | {"deadline": "2026-01-01T00:00:00+00:00"})
        await received(webhook, "at_risk")
        for slots in (2, 3):
            await plan.execute_update("set_options", {"slots_per_disk": slots})
        it.kafka.held = False
        assert (await plan.result())["outcome"] == "done"
        await received(webhook, "at_risk", "done")
        risk, done = webhook.received
        assert "the deadline 2026-01-01 00:00 UTC has passed" in risk["reason"] and risk["plan"] == plan.id
        await recorded("plan-alerted", it.client, plan.id)
        alert = it.client.get_workflow_handle(done["id"])
        assert (await alert.result())["event"] == "done"
        await recorded("plan-alert", it.client, alert.id)
        history = str((await plan.fetch_history()).to_json_dict()) + str((await alert.fetch_history()).to_json_dict())
        assert "secret-path" not in history

    run(temporal_server, task_queue, scene, webhooks(webhook))


def test_stalled_plan_alerts_once_while_it_stays_so(
    temporal_server: TemporalServer, task_queue: str, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "PLAN_READ_AGAIN", timedelta(seconds=0.2))
    monkeypatch.setattr(options, "PLAN_STALLED_AFTER", timedelta(seconds=0.5))

    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit(ALERTED)
        await received(webhook, "stalled")
        await asyncio.sleep(0.6)
        it.kafka.held = False
        assert (await plan.result())["outcome"] == "done"
        await received(webhook, "stalled", "done")
        assert "no byte was copied and no move ended" in webhook.received[0]["reason"]

    run(temporal_server, task_queue, scene, webhooks(webhook))


@pytest.mark.parametrize("kind", ["refuses", "hangs", "is broken"])
def test_plan_ends_though_its_webhook_does_not_work_and_the_alert_is_repeated(
    temporal_server: TemporalServer, task_queue: str, webhook: Receiver, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "SOCKET_TIMEOUT", 1.0)
    known = webhooks(webhook)
    if kind == "refuses":
        known = {"oncall": Webhook("http://127.0.0.1:1/secret-path", Format.JSON)}
    webhook.statuses = [None if kind == "hangs" else 500]

    async def scene(it: Scene) -> None:
        plan = await it.submit(ALERTED)
        assert (await plan.result())["outcome"] == "done"
        if kind == "refuses":
            alert = await describe_run(it.client, await alert_of(it, plan.id))
            assert alert is not None and alert.ended is None, "it is tried again, after the plan has ended"
            return
        await received(webhook, "done", "done")
        assert len({each["id"] for each in webhook.received}) == 1, "one alert, by which a receiver knows it"

    run(temporal_server, task_queue, scene, known)


async def alert_of(it: Scene, plan: str) -> str:
    """The workflow id of a plan's only alert."""
    history = await it.client.get_workflow_handle(plan).fetch_history()
    children = [event.start_child_workflow_execution_initiated_event_attributes for event in history.events]
    (found,) = [each.workflow_id for each in children if each.workflow_type.name == names.PLAN_ALERT]
    return found


def test_rejected_alert_fails_its_own_run_alone(
    temporal_server: TemporalServer, task_queue: str, webhook: Receiver
) -> None:
    webhook.statuses = [404]

    async def scene(it: Scene) -> None:
        plan = await it.submit(ALERTED)
        assert (await plan.result())["outcome"] == "done"
        alert = it.client.get_workflow_handle(await alert_of(it, plan.id))
        with pytest.raises(WorkflowFailureError) as caught:
            await alert.result()
        assert "HTTP status 404" in str(caught.value.cause)

    run(temporal_server, task_queue, scene, webhooks(webhook))


def test_webhook_that_the_worker_does_not_know_refuses_the_plan(
    temporal_server: TemporalServer, task_queue: str, webhook: Receiver
) -> None:
    async def scene(it: Scene) -> None:
        plan = await it.submit({"alerts": "typo"})
        with pytest.raises(WorkflowFailureError) as caught:
            await plan.result()
        assert "the worker knows no webhook 'typo', it knows oncall" in str(caught.value.cause)

    run(temporal_server, task_queue, scene, webhooks(webhook))


def test_refused_plan_alerts_that_it_failed(
    temporal_server: TemporalServer, task_queue: str, webhook: Receiver
) -> None:
    async def scene(it: Scene) -> None:
        plan = await it.submit(ALERTED, partitions=[{"topic": "t", "partition": 0, "replicas": [9]}])
        with pytest.raises(WorkflowFailureError):
            await plan.result()
        await received(webhook, "failed")
        assert "9" in webhook.received[0]["reason"]

    run(temporal_server, task_queue, scene, webhooks(webhook))
