"""Cluster: the controller. One run per cluster owns the metadata, applies every change of it, and pushes it to the
nodes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from storage_node.model.fields import BadField
from workflows import errors, handlers, options
from workflows.model import calls, messages, names, results
from workflows.model.absence import Probes
from workflows.model.calls import ImageCall, ImageResult, LeaseCall, ProbeCall
from workflows.model.controller import beginning, controller, outbound
from workflows.model.controller.carried_runs import CarriedRuns
from workflows.model.controller.controller import Controller
from workflows.model.controller.outbound import Outbound
from workflows.model.controller.renewal import Renewal
from workflows.model.controller.run_requests import ControllerRequest, carry_out, nodes_of, under_way
from workflows.model.metadata import throttle_leases
from workflows.model.metadata.outcome import Reassigned
from workflows.model.reassignment.request import groups, made_by_controller, run_id_of, summary
from workflows.model.reassignment.watchers import Run
from workflows.model.run_progress import ClusterDescription
from workflows.step_specs import start

T = TypeVar("T")

#: The maximum number of nodes of which the controller remembers the last lease that has reported its end.
REMEMBERED_LEASES = 1_000

#: The payload of a signal `answered` that no run waits for.
NO_RESPONSE = {"request": 0}


def _new_id() -> str:
    """Return a new topic id: 22 characters of base64url. It does not begin with a dash, which command lines would take
    for an option.
    """
    while True:
        text = base64.urlsafe_b64encode(workflow.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


@workflow.defn(name=names.CLUSTER)
class Cluster:
    """The only writer of metadata.

    Handlers only change the state; `run` carries out what follows from it: images for the nodes (at most one push per
    node in flight, later changes go into the next), leases, probes and fencing. The parameter is None or {} for a
    controller without state, which first collects the nodes' images; a continue-as-new passes what `Controller.carry`
    and `CarriedRuns.carry` pack.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        try:
            self._set_up(beginning.parameter(given))
        except beginning.UNREADABLE as problem:
            self._problem = beginning.problem(problem, continued=workflow.info().continued_run_id is not None)
            self._set_up(None)

    def _set_up(self, parameter: Any) -> None:
        # The id, not the queue: a replay runs on a queue of another name.
        self._controller = Controller.start(workflow.info().workflow_id, parameter, options.CONTINUE_AT)
        self._awake, self._draining = True, False
        self._pushing: set[int] = set()
        self._in_flight = 0
        self._probing: set[int] = set()
        self._failures: dict[int, int] = {}
        self._leases: dict[int, tuple[str, object]] = {}
        carried = CarriedRuns.start(parameter)
        self._watchers, self._responses, self._outbox = carried.watchers, carried.responses, carried.outbox
        self._lapsed = {**self._controller.suspects, **carried.lapsed}
        self._waiting_quietly = False
        self._requesting_images = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting: dict[asyncio.Task[None], None] = {}
        """Sleeps that may be interrupted at any time, in the order in which they began."""
        self._fault: BaseException | None = None
        self._leases_of = 0  # the generation whose throttle leases were checked
        self._probes = Probes(parameter.get("probes", ()) if isinstance(parameter, Mapping) else ())

    @workflow.run
    async def run(self, *given: Any) -> None:
        """Serve until terminated; fails with InvalidPlan if the parameter is invalid."""
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        began = workflow.info().get_current_history_size()
        while True:
            self._awake = False
            if self._fault is not None:
                raise self._fault
            due = self._renewal(began)
            if self._may_end(due) and len(self._outbox) <= options.CARRIED_OUTBOUND:
                await self._end(due)
            self._dispatch()
            if due is Renewal.NOT_YET or self._controller.suspects:
                await workflow.wait_condition(lambda: self._awake)
                continue
            try:
                await workflow.wait_condition(lambda: self._awake, timeout=options.QUIET_FOR)
            except TimeoutError:
                self._draining = True
                if self._resting:
                    await self._stop_resting()
                # True only once everything else that came with the timer was handled.
                await workflow.wait_condition(workflow.all_handlers_finished)
                self._draining = False
                if not self._awake and not self._in_flight and not len(self._outbox) and self._fault is None:
                    self._continue()

    def _renewal(self, began: int) -> Renewal:
        """Return whether the run should continue as new; `began` is the size of its history at its start, in bytes."""
        info = workflow.info()
        grown = info.get_current_history_size() - began
        return self._controller.renewal(info.get_current_history_length(), grown)

    def _may_end(self, due: Renewal) -> bool:
        """Return whether the run may continue as new at once: not while a node waits for its probe, since its
        partitions have no leader until it is fenced.
        """
        return due is Renewal.OVERDUE or (due is Renewal.NOW and not self._controller.suspects)

    async def _end(self, due: Renewal) -> None:
        """Continue as new; returns, and the run serves on, if something urgent comes in between."""
        alive = self._controller.alive

        def urgent() -> bool:
            changed = due is not Renewal.OVERDUE and self._controller.alive != alive
            return changed or self._fault is not None or not self._may_end(due)

        self._push_due()  # The nodes learn of new leaders before anything is awaited.
        self._draining = True
        await self._drain(urgent)
        if not urgent():
            self._continue()
        self._draining, self._awake = False, True

    async def _drain(self, urgent: Callable[[], bool]) -> None:
        """Wait until nothing is in flight that would be lost, or would disturb the continue-as-new; or until something
        is urgent.

        The server drops child starts, signals and cancels that it has not carried out when their run closes: the run
        sends no more of them, it carries them; it waits for those in flight, and carries them if that takes too long.

        The server rejects a continue-as-new if an event has just arrived for the run: updates that were completed in
        the same task fail at their callers (which send them again), and the worker replays the whole run before it
        serves again. So the run continues on a timer, not on an update, and cancels its other timers before.
        """
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: urgent() or not (self._in_flight or self._outbox.in_flight),
                timeout=options.PUSH_PICK_UP_TIMEOUT,
            )
        if self._outbox.in_flight and not urgent():
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: urgent() or not self._outbox.in_flight, timeout=options.OUTBOUND_TIMEOUT
                )
        if urgent():
            return
        await self._stop_resting()
        # True only once everything else that came with this task was handled.
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _rest(self, pause: float | timedelta) -> None:
        """Sleep; `_stop_resting` interrupts it with CancelledError. Raises that at once while the run drains."""
        if self._draining:
            raise asyncio.CancelledError
        asleep = asyncio.create_task(workflow.sleep(pause))
        self._resting[asleep] = None
        try:
            await asleep
        finally:
            del self._resting[asleep]

    async def _stop_resting(self) -> None:
        """Cancel the tasks that sleep, and so their timers, one workflow task before the run continues as new."""
        for task in tuple(self._resting):
            task.cancel()
        await workflow.sleep(options.CONTINUE_PAUSE)

    def _continue(self) -> None:
        """Continue as new. No await may come between packing the state and the end of the run."""
        held = CarriedRuns(self._watchers, self._responses, self._outbox, self._lapsed)
        probes = {"probes": rows} if (rows := self._probes.rows(self._controller.state)) else {}
        workflow.continue_as_new(held.within(self._controller, probes))

    # --- what follows from the state

    def _dispatch(self) -> None:
        """Start everything that is due and not in flight yet."""
        for number, one in self._outbox.take():
            self._spawn(self._send(number, one))
        self._push_due()
        if self._controller.quietly_changed and not self._waiting_quietly:
            self._waiting_quietly = True
            self._spawn(self._push_quiet_changes())
        for node, incarnation in self._controller.to_lease():
            if self._leases.get(node, ("", None))[0] != incarnation:
                self._leases[node] = (incarnation, object())
                self._spawn(self._lease(node, incarnation))
        for node, incarnation in sorted(self._controller.suspects.items()):
            if node not in self._probing:
                self._probing.add(node)
                self._spawn(self._probe(node, incarnation))
        if self._controller.pair[0] != self._leases_of:
            self._leases_of = self._controller.pair[0]
            self._spawn(self._release_orphaned())
        if self._controller.to_collect() and not self._requesting_images:
            self._requesting_images = True
            self._spawn(self._request_images())

    def _push_due(self) -> None:
        together = 0
        for node in self._controller.to_push():
            if node not in self._pushing:
                self._pushing.add(node)
                self._spawn(self._push(node, together // options.PUSH_TOGETHER))
                together += self._controller.lacks(node)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Keep a task's exception, a defect of the program: `run` raises it, so that the workflow task fails."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fault, self._awake = task.exception(), True

    async def _push(self, node: int, turn: int) -> None:
        """Push the images that a node lacks, after `turn` pauses; after a failed push, wait before the next one."""
        try:
            if turn:
                await self._rest(turn * options.PUSH_APART)
            # A replay sends nothing, and packing the images again would be its largest cost.
            images = [] if workflow.unsafe.is_replaying() else self._controller.images_for(node)
            due = self._controller.pair
            result = await self._apply_image(node, images)
            applied = result is not None and self._controller.pushed(node, result, due)
            self._failures[node] = 0 if applied else self._failures.get(node, 0) + 1
            if not applied:
                delay = min(0.25 * 2 ** min(self._failures[node], 10), options.PUSH_BACK_OFF_MAX)
                await self._rest(delay)
            self._awake = True
        finally:
            self._pushing.discard(node)

    async def _request_registration(self, node: int) -> None:
        await self._apply_image(node, [], register=True)

    async def _apply_image(self, node: int, images: list[str], *, register: bool = False) -> ImageResult | None:
        self._in_flight += 1
        try:
            call = ImageCall(node, images, register, *self._controller.stamp)
            found = await start(calls.APPLY_IMAGE, call, cluster=self._controller.cluster, node=node)
        except ActivityError:
            return None
        finally:
            self._in_flight -= 1
            self._awake = True
        return self._readable(calls.APPLY_IMAGE, node, lambda: results.applied(found))

    @staticmethod
    def _readable(activity: str, node: int, read: Callable[[], T]) -> T | None:
        """Return an activity's result; None, with a warning, if it is unreadable: the attempt counts as failed."""
        try:
            return read()
        except BadField as problem:
            workflow.logger.warning("%s", results.unreadable(activity, node, problem))
            return None

    async def _push_quiet_changes(self) -> None:
        try:
            await self._rest(options.QUIET_DELAY)
        finally:
            self._waiting_quietly = False
        self._controller.make_urgent()
        self._awake = True

    async def _request_images(self) -> None:
        """Request that the nodes whose images are awaited register again (while collecting)."""
        for node in self._controller.to_collect():
            self._spawn(self._request_registration(node))
        try:
            await self._rest(options.COLLECT_AGAIN_AFTER)
        finally:
            self._requesting_images = False
        self._awake = True

    async def _lease(self, node: int, incarnation: str) -> None:
        """Hold a lease on a node's incarnation; the node becomes suspect when the lease ends, or signals its end.

        The run of a lease that has signalled its end may still be open: its last step is delayed, as after a Temporal
        outage. It sends no other signal, so the new lease replaces it.
        """
        mine, lapsed = self._leases[node][1], self._lapsed.get(node) == incarnation
        policy = WorkflowIDReusePolicy.TERMINATE_IF_RUNNING if lapsed else WorkflowIDReusePolicy.ALLOW_DUPLICATE
        self._in_flight += 1
        try:
            child = await workflow.start_child_workflow(
                names.NODE_LEASE,
                LeaseCall(self._controller.cluster, node, incarnation),
                id=names.lease_id(self._controller.cluster, node, incarnation),
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=policy,
            )
        except WorkflowAlreadyStartedError:
            # It was started before a continue-as-new, or by a lost controller: its signal comes to this run. One that
            # was terminated sends none: its node notices, and registers again.
            if self._leases.get(node, ("", None))[1] is mine:
                self._leases[node] = (incarnation, None)
            return
        finally:
            self._in_flight -= 1
        if lapsed and self._lapsed.get(node) == incarnation:
            del self._lapsed[node]
        # An operator may terminate the lease: the controller probes the node then as well.
        with contextlib.suppress(ChildWorkflowError):
            await child
        if self._leases.get(node, ("", None))[1] is mine:
            self._suspect(node, incarnation)

    def _suspect(self, node: int, incarnation: str) -> None:
        if self._leases.get(node, ("", None))[0] == incarnation:
            del self._leases[node]
        self._controller.suspect(node, incarnation)
        self._awake = True

    async def _probe(self, node: int, incarnation: str) -> None:
        """Request the incarnation of a node that lost its lease; fence the node unless the registered one responds."""
        try:
            registered = self._controller.registered(node)
            if registered is not None and registered.incarnation == incarnation:
                call = ProbeCall(node, registered.host, registered.port, options.PROBE_SECONDS)
                found = await start(calls.PROBE_NODE, call)
                result = self._readable(calls.PROBE_NODE, node, lambda: results.probed(found))
                if result is None:  # An unreadable result proves nothing about the node.
                    await self._rest(options.LEASE_AGAIN_AFTER)
                    return
                self._probes.note(node, incarnation, result)
                if result.incarnation == incarnation:
                    await self._rest(options.LEASE_AGAIN_AFTER)
                else:
                    self._controller.fence(node, incarnation)
            self._controller.clear_suspect(node, incarnation)
        except ActivityError:
            # No worker could send the probe, which proves nothing about the node.
            await self._rest(options.LEASE_AGAIN_AFTER)
        finally:
            self._probing.discard(node)
            self._awake = True

    def _reply(self, run: Run, signal: str, response: dict[str, Any]) -> None:
        self._outbox.add(Outbound(outbound.SIGNAL, *run, signal, response))
        self._awake = True

    async def _send(self, number: int, one: Outbound) -> None:
        """Send a command to another run; return once the server has acknowledged it, or the run has ended."""
        try:
            if one.kind == outbound.START:
                await self._start_run(one)
            elif one.kind == outbound.CANCEL:
                await workflow.get_external_workflow_handle(one.workflow_id, run_id=one.run_id or None).cancel()
            else:
                run = workflow.get_external_workflow_handle(one.workflow_id, run_id=one.run_id or None)
                await run.signal(one.name, one.payload)
        except ApplicationError:
            workflow.logger.info("Did not send %s: the run %s has ended", one.name or one.kind, one.workflow_id)
        finally:
            self._outbox.sent(number)
            self._awake = True

    async def _release_orphaned(self, but: str = "") -> None:
        """Release the throttle leases of runs that no longer exist (terminated, or lost with the server's database): at
        the start of this run, after the metadata was rebuilt, and when another lease begins (`but`: its holder).
        """
        for holder in throttle_leases.holders(self._controller.state) if self._controller.state is not None else ():
            if holder == but:
                continue
            if await self._has_ended(throttle_leases.run_of(holder)):
                workflow.logger.info("The run %s no longer exists: its throttles are released", holder)
                self._controller.carry_out_row({"do": "release_throttles", "holder": holder})
                self._awake = True

    @staticmethod
    async def _has_ended(holder: Run | None) -> bool:
        if holder is None:
            return True
        try:
            run = workflow.get_external_workflow_handle(holder[0], run_id=holder[1])
            await run.signal("answered", NO_RESPONSE)
        except ApplicationError:
            return True
        return False

    # --- runs of reassignments

    def _start_runs(self) -> None:
        """Start runs for the reassignments that nodes have requested, and signal open runs what has changed."""
        self._notify_watchers()
        changes = [change for change in self._controller.take_reassigned() if not self._watchers.has(change)]
        # Those that complete at once have a run as well, for deletions and the history.
        for group in groups(self._controller.take_completed()):
            self._begin(group)
        for group in groups(changes):
            self._watchers.watch(group, (self._begin(group), ""))

    def _notify_watchers(self, but: Run | None = None) -> None:
        pair = {"generation": self._controller.pair[0], "version": self._controller.pair[1]}
        for run, rows in self._watchers.changed(self._controller.state).items():
            if run != but:
                self._reply(run, "retargeted", {"rows": rows, **pair})

    def _begin(self, group: Sequence[Reassigned]) -> str:
        """Add the start of a group's run to the outbox, and return its workflow id."""
        made = made_by_controller(group, self._controller.pair)
        run = run_id_of(self._controller.cluster, made)
        self._outbox.add(Outbound(outbound.START, run, "", summary(group), made))
        return run

    async def _start_run(self, one: Outbound) -> None:
        """Start a run of reassignments, once: the server rejects a start that is repeated after a continue-as-new,
        whether the first run is open or closed. The controller then sends it a signal: a run that the server created
        just when the controller's run closed may never have got a workflow task, and does not begin before one.
        """
        try:
            await workflow.start_child_workflow(
                names.PARTITION_REASSIGNMENT,
                one.payload,
                id=one.workflow_id,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=one.name,
                priority=options.RUN_PRIORITY,
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("The controller's previous run has already started the run %s", one.workflow_id)
            self._reply((one.workflow_id, ""), "answered", NO_RESPONSE)

    # --- handlers

    def _idle(self) -> bool:
        """Return whether `run` has carried out all that follows from the state, or waits for handlers itself."""
        return not self._awake or self._draining or self._problem is not None or self._fault is not None

    @handlers.update(description="A node's batch of commands; see workflows/model/metadata/commands.py", idle=_idle)
    async def submit(self, *given: Any) -> dict[str, Any]:
        """Apply {"node", "incarnation", "generation", "version", "commands"}; return `Controller.submit`'s reply."""
        (batch,) = given
        reply = self._controller.submit(batch, _new_id, replaying=workflow.unsafe.is_replaying())
        self._start_runs()
        self._lease_again(batch)
        self._awake = True
        return reply

    def _lease_again(self, batch: Mapping[str, Any]) -> None:
        """Start the lease of a node that registers again once more, if it may have ended without notice to this run."""
        node, incarnation = int(batch["node"]), str(batch["incarnation"])
        registers = any(controller.does(row, "register") for row in batch["commands"])
        if registers and self._leases.get(node) == (incarnation, None):
            del self._leases[node]

    @submit.validator
    def _may_submit(self, *given: Any) -> None:
        self._checked(lambda: controller.check_batch(handlers.only(given)))

    @handlers.update(description="Recover without the image of a permanently lost node: {node}", idle=_idle)
    async def recover_without(self, *given: Any) -> ClusterDescription:
        """Stop awaiting a node's image; with the last awaited one the controller serves."""
        (request,) = given
        self._controller.give_up(int(request["node"]))
        self._awake = True
        return self._controller.describe()

    @recover_without.validator
    def _may_recover_without(self, *given: Any) -> None:
        self._checked(lambda: self._controller.check_give_up(handlers.only(given)))

    @handlers.signal(messages.lease_ended, description="A NodeLease reports its end: {node, incarnation, reason}")
    def lease_ended(self, lease: dict[str, Any]) -> None:
        """Probe the node before it is fenced."""
        node, incarnation = int(lease["node"]), str(lease["incarnation"])
        if self._controller.may_lease(node, incarnation):
            self._lapsed.pop(node, None)
            self._lapsed = dict([*self._lapsed.items(), (node, incarnation)][-REMEMBERED_LEASES:])
        self._suspect(node, incarnation)

    @handlers.signal(messages.locate, description="A run requests the state of a node: {node, workflow_id, run_id}")
    def locate(self, request: dict[str, Any]) -> None:
        """Respond with the signal `located`."""
        node, run = request["node"], (request["workflow_id"], request["run_id"])
        response = {
            "node": node,
            "known": self._controller.may_know(node),
            **self._probes.state_of(node, self._controller.state),
        }
        self._reply(run, "located", response)

    @handlers.signal(
        messages.cancel_run,
        description="A run whose replicas were all dropped requests its cancel: {workflow_id, run_id}",
    )
    def cancel_run(self, run: dict[str, Any]) -> None:
        """Request the run's cancel: a run cannot request its own."""
        self._outbox.add(Outbound(outbound.CANCEL, run["workflow_id"], run["run_id"]))
        self._awake = True

    @handlers.signal(
        messages.directory_failed,
        description="A DirectoryFailure run reports a failed directory: {notice, workflow_id, run_id}",
    )
    def directory_failed(self, report: dict[str, Any]) -> None:
        """Record the failure and respond with the signal `recorded`; a repeated report changes nothing."""
        response = self._controller.directory_failed(report.get("notice"))
        self._reply((report["workflow_id"], report["run_id"]), "recorded", response)

    @handlers.signal(
        messages.reassign,
        description="A run requests reassignments or their state: {request, changes, looks, workflow_id, run_id}",
    )
    def reassign(self, request: ControllerRequest) -> None:
        """Apply the request and respond with the signal `answered`; a repeated one only gets the response again."""
        if self._responses.applied(request):
            response = self._responses.repeat(request, self._controller.state)
        else:
            response = carry_out(request, self._controller)
            if request.hold:
                self._spawn(self._release_orphaned(request.holder))
            self._notify_watchers(request.run)
            self._watchers.watch(under_way(response, self._controller.state), request.run)
            self._responses.remember(request, response)
        if response is not None:
            absent = self._probes.absent(nodes_of(response), self._controller.state)
            self._reply(request.run, "answered", {**response, **({"absent": absent} if absent else {})})
        self._awake = True

    @workflow.query(description="All metadata as rows, or {} while collecting")
    def state(self) -> dict[str, Any]:
        """Return the rows of workflows/model/metadata/state.py."""
        return self._controller.state.rows() if self._controller.state else {}

    @workflow.query(description="Nodes, counts, versions, and the nodes awaited while collecting")
    def describe(self) -> ClusterDescription:
        """Return a summary, see `Controller.describe`."""
        return self._controller.describe()

    def _checked(self, check: Callable[[], object]) -> None:
        try:
            check()
        except BadField as bad:
            raise errors.invalid_plan(bad) from bad
