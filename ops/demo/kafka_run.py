"""The main job on Apache Kafka: a plan moves live partitions between disks and brokers, through two kills."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from activities.kafka_admin.admin import KafkaAdmin
from ops.cli import output
from ops.cli.moves.runs import Session
from ops.cli.plan import kafka, runs, submitting, view
from ops.cli.target import Target, resolve
from ops.demo import choice, folder
from ops.demo.commands import rehome
from ops.demo.run import Demo
from ops.stack.errors import OpsError
from ops.stack.interrupts import uninterrupted
from ops.stack.layout import ORCHESTRATOR, StackKind, broker_name
from storage_node.model.ids import TopicPartition
from workflows.model import names
from workflows.model.phases import ENDED
from workflows.model.plans import document
from workflows.model.plans.running import packing
from workflows.model.plans.running.following import MoveOutcome
from workflows.model.plans.running.plan_results import EvacuationResult, PlanOutcome, PlanProgress, PlanResult
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

STEPS = 8
NAME = "demo"
DISKS = 2
KILLED_BROKER = 2
EMPTIED_BROKER = 3
THROTTLE = 2_000_000
PATIENCE = 240.0


class KafkaDemo(Demo):
    """One run of the demo on Apache Kafka's brokers."""

    partition_bytes = choice.PARTITION_BYTES // 4

    def _steps(self) -> None:
        target = self._start()
        self._fill(target, replication_factor=2)
        self._screen.step(3, "plan: each replica goes to another disk, and half of the partitions to another broker")
        planned = self._plan(target)
        before = self._throttles(target)
        with Session(target) as session:
            self._screen.step(4, f"submit it, throttled to {output.rate(THROTTLE)} per broker")
            workflow_id = self._submit(session, target, planned)
            self._screen.step(5, "kill the orchestrator with SIGKILL while replicas move, and restart it")
            self._kill(session, workflow_id, ORCHESTRATOR)
            self._screen.step(6, f"kill {broker_name(KILLED_BROKER)} with SIGKILL while replicas move, and restart it")
            self._kill(session, workflow_id, broker_name(KILLED_BROKER))
            result = self._wait(session, workflow_id)
            self._screen.step(7, f"empty a disk of {broker_name(EMPTIED_BROKER)}, so that it can be pulled")
            emptied = self._empty(session, target)
        self._screen.step(8, "prove it")
        self._prove_plan(target, result, emptied, before)
        self._prove_records(target)
        if not self._keep:
            with uninterrupted():
                self._stack.down()
                folder.remove_bulk(self._data, folder.NODES)
        verdict = "all proofs succeeded" if not self._problems else f"{len(self._problems)} proofs FAILED"
        self._screen.line(f"{verdict}, after {output.duration(self._screen.elapsed)}")

    def _start(self) -> Target:
        self._screen.step(1, "start Temporal, three brokers of Apache Kafka with two disks each, and an orchestrator")
        if folder.clear(self._data, self._stack):
            self._screen.line("removed the processes and data of an earlier run")
        self._stack.make_folder()
        ports = folder.choose_ports(each=2)
        spec = self._stack.prepare({"kind": StackKind.APACHE_KAFKA, "nodes": folder.NODES, "dirs": DISKS, **ports})
        self._stack.up()
        self._screen.line(f"Kafka {spec.bootstrap}   Temporal {spec.temporal_address}   UI {spec.ui_url}")
        return resolve(self._data)

    def _plan(self, target: Target) -> document.PlanDocument:
        """Write the plan's file, and show what it would move."""
        with KafkaAdmin(target.bootstrap) as admin:
            views, rows = admin.log_dirs(), admin.partitions()
        paths: dict[int, list[str]] = {}
        held: dict[tuple[int, TopicPartition], str] = {}
        for each in views:
            paths.setdefault(each.node, []).append(each.path)
            held |= {(each.node, replica.partition): each.path for replica in each.replicas}
        partitions = []
        for tp, row in sorted(rows.items()):
            if tp.topic == choice.TOPIC:
                partitions.append(_moved(tp, row["replicas"], paths, held))
        file = self._data / "plan.json"
        file.write_text(json.dumps({"version": 1, "partitions": partitions}, indent=1))
        self._screen.command(str(rehome("plan", "check", file)))
        options = {"throttle_between_brokers": THROTTLE, "throttle_between_directories": THROTTLE}
        planned = document.parse(json.dumps({"version": 1, "partitions": partitions, "options": options}))
        check = submitting.checked(planned, kafka.settings_of(target, None))
        if check.problem_count:
            raise OpsError(f"the cluster cannot carry out the plan: {check.problems[0]}")
        self._screen.console.print(view.checked(check))
        return planned

    def _submit(self, session: Session, target: Target, planned: document.PlanDocument) -> str:
        self._screen.command(str(rehome("plan", "submit", self._data / "plan.json", "--name", NAME)))
        parameter = {
            "version": 1,
            "text": packing.pack(document.to_text(planned)),
            "options": planned.options.as_json(),
            "submitted_by": runs.me(),
        }
        workflow_id = session.run(lambda client: runs.submit(client, target.cluster, NAME, parameter))
        progress = session.run(lambda client: runs.checked(client, workflow_id, target.cluster))
        if progress.check is not None:
            self._screen.line(f"the plan that goes back: {progress.check.rollback_path}")
        return workflow_id

    def _progress(self, session: Session, workflow_id: str) -> PlanProgress:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = session.run(lambda client: runs.progress(client, workflow_id))
            if found is not None:
                return found
            time.sleep(0.5)
        raise OpsError(f"no worker responds for {workflow_id}; see the orchestrator's log")

    def _kill(self, session: Session, workflow_id: str, process: str) -> None:
        """Kill a process while lanes are under way, and start it again."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            progress = self._progress(session, workflow_id)
            if progress.lanes_running or progress.phase == ENDED:
                break
            time.sleep(0.2)
        under_way = ", ".join(key for lane in progress.lanes_running for key in lane.moves) or "nothing"
        self._stack.kill(process)
        self._screen.line(f"{process} was killed with SIGKILL while these were under way: {under_way}")
        began = time.monotonic()
        self._stack.start(process)
        self._screen.line(f"{process} is back after {output.duration(time.monotonic() - began)}")

    def _wait(self, session: Session, workflow_id: str) -> PlanResult:
        with self._screen.progress("moving") as shown:
            while True:
                found = self._progress(session, workflow_id)
                ended = sum(found.outcomes.values())
                waits = f"; waits: {found.reasons[0]}" if found.reasons else ""
                shown(
                    found.bytes_copied,
                    found.bytes_total,
                    f"{ended} of {found.moves} moves, {output.size(found.bytes_copied)}{waits}",
                )
                if found.phase == ENDED:
                    break
                time.sleep(0.5)
        return session.run(lambda client: runs.result(client, workflow_id))

    def _empty(self, session: Session, target: Target) -> EvacuationResult:
        with KafkaAdmin(target.bootstrap) as admin:
            path = sorted(each.path for each in admin.log_dirs([EMPTIED_BROKER]))[0]
        self._screen.line(f"emptying {path}")

        async def work(client: Any) -> Any:
            handle = await client.start_workflow(
                names.EVACUATE_DIRECTORY,
                {"version": 1, "broker": EMPTIED_BROKER, "directory": path},
                id=names.evacuation_id(target.cluster, EMPTIED_BROKER, path),
                task_queue=names.plans_queue(target.cluster),
                result_type=EvacuationResult,
            )
            return await handle.result()

        found: EvacuationResult = session.run(work)
        return found

    def _prove_plan(
        self, target: Target, result: PlanResult, emptied: EvacuationResult, before: dict[str, Any]
    ) -> None:
        moved = result.outcomes.get(MoveOutcome.MOVED, 0)
        problems = [] if result.outcome == PlanOutcome.DONE else [f"the plan ended as {result.outcome}"]
        problems += [f"{row.key}: {row.reason}" for row in result.failures]
        problems += ["the plan was not verified"] if result.verified is None else result.verified.differences
        self._print_proof(
            problems, f"{moved} moves reached their targets over both kills, {output.size(result.bytes_copied)}"
        )
        certificate = emptied.certificate
        self._print_proof(
            certificate.differences,
            f"{emptied.directory} is empty after {emptied.moved} moves: safe to pull ({certificate.path})",
        )
        left = self._throttles(target)
        self._print_proof(
            [] if left == before else [f"throttles are left behind: {left}"], "the throttles from before are back"
        )

    def _throttles(self, target: Target) -> dict[str, Any]:
        with KafkaAdmin(target.bootstrap) as admin:
            brokers = [str(node) for node in sorted(admin.cluster()[1])]
            topics = admin.overrides("topic", [choice.TOPIC], LISTS)
            return {
                "brokers": admin.overrides("broker", brokers, (*RATES, MOVE_RATE)),
                "lists": {key: value for row in topics.values() for key, value in row.items() if value},
            }


def _moved(
    tp: TopicPartition,
    replicas: Sequence[int],
    paths: dict[int, list[str]],
    held: dict[tuple[int, TopicPartition], str],
) -> dict[str, Any]:
    """Return a partition's row: odd ones go to the broker that they are not on, all to another disk."""
    wanted = list(replicas)
    if tp.partition % 2:
        wanted[-1] = next(node for node in sorted(paths) if node not in replicas)
    log_dirs = [next(path for path in sorted(paths[node]) if path != held.get((node, tp))) for node in wanted]
    return {"topic": tp.topic, "partition": tp.partition, "replicas": wanted, "log_dirs": log_dirs}
