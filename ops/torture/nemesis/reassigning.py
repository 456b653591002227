"""Operations on replicas by Kafka's admin API and Temporal: reassign, cancel, elect, throttle; each is recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

from activities.kafka_admin.errors import NO_RESPONSE
from ops.cli.kafka_admin import KafkaAdmin, code_name
from ops.cli.moves import runs
from ops.stack.errors import OpsError
from ops.torture import ask
from ops.torture.checks.facts import Place, ReassignFact, ReassignRunFact
from ops.torture.history import FAIL, INFO, OK, now
from ops.torture.nemesis.book import Book
from ops.torture.nemesis.moving import ANSWER_SECONDS, AT_ONCE, Moving
from ops.torture.roles import Roles
from ops.torture.topics import USED
from storage_node.model.ids import TopicPartition

RUN_TYPE = "PartitionReassignment"
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_REPLICAS, FOLLOWER_REPLICAS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
#: Errors that leave open whether the request was applied; any other error means that it was not.
OPEN = {"REQUEST_TIMED_OUT", "UNKNOWN_SERVER_ERROR", "NETWORK_EXCEPTION", "NOT_CONTROLLER", NO_RESPONSE}


class Admin(KafkaAdmin):
    """`KafkaAdmin` with elections (KIP-460) and topic configs."""

    def __enter__(self) -> Admin:
        super().__enter__()
        return self

    def elect(self, places: Sequence[Place], *, unclean: bool) -> str:
        """Send ElectLeaders; return the names of the error codes."""
        by_topic: dict[str, list[int]] = {}
        for topic, number in places:
            by_topic.setdefault(topic, []).append(number)
        with self._kafka_errors("elect leaders"):
            response = self._client.elect_leaders(1 if unclean else 0, by_topic, raise_errors=False)
        codes = {
            code_name(int(row.error_code)) if row.error_code else "elected"
            for topic in response.replica_election_results
            for row in topic.partition_result
        }
        return ", ".join(sorted(codes)) or code_name(int(response.error_code))

    def set_topic_config(self, topic: str, changes: Mapping[str, str]) -> None:
        """Set dynamic configs of one topic (IncrementalAlterConfigs)."""
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(changes))
        self.alter_configs([resource], f"set {', '.join(changes)} on topic {topic}")


class Reassigning:
    """Operations on replicas. Blocking, thread-safe; failures raise `OpsError`."""

    def __init__(self, roles: Roles, moving: Moving, book: Book) -> None:
        self._roles, self._moving, self._book = roles, moving, book
        self.label: Callable[[str], str] = str
        """Return the label of a topic's current life."""

    def partitions(self, *, idle: bool = False) -> list[ask.Led]:
        """Return the partitions that clients use, with `idle` all, by the first node that responds to Metadata."""
        why = OpsError("no node responded to Metadata")
        for node in self._roles.nodes:
            try:
                found = ask.metadata(*self._roles.address(node), topics=None if idle else USED)
            except OpsError as error:
                why = error
                continue
            return sorted(found, key=lambda row: (row.topic, row.partition))
        raise why

    def running(self) -> dict[Place, tuple[int, ...]]:
        """Return the reassignments in progress, each with all of its current replicas."""
        with Admin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
            return {(tp.topic, tp.partition): row.replicas for tp, row in sorted(admin.reassignments().items())}

    def ask(self, targets: Mapping[Place, tuple[int, ...] | None]) -> str:
        """Send one AlterPartitionReassignments request and record it; return the names of the errors."""
        invoked = now()
        labels = {place: (self.label(place[0]), place[1]) for place in targets}
        answers: dict[Place, str] | None = None
        try:
            answers = self._send(targets)
        finally:
            completed = now()
            self._book.reassigned(
                ReassignFact(
                    labels[place], to, _kind(answers, place), invoked, completed, (answers or {}).get(place, "")
                )
                for place, to in targets.items()
            )
        return ", ".join(sorted({error or "accepted" for error in answers.values()}))

    def _send(self, targets: Mapping[Place, tuple[int, ...] | None]) -> dict[Place, str]:
        """Send the request, again for `ANSWER_SECONDS` while connections are refused: then no node has received it."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                with Admin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
                    wanted = {TopicPartition(*place): to for place, to in targets.items()}
                    return {(tp.topic, tp.partition): error for tp, error in admin.reassign(wanted).items()}
            except OpsError as error:
                if "ECONNREFUSED" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def elect(self, places: Sequence[Place], *, unclean: bool) -> str:
        """Request a leader election."""
        with Admin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
            return admin.elect(places, unclean=unclean)

    def throttle(self, topics: Sequence[str], nodes: Sequence[int], rate: int | None) -> None:
        """Throttle all replicas of these topics on these nodes; `rate` None removes the throttle.

        Deleted topics are skipped.
        """
        listed = "" if rate is None else "*"
        there = {row.topic for row in self.partitions()}
        with Admin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
            for node in nodes:
                value = str(rate if rate is not None else 2**63 - 1)
                admin.set_node_config(node, {LEADER_RATE: value, FOLLOWER_RATE: value})
            for topic in there.intersection(topics):
                admin.set_topic_config(topic, {LEADER_REPLICAS: listed, FOLLOWER_REPLICAS: listed})

    # Runs

    def open_runs(self) -> list[str]:
        """Return the ids of the open PartitionReassignment runs, sorted."""

        async def work(client: Client) -> list[str]:
            query = f'WorkflowType="{RUN_TYPE}" AND ExecutionStatus="Running"'
            return sorted({run.id async for run in client.list_workflows(query)})

        return self._moving.temporal(work)

    def cancel_run(self, run: str, places: Sequence[Place]) -> str:
        """Cancel a run through Temporal; `places` are the partitions that it may reassign."""
        invoked = now()

        async def work(client: Client) -> None:
            await client.get_workflow_handle(run).cancel(rpc_timeout=timedelta(seconds=ANSWER_SECONDS))

        try:
            self._moving.temporal(work)
        finally:
            completed = now()
            self._book.reassigned(
                ReassignFact((self.label(topic), number), None, INFO, invoked, completed, by="temporal")
                for topic, number in places
            )
        return "requested"

    def all_runs(self) -> list[ReassignRunFact]:
        """Return every PartitionReassignment run with its outcome."""

        async def work(client: Client) -> list[ReassignRunFact]:
            found = [
                (run.id, run.run_id, run.status) async for run in client.list_workflows(f'WorkflowType="{RUN_TYPE}"')
            ]
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(workflow_id: str, run_id: str, status: WorkflowExecutionStatus | None) -> ReassignRunFact:
                async with gate:
                    return await _outcome(client, workflow_id, run_id, status)

            return list(await asyncio.gather(*(one(*each) for each in found)))

        return self._moving.temporal(work, seconds=120)


def _kind(answers: Mapping[Place, str] | None, place: Place) -> str:
    if answers is None or place not in answers or answers[place] in OPEN:
        return INFO
    return FAIL if answers[place] else OK


async def _outcome(
    client: Client, workflow_id: str, run_id: str, status: WorkflowExecutionStatus | None
) -> ReassignRunFact:
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    reason = ""
    if status is WorkflowExecutionStatus.RUNNING:
        try:
            reason = str(await asyncio.wait_for(handle.query("progress"), ANSWER_SECONDS))[:500]
        except Exception as error:  # any failure of the query is the reason that its state is unknown
            reason = f"the query failed ({str(error) or type(error).__name__})"
    elif status is WorkflowExecutionStatus.FAILED:
        try:
            await handle.result()
        except WorkflowFailureError as error:
            reason = runs.why(error)
    return ReassignRunFact(workflow_id, status.name.lower() if status else "unknown", reason)
