"""Cluster: the controller. One run per cluster owns the metadata; every change of it is made here, and told to the
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

from workflows import errors, handlers, options
from workflows.model import beginning, calls, controller, messages, names, outbound, results, throttles
from workflows.model.absence import Probes
from workflows.model.calls import ImageCall, ImageResult, LeaseCall, ProbeCall
from workflows.model.carried_runs import CarriedRuns
from workflows.model.controller import Controller
from workflows.model.fields import BadField
from workflows.model.outbound import Outbound
from workflows.model.outcome import Reassigned
from workflows.model.reassignment_request import groups, made_by_controller, run_id_of, summary
from workflows.model.renewal import Renewal
from workflows.model.run_requests import Asked, carry_out, nodes_of, under_way
from workflows.model.watchers import Run

T = TypeVar("T")

#: Of so many nodes the controller remembers the last lease that has reported its end.
REMEMBERED_LEASES = 1_000

#: A signal `answered` that no run waits for.
NO_ANSWER = {"request": 0}

#: Reassignments that are done at once have a run as well, for the deletions and for the history.
SETTLED = "runs-of-what-is-done-at-once"


def _new_id() -> str:
    """A topic's id: 22 characters of base64url that do not begin with a dash, which would look like an option on a
    command line.
    """
    while True:
        text = base64.urlsafe_b64encode(workflow.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


@workflow.defn(name=names.CLUSTER)
class Cluster:
    """The only writer of metadata.

    Handlers only change the state; `run` carries out what follows from it: images for the nodes (one push per node
    under way, what changes meanwhile goes into the next), leases, probes and fencing. The parameter is None or {} for a
    cluster without memory, which first collects what its nodes know; a continue-as-new passes what `Controller.carry`
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
        self._it = Controller.start(workflow.info().workflow_id, parameter, options.CONTINUE_AT)
        self._awake, self._draining = True, False
        self._pushing: set[int] = set()
        self._in_flight = 0
        self._probing: set[int] = set()
        self._failures: dict[int, int] = {}
        self._leases: dict[int, tuple[str, object]] = {}
        carried = CarriedRuns.start(parameter)
        self._watchers, self._answers, self._outbox = carried.watchers, carried.answers, carried.outbox
        self._lapsed = {**self._it.suspects, **carried.lapsed}
        self._waiting_quietly = False
        self._asking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting: dict[asyncio.Task[None], None] = {}
        """Sleeps that nothing depends on, in the order in which they began."""
        self._fault: BaseException | None = None
        self._leases_of = 0  # the generation whose throttle leases were checked
        self._probes = Probes(parameter.get("probes", ()) if isinstance(parameter, Mapping) else ())

    @workflow.run
    async def run(self, *given: Any) -> None:
        """Serve until terminated; fails with InvalidPlan when the parameter cannot be used."""
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
            if due is Renewal.NOT_YET or self._it.suspects:
                await workflow.wait_condition(lambda: self._awake)
                continue
            try:
                await workflow.wait_condition(lambda: self._awake, timeout=options.QUIET_FOR)
            except TimeoutError:
                self._draining = True
                if self._resting:
                    await self._stop_resting()
                await workflow.wait_condition(workflow.all_handlers_finished)  # and all else that came with the timer
                self._draining = False
                if not self._awake and not self._in_flight and not len(self._outbox) and self._fault is None:
                    self._continue()

    def _renewal(self, began: int) -> Renewal:
        """Whether the run, which began with so many bytes, is to continue as new."""
        info = workflow.info()
        grown = info.get_current_history_size() - began
        return self._it.renewal(info.get_current_history_length(), grown)

    def _may_end(self, due: Renewal) -> bool:
        """Whether the run may continue as new at once: not while a node is to be probed, whose partitions are without a
        leader until it is fenced.
        """
        return due is Renewal.OVERDUE or (due is Renewal.NOW and not self._it.suspects)

    async def _end(self, due: Renewal) -> None:
        """Continue as new; returns, to go on serving, where something urgent comes in between."""
        alive = self._it.alive

        def urgent() -> bool:
            changed = due is not Renewal.OVERDUE and self._it.alive != alive
            return changed or self._fault is not None or not self._may_end(due)

        self._push_due()  # of new leaders the nodes learn before anything is awaited
        self._draining = True
        await self._drain(urgent)
        if not urgent():
            self._continue()
        self._draining, self._awake = False, True

    async def _drain(self, urgent: Callable[[], bool]) -> None:
        """Wait until nothing is under way that would end at the wrong moment, or would be lost; or until something is
        urgent.

        The server drops child starts, signals and cancels that it has not carried out when their run closes: the run
        sends no more of them, it carries them; it waits for those in flight, and carries them if that takes too long.

        The server refuses to continue a run for which something has just come in, what was answered together with that
        fails in the caller (who asks again), and the worker replays the whole run before it serves again: so this
        happens on a timer, not on an update, and no other timer of the run is left that might fire meanwhile.
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
        # True only once all else that came with this task was handled.
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _rest(self, pause: float | timedelta) -> None:
        """Sleep, which `_stop_resting` ends with CancelledError; while the run draws to its end nobody begins to."""
        if self._draining:
            raise asyncio.CancelledError
        asleep = asyncio.create_task(workflow.sleep(pause))
        self._resting[asleep] = None
        try:
            await asleep
        finally:
            del self._resting[asleep]

    async def _stop_resting(self) -> None:
        """End the tasks that rest, which cancels their timers, in a workflow task before the one that continues."""
        for task in tuple(self._resting):
            task.cancel()
        await workflow.sleep(options.CONTINUE_PAUSE)

    def _continue(self) -> None:
        """Continue as new. No await may come between packing the state and the end of the run."""
        held = CarriedRuns(self._watchers, self._answers, self._outbox, self._lapsed)
        probes = {"probes": rows} if (rows := self._probes.rows(self._it.state)) else {}
        workflow.continue_as_new(held.within(self._it, probes))

    # --- what follows from the state

    def _dispatch(self) -> None:
        """Start whatever is due and not under way yet."""
        for number, one in self._outbox.take():
            self._spawn(self._send(number, one))
        self._push_due()
        if self._it.quietly_changed and not self._waiting_quietly:
            self._waiting_quietly = True
            self._spawn(self._push_quiet_changes())
        for node, incarnation in self._it.to_lease():
            if self._leases.get(node, ("", None))[0] != incarnation:
                self._leases[node] = (incarnation, object())
                self._spawn(self._lease(node, incarnation))
        for node, incarnation in sorted(self._it.suspects.items()):
            if node not in self._probing:
                self._probing.add(node)
                self._spawn(self._probe(node, incarnation))
        if self._it.pair[0] != self._leases_of:
            self._leases_of = self._it.pair[0]
            self._spawn(self._release_left())
        if self._it.to_ask() and not self._asking:
            self._asking = True
            self._spawn(self._ask_again())

    def _push_due(self) -> None:
        together = 0
        for node in self._it.to_push():
            if node not in self._pushing:
                self._pushing.add(node)
                self._spawn(self._push(node, together // options.PUSH_TOGETHER))
                together += self._it.lacks(node)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A fault of the program in a task must show as a failing workflow task, not vanish."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fault, self._awake = task.exception(), True

    async def _push(self, node: int, turn: int) -> None:
        """Send a node what it lacks, when its turn comes; after a failed push, wait before the next one."""
        try:
            if turn:
                await self._rest(turn * options.PUSH_APART)
            # A replay sends nothing: packing images again would cost it more than all the rest.
            images = [] if workflow.unsafe.is_replaying() else self._it.images_for(node)
            due = self._it.pair
            result = await self._apply_image(node, images)
            applied = result is not None and self._it.pushed(node, result, due)
            self._failures[node] = 0 if applied else self._failures.get(node, 0) + 1
            if not applied:
                delay = min(0.25 * 2 ** min(self._failures[node], 10), options.PUSH_BACK_OFF_MAX)
                await self._rest(delay)
            self._awake = True
        finally:
            self._pushing.discard(node)

    async def _ask(self, node: int) -> None:
        await self._apply_image(node, [], register=True)

    async def _apply_image(self, node: int, images: list[str], *, register: bool = False) -> ImageResult | None:
        self._in_flight += 1
        try:
            found = await workflow.execute_activity(
                calls.APPLY_IMAGE,
                ImageCall(node, images, register, *self._it.stamp),
                task_queue=names.node_queue(self._it.cluster, node),
                schedule_to_start_timeout=options.PUSH_PICK_UP_TIMEOUT,
                start_to_close_timeout=options.PUSH_TIMEOUT,
                retry_policy=options.PUSH_RETRY,
            )
        except ActivityError:
            return None
        finally:
            self._in_flight -= 1
            self._awake = True
        return self._readable(calls.APPLY_IMAGE, node, lambda: results.applied(found))

    @staticmethod
    def _readable(activity: str, node: int, read: Callable[[], T]) -> T | None:
        """What an activity has returned; None, with a warning, where that cannot be read: its attempt failed."""
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
        self._it.make_urgent()
        self._awake = True

    async def _ask_again(self) -> None:
        """While collecting: ask the nodes whose images are awaited to register again."""
        for node in self._it.to_ask():
            self._spawn(self._ask(node))
        try:
            await self._rest(options.COLLECT_AGAIN_AFTER)
        finally:
            self._asking = False
        self._awake = True

    async def _lease(self, node: int, incarnation: str) -> None:
        """Hold a lease on a node's incarnation; its end makes the node suspect, as its signal does.

        The run of a lease that has told its end may still be open: its last step is held up, as after a standstill of
        the server. It tells nothing any more, so that the new lease takes its place.
        """
        mine, lapsed = self._leases[node][1], self._lapsed.get(node) == incarnation
        policy = WorkflowIDReusePolicy.TERMINATE_IF_RUNNING if lapsed else WorkflowIDReusePolicy.ALLOW_DUPLICATE
        self._in_flight += 1
        try:
            child = await workflow.start_child_workflow(
                names.NODE_LEASE,
                LeaseCall(self._it.cluster, node, incarnation),
                id=names.lease_id(self._it.cluster, node, incarnation),
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=policy,
            )
        except WorkflowAlreadyStartedError:
            return  # from before a continue-as-new, or of a controller that was lost: its signal comes here
        finally:
            self._in_flight -= 1
        if lapsed and self._lapsed.get(node) == incarnation:
            del self._lapsed[node]  # followed by this one
        with contextlib.suppress(ChildWorkflowError):  # terminated by hand: the controller probes the node
            await child
        if self._leases.get(node, ("", None))[1] is mine:
            self._suspect(node, incarnation)

    def _suspect(self, node: int, incarnation: str) -> None:
        if self._leases.get(node, ("", None))[0] == incarnation:
            del self._leases[node]
        self._it.suspect(node, incarnation)
        self._awake = True

    async def _probe(self, node: int, incarnation: str) -> None:
        """Ask a node that lost its lease who it is; fence it unless the registered incarnation answers."""
        try:
            registered = self._it.registered(node)
            if registered is not None and registered.incarnation == incarnation:
                found = await workflow.execute_activity(
                    calls.PROBE_NODE,
                    ProbeCall(node, registered.host, registered.port, options.PROBE_SECONDS),
                    schedule_to_start_timeout=options.PROBE_PICK_UP_TIMEOUT,
                    start_to_close_timeout=options.PROBE_TIMEOUT,
                    retry_policy=options.PROBE_RETRY,
                )
                result = self._readable(calls.PROBE_NODE, node, lambda: results.probed(found))
                if result is None:  # says nothing about the node
                    await self._rest(options.LEASE_AGAIN_AFTER)
                    return
                self._probes.note(node, incarnation, result)
                if result.incarnation == incarnation:
                    await self._rest(options.LEASE_AGAIN_AFTER)
                else:
                    self._it.fence(node, incarnation)
            self._it.trust(node, incarnation)
        except ActivityError:
            # Nobody could ask: that says nothing about the node.
            await self._rest(options.LEASE_AGAIN_AFTER)
        finally:
            self._probing.discard(node)
            self._awake = True

    def _reply(self, run: Run, signal: str, answer: dict[str, Any]) -> None:
        self._outbox.add(Outbound(outbound.SIGNAL, *run, signal, answer))
        self._awake = True

    async def _send(self, number: int, one: Outbound) -> None:
        """Send a command to another run; return once the server has acknowledged it, or the run is gone."""
        try:
            if one.kind == outbound.START:
                await self._start_run(one)
            elif one.kind == outbound.CANCEL:
                await workflow.get_external_workflow_handle(one.workflow_id, run_id=one.run_id or None).cancel()
            else:
                run = workflow.get_external_workflow_handle(one.workflow_id, run_id=one.run_id or None)
                await run.signal(one.name, one.payload)
        except ApplicationError:
            workflow.logger.info("Dropped for the run %s, which has ended: %s", one.workflow_id, one.name or one.kind)
        finally:
            self._outbox.sent(number)
            self._awake = True

    async def _release_left(self, but: str = "") -> None:
        """End the throttle leases of runs that are gone (terminated, or lost with the server's database): at the start
        of this run, after the metadata was rebuilt, and when another lease begins (`but`: its holder).
        """
        for holder in throttles.holders(self._it.state) if self._it.state is not None else ():
            if holder == but:
                continue
            if await self._is_gone(throttles.run_of(holder)):
                workflow.logger.info("The run %s that held throttles is gone", holder)
                self._it.carry_out({"do": "release_throttles", "holder": holder})
                self._awake = True

    @staticmethod
    async def _is_gone(holder: Run | None) -> bool:
        if holder is None:
            return True
        try:
            run = workflow.get_external_workflow_handle(holder[0], run_id=holder[1])
            await run.signal("answered", NO_ANSWER)
        except ApplicationError:
            return True
        return False

    # --- runs that see reassignments through

    def _see_through(self) -> None:
        """Start runs for the reassignments that nodes asked for, and tell those that look on what has changed."""
        self._tell_watchers()
        changes = [change for change in self._it.take_reassigned() if not self._watchers.has(change)]
        settled = self._it.take_settled()
        for group in groups(settled) if settled and workflow.patched(SETTLED) else ():
            self._begin(group)
        for group in groups(changes):
            self._watchers.watch(group, (self._begin(group), ""))

    def _tell_watchers(self, but: Run | None = None) -> None:
        pair = {"generation": self._it.pair[0], "version": self._it.pair[1]}
        for run, rows in self._watchers.changed(self._it.state).items():
            if run != but:
                self._reply(run, "retargeted", {"rows": rows, **pair})

    def _begin(self, group: Sequence[Reassigned]) -> str:
        """Have a run started for a group, and return its workflow id."""
        made = made_by_controller(group, self._it.pair)
        run = run_id_of(self._it.cluster, made)
        self._outbox.add(Outbound(outbound.START, run, "", summary(group), made))
        return run

    async def _start_run(self, one: Outbound) -> None:
        """Start a run of reassignments, once: a start that is sent again, after a continue-as-new, is refused by the
        server, whether the first run is open or has closed. An open one gets a signal: one that the server created just
        when the controller's run closed may never have got a workflow task, and does not begin before it has one.
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
            workflow.logger.info("The run %s was started by the controller's run before", one.workflow_id)
            self._reply((one.workflow_id, ""), "answered", NO_ANSWER)

    # --- handlers

    def _settled(self) -> bool:
        """Whether `run` has carried out all that follows from the state, or waits for handlers itself."""
        return not self._awake or self._draining or self._problem is not None or self._fault is not None

    @handlers.update(description="A node's batch of commands; see workflows/model/commands.py", settled=_settled)
    async def submit(self, *given: Any) -> dict[str, Any]:
        """Apply {"node", "incarnation", "generation", "version", "commands"} and respond as `Controller.submit`."""
        (batch,) = given
        reply = self._it.submit(batch, _new_id, replaying=workflow.unsafe.is_replaying())
        self._see_through()
        self._awake = True
        return reply

    @submit.validator
    def _may_submit(self, *given: Any) -> None:
        self._checked(lambda: controller.check_batch(handlers.only(given)))

    @handlers.update(description="Give up the image of a node that will not come back: {node}", settled=_settled)
    async def recover_without(self, *given: Any) -> dict[str, Any]:
        """Go on collecting, or serving, without a node."""
        (order,) = given
        self._it.give_up(int(order["node"]))
        self._awake = True
        return self._it.describe()

    @recover_without.validator
    def _may_recover_without(self, *given: Any) -> None:
        self._checked(lambda: self._it.check_give_up(handlers.only(given)))

    @handlers.signal(messages.lease_ended, description="A NodeLease reports its end: {node, incarnation, reason}")
    def lease_ended(self, lease: dict[str, Any]) -> None:
        """Probe the node before it is fenced."""
        node, incarnation = int(lease["node"]), str(lease["incarnation"])
        if self._it.may_lease(node, incarnation):
            self._lapsed.pop(node, None)
            self._lapsed = dict([*self._lapsed.items(), (node, incarnation)][-REMEMBERED_LEASES:])
        self._suspect(node, incarnation)

    @handlers.signal(messages.locate, description="A run requests the state of a node: {node, workflow_id, run_id}")
    def locate(self, question: dict[str, Any]) -> None:
        """Respond by the signal `located`."""
        node, run = question["node"], (question["workflow_id"], question["run_id"])
        answer = {"node": node, "known": self._it.may_know(node), **self._probes.answer(node, self._it.state)}
        self._reply(run, "located", answer)

    @handlers.signal(
        messages.cancel_run,
        description="A run whose replicas were all dropped requests its cancel: {workflow_id, run_id}",
    )
    def cancel_run(self, run: dict[str, Any]) -> None:
        """Cancel the run: it cannot cancel itself."""
        self._outbox.add(Outbound(outbound.CANCEL, run["workflow_id"], run["run_id"]))
        self._awake = True

    @handlers.signal(
        messages.directory_failed,
        description="A DirectoryFailure run reports a failed directory: {notice, workflow_id, run_id}",
    )
    def directory_failed(self, report: dict[str, Any]) -> None:
        """Respond by the signal `recorded`, once the metadata has the failure; a repeated report changes nothing."""
        answer = self._it.directory_failed(report.get("notice"))
        self._reply((report["workflow_id"], report["run_id"]), "recorded", answer)

    @handlers.signal(
        messages.reassign,
        description="A run requests reassignments or their state: {request, changes, looks, workflow_id, run_id}",
    )
    def reassign(self, asked: Asked) -> None:
        """Respond by the signal `answered`; for a repeated request only the response is repeated."""
        if self._answers.heard(asked):
            answer = self._answers.again(asked, self._it.state)
        else:
            answer = carry_out(asked, self._it)
            if asked.hold:
                self._spawn(self._release_left(asked.holder))
            self._tell_watchers(asked.run)
            self._watchers.watch(under_way(answer, self._it.state), asked.run)
            self._answers.remember(asked, answer)
        if answer is not None:
            absent = self._probes.absent(nodes_of(answer), self._it.state)
            self._reply(asked.run, "answered", {**answer, **({"absent": absent} if absent else {})})
        self._awake = True

    @workflow.query(description="All metadata as rows, or {} while collecting")
    def state(self) -> dict[str, Any]:
        """The rows of workflows/model/state.py."""
        return self._it.state.rows() if self._it.state else {}

    @workflow.query(description="Nodes, counts, versions, and who is awaited while collecting")
    def describe(self) -> dict[str, Any]:
        """A summary."""
        return self._it.describe()

    def _checked(self, check: Callable[[], object]) -> None:
        try:
            check()
        except BadField as bad:
            raise errors.invalid_plan(bad) from bad
