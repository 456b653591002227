"""MoveReplica: one replica, or a lane of replicas of one node, moves to another log directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.workflow import ActivityHandle

from workflows import cancellation, errors, handlers, options, orders, steps
from workflows.model import calls, fields, messages, moves, names
from workflows.model.absence import Missed
from workflows.model.calls import MoveRow
from workflows.model.fields import BadField
from workflows.model.moves import BEFORE_SWAP, CANCELLING, COPYING, DELETING, WAITING, Replica
from workflows.model.phases import PAUSED, Phases
from workflows.model.plan import MovePlan, parse_moves
from workflows.orders import TOO_LATE, Key, Order, refuse

#: After these, a `.move` may be left on a good disk: it is removed before the run ends.
_LEAVES_A_COPY = (errors.TARGET_FULL, errors.CORRUPT_SOURCE)


@workflow.defn(name=names.MOVE_REPLICA)
class MoveReplica:
    """create_move -> copy -> swap -> (until the source's `.delete` is due) -> delete_replica.

    What is so small that create_move could copy it goes on to swap at once.
    Each step's activity looks at the disk first and does the next missing thing, so that a step may be repeated
    whatever happened to the last attempt. A cancel is looked for between all steps, since it may come with a step's
    end; what it finds before the swap is undone by cancel_move, however long the node stays away; what it finds behind
    the swap is in place and stays.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._plan = MovePlan(-1, ())
        try:
            self._plan = parse_moves(handlers.only(given))
        except BadField as problem:
            self._problem = problem
        self._replicas: dict[Key, Replica] = {
            (move.topic, move.partition): Replica.asked(move) for move in self._plan.replicas
        }
        self._throttle = self._plan.throttle
        self._paused = False
        self._orders: dict[Key, Order] = {}
        self._step: ActivityHandle[Any] | None = None
        self._interrupted = False
        self._known: bool | None = None
        self._accepted = any(move.claim for move in self._plan.replicas)  # by the node, which so exists
        self._patient = False
        self._away = False  # the node took no step, or died over one, and was not heard of since
        self._missed = Missed()
        self._asking_why: asyncio.Task[None] | None = None
        self._deaths = 0
        self._asked = 0.0  # when the step under way was asked for
        self._started = workflow.info().start_time.timestamp()
        self._in_place: float | None = None
        self._phases = Phases()

    @workflow.run
    async def run(self, *given: Any) -> dict[str, Any]:
        """Move; answer rows, the SLA's verdict and the run's phases.

        Ends failed with the type of the first reason, the rows in its details, when nothing was moved; cancelled when
        everything was dropped. The parameter is read strictly in `__init__`; a wrong one fails with InvalidPlan and the
        path of the bad field.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        while (phase := self._next()) is not None:
            if self._paused and phase in (COPYING, moves.SWAPPING):
                self._phases.enter(PAUSED, workflow.time())
                await cancellation.uncancelled(
                    workflow.wait_condition(lambda: not self._paused or bool(self._open_orders()))
                )
            elif phase == WAITING:
                await self._until_due()
            else:
                self._phases.enter(phase, workflow.time())
                await self._do(phase)
        self._phases.enter(None, workflow.time())
        await cancellation.handlers_finished()
        return await self._end()

    # --- what comes next

    def _next(self) -> str | None:
        """The phase whose step comes next, after a cancel and the updates' orders were taken into account."""
        if cancellation.asked():
            for replica in self._in(*BEFORE_SWAP):
                self._replicas[replica.key] = replica.to(CANCELLING)
        for key, order in self._open_orders().items():
            replica = self._replicas[key]
            if replica.phase not in BEFORE_SWAP:
                where = "is being dropped" if replica.phase in (CANCELLING, moves.DROPPED) else f"is {replica.phase}"
                self._orders[key] = replace(
                    order, taken=True, refused=f"{key[0]}-{key[1]} {where}: it is too late for that."
                )
                continue
            self._orders[key] = replace(order, taken=True)
            aimed = replica.to(CANCELLING) if order.directory is None else replica.aimed_at(order.directory)
            self._replicas[key] = aimed
        phase = moves.next_phase(self._replicas.values())
        if phase in (None, WAITING, DELETING) and self._in_place is None and self._in(WAITING, DELETING, moves.DONE):
            self._in_place = workflow.time()
        return phase

    def _in(self, *phases: str) -> list[Replica]:
        return [replica for replica in self._replicas.values() if replica.phase in phases]

    def _open_orders(self) -> dict[Key, Order]:
        return {key: order for key, order in self._orders.items() if not order.taken}

    # --- doing it

    async def _until_due(self) -> None:
        due = max(replica.due for replica in self._in(WAITING))
        if (left := due - workflow.time()) > 0:
            self._phases.enter(WAITING, workflow.time())
            await cancellation.uncancelled(workflow.sleep(timedelta(seconds=left), summary="until the .delete is due"))
        if workflow.time() >= due:
            for replica in self._in(WAITING):
                self._replicas[replica.key] = replica.to(DELETING)

    async def _do(self, phase: str) -> None:
        """One step for all replicas in this phase."""
        group = self._in(phase)
        self._interrupted = False
        self._asked = workflow.time()
        self._step = steps.start_step(
            phase,
            self._plan.node,
            group,
            self._throttle,
            self._reason(phase),
            patient=self._patient,
            accepted=self._accepted,
            telling=self._deaths < options.DEAD_ATTEMPTS_TOLD,
        )
        outcome: list[MoveRow] | steps.Stopped
        try:
            outcome = steps.rows_of(phase, self._plan.node, await self._step, group)
        except ActivityError as failure:
            outcome = steps.rows_after(failure, group, interrupted=self._interrupted or cancellation.asked())
            self._keep(steps.facts_of(failure, group))
        except asyncio.CancelledError:
            # A cancel that came with the step's answer: what the step has done the next one finds out.
            if not (cancellation.asked() or self._interrupted):
                raise
            outcome = steps.Stopped()
        finally:
            self._step = None
        self._away = isinstance(outcome, steps.Stopped) and (outcome.unclaimed or outcome.died)
        if self._away:
            self._miss()
        else:
            self._heard()
        if isinstance(outcome, list):
            self._apply(outcome, group)
        elif outcome.died:
            self._deaths += 1
        elif outcome.unclaimed and not await self._node_exists():
            # A node that nobody has ever seen holds nothing: there is nothing to undo there.
            cluster = workflow.info().task_queue
            message = f"Node {self._plan.node} is not known to cluster {cluster}; name one that has registered."
            if phase == CANCELLING:
                self._apply([replace(each.row, outcome=calls.DROPPED) for each in group], group)
            else:
                self._apply(moves.failed_rows(group, errors.UNKNOWN_NODE, message), group)

    def _reason(self, phase: str) -> str:
        return (
            (workflow.cancellation_reason() or "cancelled" if cancellation.asked() else "dropped")
            if phase == CANCELLING
            else ""
        )

    def _apply(self, rows: Sequence[MoveRow], group: Sequence[Replica]) -> None:
        now = workflow.time()
        told = {(row.topic, row.partition): row for row in rows}
        for replica in (self._replicas[each.key] for each in group):
            row = told.get(replica.key)
            if row is None:
                message = f"The node said nothing about {replica.key[0]}-{replica.key[1]}; look at its log."
                row = moves.failed_rows([replica], errors.NODE_FAILURE, message)[0]
            if replica.rejected(row) and (order := self._orders.get(replica.key)) is not None:
                self._orders[replica.key] = replace(order, refused=row.message, kind=row.error)
            after = replica.after(row, now)
            if after.phase == moves.FAILED and replica.phase != CANCELLING and row.error in _LEAVES_A_COPY:
                after = after.to(CANCELLING)
            self._replicas[replica.key] = after

    def _keep(self, facts: dict[Key, MoveRow]) -> None:
        """Add what an interrupted step had done; its outcome is open."""
        for key, row in facts.items():
            replica = self._replicas[key]
            merged = moves.merge_rows(replica.row, replace(row, outcome=replica.row.outcome))
            self._replicas[key] = replace(replica, row=merged, live=None)

    async def _node_exists(self) -> bool:
        """Ask the controller whether the node has ever registered; without a clear no, the run waits for it from then
        on.
        """
        if self._accepted:
            self._patient = True
            return True
        self._known = None
        try:
            await self._locate()
            await workflow.wait_condition(lambda: self._known is not None, timeout=options.LOCATE_TIMEOUT)
        except (TimeoutError, ApplicationError):
            workflow.logger.warning("The controller does not say whether node %d exists", self._plan.node)
        except asyncio.CancelledError:
            if not cancellation.asked():
                raise
            return True
        self._patient = self._known is not False
        return self._patient

    async def _locate(self) -> None:
        """Ask the controller for the node; it responds by the signal `located`."""
        info = workflow.info()
        ask = {"node": self._plan.node, "workflow_id": info.workflow_id, "run_id": info.run_id}
        await workflow.get_external_workflow_handle(names.cluster_id(info.task_queue)).signal("locate", ask)

    # --- a node that does not report

    def _miss(self) -> None:
        """Note that the node took no step, or died over one, and request the reason from the controller."""
        if not self._missed.now:
            heard = max(replica.heard for replica in self._replicas.values())
            self._missed.begin(max(heard, self._asked))
            self._asking_why = asyncio.create_task(self._ask_why())

    async def _ask_why(self) -> None:
        for pause in options.ASK_WHY_AFTER:
            await workflow.sleep(pause, summary="until the controller may know why the node is unavailable")
            try:
                await self._locate()
            except ApplicationError:
                workflow.logger.info("No controller can report why node %d is unavailable", self._plan.node)
            if self._missed.certain:
                return

    def _heard(self) -> None:
        """Note that the node reports again: the time without it counts for the reason that the controller gave."""
        if not self._missed.now:
            return
        if self._asking_why is not None:
            self._asking_why.cancel()
        spent = self._missed.end(workflow.time())
        for replica in self._replicas.values():
            if not replica.ended:
                self._replicas[replica.key] = replica.spent(spent)

    async def _end(self) -> dict[str, Any]:
        rows = [replica.row for replica in self._replicas.values()]
        verdict = moves.verdict(rows)
        result = {
            "rows": [asdict(row) for row in rows],
            "sla": self._sla(workflow.time()),
            "phases": self._phases.rows(),
        }
        if verdict.status == "failed":
            raise ApplicationError(fields.shown(verdict.message), result, type=verdict.error, non_retryable=True)
        if verdict.status == "cancelled":
            await cancellation.be_asked()
            raise CancelledError("All replicas were dropped.")
        return result

    def _sla(self, now: float) -> dict[str, Any]:
        return moves.sla(self._plan.sla_seconds, self._started, self._in_place, now)

    # --- what people and the node say meanwhile

    @workflow.query(description="Phase, bytes, rate and ETA of the run and of every replica")
    def progress(self) -> dict[str, Any]:
        """How far the run is; of copies what their node reported last, and how long ago that was."""
        clock = time.time()  # of whoever asks: the run's own clock stands still while nothing happens
        waiting_for = self._waiting_for(clock)
        rows = [
            moves.progress(replica, clock, waiting_for, self._paused, self._missed.absence)
            for replica in self._replicas.values()
        ]
        total, done = sum(row["bytes_total"] for row in rows), sum(row["bytes_copied"] for row in rows)
        copying = [row for row in rows if row["phase"] == COPYING]
        rate, growth = sum(row["rate"] for row in copying), sum(row["append_rate"] for row in copying)
        held = moves.held_by(rows)
        return {
            "workflow_id": workflow.info().workflow_id,
            "node": self._plan.node,
            "phase": self._phases.current,
            "waiting_for": waiting_for,
            "paused": self._paused,
            "cancelling": cancellation.asked(),
            "throttle": self._throttle,
            "bytes_total": total,
            "bytes_copied": done,
            "rate": rate,
            "eta_seconds": moves.eta(total, done, rate, growth, "" if held is None else held["stall"]),
            "stall": held["stall"] if held else "",
            "stall_message": held["stall_message"] if held else "",
            "started": self._started,
            "sla": self._sla(clock),
            "replicas": rows,
            "phases": self._phases.rows(),
        }

    def _waiting_for(self, clock: float) -> str:
        """The node, when it should have been heard of by now; "" while all is well."""
        copies = self._replicas.values() if self._step is not None else ()
        if self._away or any(replica.silent(self._asked, clock) for replica in copies):
            return f"node {self._plan.node}"
        return ""

    @handlers.signal(messages.reports, description="The node reports the progress of its copies")
    def copy_progress(self, rows: list[dict[str, Any]]) -> None:
        """Live values for `progress`; those of an earlier target or claim are ignored."""
        self._away = False
        self._heard()
        for row in rows:
            replica = self._replicas.get((row["topic"], row["partition"]))
            if (
                replica is not None
                and replica.phase == COPYING
                and row.get("directory", replica.move.directory) == replica.move.directory
            ):
                self._replicas[replica.key] = replica.reported(row, workflow.time())

    @handlers.signal(messages.located, description="The controller responds whether a node is known and fenced")
    def located(self, answer: dict[str, Any]) -> None:
        """Take the response to `locate`."""
        self._known = bool(answer.get("known"))
        self._missed.learn(answer)

    @workflow.update(description="Stop copying; what is on disk stays")
    async def pause(self, *given: Any) -> dict[str, Any]:
        """Return when no step is running any more. The memo, which is in the server's list, shows that it is paused."""
        self._paused = True
        workflow.upsert_memo({PAUSED: True})
        await self._interrupt()
        return {"paused": self._paused}

    @pause.validator
    def _may_pause(self, *given: Any) -> None:
        orders.checked(lambda: handlers.nothing(given))
        self._needs_open_run()
        if self._paused:
            raise refuse("The run is paused already; resume it first.")

    @workflow.update(description="Go on after a pause")
    async def resume(self, *given: Any) -> dict[str, Any]:
        """The next step starts at once."""
        self._paused = False
        workflow.upsert_memo({PAUSED: None})
        return {"paused": False}

    @resume.validator
    def _may_resume(self, *given: Any) -> None:
        orders.checked(lambda: handlers.nothing(given))
        if not self._paused:
            raise refuse("The run is not paused.")

    @workflow.update(description="Limit this run: {rate: bytes/s, a size such as 20MB, or null}")
    async def set_throttle(self, *given: Any) -> dict[str, Any]:
        """A copy under way goes on from where it is under the new limit."""
        rate = orders.rate_of(handlers.only(given))
        if rate != self._throttle:
            self._throttle = rate
            if self._in(COPYING):
                await self._interrupt()
        return {"throttle": self._throttle}

    @set_throttle.validator
    def _may_set_throttle(self, *given: Any) -> None:
        self._needs_open_run()
        orders.checked(lambda: orders.rate_of(handlers.only(given)))

    @workflow.update(description="Move one replica to another directory instead: {topic, partition, directory}")
    async def set_target(self, *given: Any) -> dict[str, Any]:
        """Return when the `.move` in the new directory exists. Fails with TooLate when the swap was faster, or with the
        node's reason for rejecting the directory: then the move goes on to the earlier one.
        """
        (order,) = given
        key = orders.replica_of(order, self._replicas, "directory")
        directory = orders.directory_of(order)
        await self._give(key, Order(directory), lambda replica: replica.phase != moves.CREATING)
        return {"topic": key[0], "partition": key[1], "directory": directory}

    @set_target.validator
    def _may_set_target(self, *given: Any) -> None:
        order = orders.checked(lambda: handlers.only(given))
        key = orders.checked(lambda: orders.replica_of(order, self._replicas, "directory"))
        directory = orders.checked(lambda: orders.directory_of(order))
        self._may_be_ordered(key)
        if self._replicas[key].move.directory == directory:
            raise refuse(f"$.directory is {directory}, which is its target already.")

    @workflow.update(description="Give up one replica: {topic, partition}")
    async def drop(self, *given: Any) -> dict[str, Any]:
        """Answers when its `.move` is gone; fails with TooLate when the swap was faster."""
        (order,) = given
        key = orders.replica_of(order, self._replicas)
        await self._give(key, Order(), lambda replica: replica.phase != CANCELLING)
        return {"topic": key[0], "partition": key[1], "outcome": self._replicas[key].row.outcome}

    @drop.validator
    def _may_drop(self, *given: Any) -> None:
        order = orders.checked(lambda: handlers.only(given))
        self._may_be_ordered(orders.checked(lambda: orders.replica_of(order, self._replicas)))

    async def _give(self, key: Key, order: Order, carried_out: Callable[[Replica], bool]) -> None:
        self._orders[key] = order
        await self._interrupt()
        await workflow.wait_condition(lambda: self._orders[key].taken)
        await workflow.wait_condition(lambda: bool(self._orders[key].refused) or carried_out(self._replicas[key]))
        if refused := self._orders[key].refused:
            raise refuse(refused, self._orders[key].kind)

    async def _interrupt(self) -> None:
        """Stop the step under way, if any, and wait until it has ended; a swap that runs already ends by itself.

        A result that the same workflow task delivered is applied first: a cancel would discard it.
        """
        step = self._step
        if step is None:
            return
        await cancellation.uncancelled(workflow.wait_condition(lambda: True))
        if self._step is not step:
            return
        self._interrupted = True
        step.cancel()
        await workflow.wait_condition(lambda: self._step is not step)

    def _needs_open_run(self) -> None:
        if self._problem is not None or cancellation.asked() or not self._in(*BEFORE_SWAP):
            raise refuse("Nothing of this run is still to be copied.", TOO_LATE)

    def _may_be_ordered(self, key: Key) -> None:
        replica = self._replicas[key]
        if cancellation.asked() or replica.phase not in BEFORE_SWAP:
            raise refuse(f"{key[0]}-{key[1]} is {replica.phase}: it is too late for that.", TOO_LATE)
        if key in self._open_orders():
            raise refuse(f"{key[0]}-{key[1]} is already being changed; wait for that.")
